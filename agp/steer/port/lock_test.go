package port

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A reader can take the lock as well: any local user could keep the engine from a port.
func TestOtherUsersCannotTakeTheLockOfAPort(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "7-3.lock")
	for _, left := range []bool{false, true} {
		if left {
			require.NoError(t, os.WriteFile(path, []byte("1\n"), 0o644)) //nolint:gosec // as an earlier process left it
		}
		l, err := acquire(dir, 7, link{Name: "eth7", Index: 3})
		require.NoError(t, err)
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, fs.FileMode(0o600), info.Mode())
		l.release()
	}
}
