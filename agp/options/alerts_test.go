package options

import (
	"testing"

	"github.com/stretchr/testify/require"
)

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
