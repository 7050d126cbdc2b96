package afxdp

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMoreBuffersThanThereIsMemoryAreRefused(t *testing.T) {
	free, known := available("/proc/meminfo")
	require.True(t, known)
	_, _, err := allocate(int(2*free), false) //nolint:gosec // far from overflow
	require.ErrorIs(t, err, ErrMemory)
	require.ErrorContains(t, err, "lower the number of buffers")
	mem, _, err := allocate(1<<20, false)
	require.NoError(t, err)
	require.Len(t, mem, 1<<20)
}

func TestAvailableMemoryThatIsNotToldIsUnknown(t *testing.T) {
	for text, want := range map[string]uint64{
		"MemTotal: 9 kB\nMemAvailable:    1234 kB\n": 1234 << 10,
		"MemTotal: 9 kB\n":                           0,
		"MemAvailable: much\n":                       0,
		"":                                           0,
	} {
		path := filepath.Join(t.TempDir(), "meminfo")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		free, known := available(path)
		require.Equal(t, want, free, text)
		require.Equal(t, want > 0, known, text)
	}
	_, known := available(t.TempDir() + "/none")
	require.False(t, known)
}
