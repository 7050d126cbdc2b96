package enforce

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Opening a pipe waits for a writer: the plugin would neither start nor end.
func TestStateFileThatIsAPipeHoldsNothingUp(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rules")
	require.NoError(t, unix.Mkfifo(path, 0o600))
	done := make(chan *world, 1)
	go func() { done <- newWorld(t, stateFile(path)) }()
	select {
	case w := <-done:
		require.Empty(t, w.List())
		require.Contains(t, w.log.text(), "E! Rules of an earlier run are not loaded: "+path+": not a regular file")
	case <-time.After(20 * time.Second):
		t.Fatal("waits for somebody who writes into the pipe")
	}
}

func TestStateFileIsNotWrittenThroughALink(t *testing.T) {
	dir := t.TempDir()
	path, other := filepath.Join(dir, "rules"), filepath.Join(dir, "other")
	require.NoError(t, os.WriteFile(other, []byte("precious"), 0o600))
	require.NoError(t, os.Symlink(other, path+".new"))
	w := newWorld(t, stateFile(path))
	require.NoError(t, w.block("198.51.100.7"))
	for range 2 {
		w.now = w.now.Add(saveInterval)
		w.Tick()
	}
	data, err := os.ReadFile(other)
	require.NoError(t, err)
	require.Equal(t, "precious", string(data))
	info, err := os.Lstat(path)
	require.NoError(t, err)
	require.True(t, info.Mode().IsRegular())
}
