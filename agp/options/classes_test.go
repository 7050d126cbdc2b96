package options

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseClass(t *testing.T) {
	for text, want := range map[string]Class{
		"tcp": {6, 0, 0}, "udp/53": {17, 53, 53}, "tcp/8000-8999": {6, 8000, 8999}, "icmp": {1, 0, 0},
		"47": {47, 0, 0}, "sctp/1-65535": {132, 1, 65535}, "icmpv6": {58, 0, 0}, "6/80": {6, 80, 80},
	} {
		got, err := ParseClass(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{"", "tpc", "256", "icmp/3", "tcp/", "tcp/0", "tcp/9-8", "tcp/1-65536", "tcp/a", "udp/53/54", "tcp/5-", "-1", "tcp/+5"} {
		_, err := ParseClass(text)
		require.ErrorIs(t, err, ErrClass, text)
	}
}
