package port

import (
	"bufio"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
)

// TestMain is the other process of TestKilledProcess when it is told so.
func TestMain(m *testing.M) {
	if dir := os.Getenv("AGP_TEST_HOLD_PORT"); dir != "" {
		p, err := Open("a", Options{StateDir: dir})
		if err == nil {
			err = p.Apply(Settings{Channels: 1, Features: map[string]bool{"rx-gro": true}, Promiscuous: true})
		}
		if err != nil {
			os.Stdout.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		os.Stdout.WriteString("held\n")
		select {}
	}
	os.Exit(m.Run())
}

// hold starts a process that has changed the port "a" and holds it until it is killed.
func hold(t *testing.T, dir string) (c *exec.Cmd, kill func()) {
	t.Helper()
	c = exec.Command(os.Args[0])
	c.Env = append(os.Environ(), "AGP_TEST_HOLD_PORT="+dir)
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	line, _ := bufio.NewReader(out).ReadString('\n')
	require.Equal(t, "held\n", line)
	return c, func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	}
}

// A process that is killed leaves nothing that another one cannot put back, and until
// then nobody else gets the port.
func TestKilledProcess(t *testing.T) {
	inNetns(t)
	addVeth(t, "a", "b", 4)
	dir := t.TempDir()
	p, err := Open("a", Options{StateDir: dir})
	require.NoError(t, err)
	before, err := p.Info()
	require.NoError(t, err)
	_, err = p.Close()
	require.NoError(t, err)

	for range 5 {
		c, kill := hold(t, dir)

		_, err = Open("a", Options{StateDir: dir})
		require.ErrorIs(t, err, ErrBusy)
		require.EqualError(t, err, "a: port is in use by process "+strconv.Itoa(c.Process.Pid))
		reps, err := RestoreAll(dir)
		require.NoError(t, err)
		require.Len(t, reps, 1)
		require.ErrorIs(t, reps[0].Busy, ErrBusy)
		l, err := netlink.LinkByName("a")
		require.NoError(t, err)
		require.Equal(t, 1, l.Attrs().Promisc)

		kill()
		reps, err = RestoreAll(dir)
		require.NoError(t, err)
		require.Len(t, reps, 1)
		require.Equal(t, []string{"channels", "feature/rx-gro"}, reps[0].Restored)
		l, err = netlink.LinkByName("a")
		require.NoError(t, err)
		require.Zero(t, l.Attrs().Promisc)
		p, err := Open("a", Options{StateDir: dir})
		require.NoError(t, err)
		require.Empty(t, p.Recovered)
		after, err := p.Info()
		require.NoError(t, err)
		require.Equal(t, before, after)
		_, err = p.Close()
		require.NoError(t, err)
	}
}
