package port

import (
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// A reader can take the lock as well: any local user could keep the engine from a port.
func TestOtherUsersCannotTakeTheLockOfAPort(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "7-3.lock")
	for _, left := range []bool{false, true} {
		if left {
			require.NoError(t, os.WriteFile(path, []byte("1\n"), 0o644)) //nolint:gosec // as an earlier process left it
		}
		l, err := acquire(&fakeKernel{netns: 7}, dir, link{Name: "eth7", Index: 3})
		require.NoError(t, err)
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, fs.FileMode(0o600), info.Mode())
		l.release()
	}
}

func TestTwoDirectoriesOfLocksAreOnePort(t *testing.T) {
	inNetns(t)
	l := addVeth(t, "a", "b", 1)
	p, err := Open("a", options(t))
	require.NoError(t, err)
	other := options(t)
	_, err = Open("a", other)
	require.ErrorIs(t, err, ErrBusy)
	require.EqualError(t, err, "a: port is in use by process "+strconv.Itoa(os.Getpid()))
	require.Empty(t, files(t, other.StateDir), "no lock is left")

	// The same number in another namespace is another port.
	here, err := netns.Get()
	require.NoError(t, err)
	defer here.Close()
	there, err := netns.New()
	require.NoError(t, err)
	defer there.Close()
	twin := addVeth(t, "a", "b", 1)
	require.Equal(t, l.Attrs().Index, twin.Attrs().Index)
	q, err := Open("a", other)
	require.NoError(t, err)
	_, err = q.Close()
	require.NoError(t, err)
	require.NoError(t, netns.Set(here))

	_, err = p.Close()
	require.NoError(t, err)
	q, err = Open("a", other)
	require.NoError(t, err)
	_, err = q.Close()
	require.NoError(t, err)
}

func TestOtherUsersCannotTakeTheNameOfAPort(t *testing.T) {
	inNetns(t)
	l := addVeth(t, "a", "b", 1)
	const nobody, same = 65534, ^uintptr(0)
	effective := func(uid uintptr) { // of this thread
		_, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, same, uid, same)
		require.Zero(t, errno)
	}
	effective(nobody)
	s, err := net.Listen("unix", "@telegraf-agp/port/"+strconv.Itoa(l.Attrs().Index))
	effective(0)
	require.NoError(t, err)
	defer s.Close()
	p, err := Open("a", options(t))
	require.NoError(t, err)
	_, err = p.Close()
	require.NoError(t, err)
}

// An engine that was stopped when its plugin was killed has an end waiting for it: the next
// one lets it come.
func TestStoppedHolderIsContinued(t *testing.T) {
	inNetns(t)
	addVeth(t, "a", "b", 4)
	dir := t.TempDir()
	for _, ends := range []bool{true, false} {
		c, kill := hold(t, dir)
		require.NoError(t, c.Process.Signal(unix.SIGSTOP))
		require.Eventually(t, func() bool { return stopped(c.Process.Pid) }, 10*time.Second, time.Millisecond)
		if ends {
			require.NoError(t, c.Process.Signal(unix.SIGTERM))
		}
		p, err := Open("a", Options{StateDir: dir})
		if ends {
			require.NoError(t, err)
			require.Len(t, p.Recovered, 1)
			_, err = p.Close()
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, ErrBusy)
			require.EqualError(t, err, "a: port is in use by process "+strconv.Itoa(c.Process.Pid)+", which was stopped and has been continued")
			require.False(t, stopped(c.Process.Pid))
		}
		kill()
	}
}

// Processes that are not this program stay as they are.
func TestStoppedProcessOfAnotherProgramIsLeftAlone(t *testing.T) {
	c := exec.Command("sleep", "1000")
	require.NoError(t, c.Start())
	defer func() { _ = c.Process.Kill(); _ = c.Wait() }()
	require.NoError(t, c.Process.Signal(unix.SIGSTOP))
	require.Eventually(t, func() bool { return stopped(c.Process.Pid) }, 10*time.Second, time.Millisecond)
	require.False(t, wake(c.Process.Pid))
	require.True(t, stopped(c.Process.Pid))
}
