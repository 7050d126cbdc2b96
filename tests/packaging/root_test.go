package packaging

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/tests/testcap"
)

// root is a throw-away root and the process that holds it.
type root struct {
	t   *testing.T
	pid string
}

// The overlay is of this root only: what is mounted below it, such as /run, is not seen inside.
const makeRoot = `
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/merged"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/merged"
mount -t proc proc "$1/merged/proc"
mount --rbind /dev "$1/merged/dev"
mount -t tmpfs tmpfs "$1/merged/tmp"
mount -t tmpfs tmpfs "$1/merged/run"
echo ready
exec chroot "$1/merged" cat
`

// newRoot makes one, without any network unless loopback is asked for: then it has the machine's.
func newRoot(t *testing.T, loopback ...bool) *root {
	t.Helper()
	if os.Getuid() != 0 {
		testcap.Missing(t, "a throw-away root needs root")
	}
	args := []string{"--mount", "--propagation", "private", "sh", "-ec", makeRoot, "sh", t.TempDir()}
	if len(loopback) == 0 {
		args = append([]string{"--net"}, args...)
	}
	cmd := exec.Command(testcap.Program(t, "unshare"), args...)
	cmd.Stderr = os.Stderr
	hold, err := cmd.StdinPipe() // the root goes when this closes, also with this process
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		hold.Close()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err, "no overlay can be mounted here")
	require.Equal(t, "ready\n", line)
	r := &root{t: t, pid: strconv.Itoa(cmd.Process.Pid)}
	// The shell becomes chroot, and only then its root is the one to enter.
	require.Eventually(t, func() bool {
		_, err := os.Stat(r.path("/proc/self"))
		dir, link := os.Readlink("/proc/" + r.pid + "/root")
		return err == nil && link == nil && dir != "/"
	}, patience, tick)
	return r
}

// path is where the test sees a file of the root.
func (r *root) path(name string) string { return filepath.Join("/proc", r.pid, "root", name) }

// command is one that runs inside.
func (r *root) command(args ...string) *exec.Cmd {
	cmd := exec.Command("nsenter", append([]string{"--target", r.pid, "--mount", "--net", "--root", "--wd", "--"}, args...)...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive"}
	return cmd
}

// try runs a line of shell, without anything to read from.
func (r *root) try(format string, args ...any) (string, error) {
	out, err := r.command("sh", "-ec", fmt.Sprintf(format, args...)).CombinedOutput()
	return string(out), err
}

func (r *root) run(format string, args ...any) string {
	r.t.Helper()
	out, err := r.try(format, args...)
	require.NoError(r.t, err, "%s: %s", fmt.Sprintf(format, args...), out)
	return out
}

// fails runs what has to fail and returns what it says.
func (r *root) fails(format string, args ...any) string {
	r.t.Helper()
	out, err := r.try(format, args...)
	require.Error(r.t, err, "%s: %s", fmt.Sprintf(format, args...), out)
	return out
}

func (r *root) read(name string) string {
	r.t.Helper()
	text, err := os.ReadFile(r.path(name))
	require.NoError(r.t, err)
	return string(text)
}

func (r *root) write(name, text string) {
	r.t.Helper()
	require.NoError(r.t, os.WriteFile(r.path(name), []byte(text), 0o644))
}

// bring copies a file into the root.
func (r *root) bring(from, to string, mode os.FileMode) {
	r.t.Helper()
	in, err := os.Open(from)
	require.NoError(r.t, err)
	defer in.Close()
	require.NoError(r.t, os.MkdirAll(filepath.Dir(r.path(to)), 0o755))
	out, err := os.OpenFile(r.path(to), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, mode)
	require.NoError(r.t, err)
	_, err = io.Copy(out, in)
	require.NoError(r.t, err)
	require.NoError(r.t, out.Close())
}
