package options

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestKindsThatNothingConfirmsAreRefusedByName(t *testing.T) {
	require.NoError(t, CheckConfirmableKinds([]string{"brute_force", "beacon", "covert_timing", "covert_size", "classified/c2", Classified}))
	for _, name := range []string{"port_scan", "host_scan", "stealth_scan", "dns_tunnel", "icmp_tunnel", "one_way_push"} {
		err := CheckConfirmableKinds([]string{"brute_force", name})
		require.ErrorIs(t, err, ErrKind, name)
		require.ErrorContains(t, err, name)
	}
}

func TestKindsThatNeverBlockAreRefusedWithTheReason(t *testing.T) {
	require.NoError(t, CheckBlockingKinds(BlockingKinds()))
	require.NoError(t, CheckBlockingKinds([]string{"classified/c2"}))
	for _, k := range AlertKinds() {
		if k.NoSource != "" {
			err := CheckBlockingKinds([]string{k.Name})
			require.ErrorIs(t, err, ErrKind)
			require.ErrorContains(t, err, k.NoSource)
		}
	}
	for _, name := range []string{"", "port_scam", "classified/"} {
		err := CheckBlockingKinds([]string{name})
		require.ErrorIs(t, err, ErrKind, name)
		require.ErrorContains(t, err, "port_scan", "what is allowed")
	}
}
