//go:build linux && (amd64 || arm64)

package gpu

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNoLibraryIsNoFault(t *testing.T) {
	_, err := find([]string{filepath.Join(t.TempDir(), "libnvidia-ml.so.1")})
	require.ErrorIs(t, err, ErrAbsent)
	_, err = find(nil)
	require.ErrorIs(t, err, ErrAbsent)
}

func TestLibraryThatIsNone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	require.NoError(t, os.WriteFile(path, []byte("no library"), 0o600))
	_, err := find([]string{path})
	require.ErrorIs(t, err, ErrAbsent)
	require.ErrorContains(t, err, "libnvidia-ml.so.1: ")
	_, err = find([]string{"libc.so.6"})
	require.ErrorIs(t, err, ErrAbsent)
	require.ErrorContains(t, err, "libc.so.6 lacks nvmlInit_v2")
}
