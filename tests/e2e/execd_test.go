package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/agp-net/telegraf-agp/tests/e2e/influx"
)

const (
	countToy  = `SELECT count("n") FROM "toy"`
	countTick = `SELECT count("n") FROM "tick"`
)

// toyConfig writes the plugin's configuration file and returns it with the
// folder of the marks.
func toyConfig(t *testing.T, keys string) (config, dir string) {
	t.Helper()
	dir = t.TempDir()
	return writeFile(t, filepath.Join(dir, "toy.conf"), fmt.Sprintf("[[inputs.toy]]\n  dir = %q\n%s", dir, keys)), dir
}

// Points stored = points emitted, although all of them have the same tags and time.
func TestChecklist10_PointsStoredEqualPointsEmitted(t *testing.T) {
	db := influx.Start(t)
	config, dir := toyConfig(t, "  count = 50000\n")
	p := startTelegraf(t, agentConfig(db.URL)+pluginSection(t, "inputs", config))
	require.EqualValues(t, 50_000, db.WaitInt("e2e", countToy, 50_000))
	p.stop()
	require.EqualValues(t, 50_000, db.Int("e2e", countToy))
	require.EqualValues(t, 1, db.Int("e2e", `SHOW SERIES EXACT CARDINALITY FROM "toy"`))
	require.EqualValues(t, 49_999, db.Int("e2e", `SELECT max("n") FROM "toy"`))
	require.Len(t, waitMarks(t, dir, "stopped", 1), 1)
	p.requireCleanLog()

	// The runner's own count comes last and agrees.
	require.EqualValues(t, 49_999, db.Int("e2e", `SELECT max("timestamps_adjusted") FROM "agp_runner"`))
	require.Zero(t, db.Int("e2e", `SELECT max("metrics_dropped") FROM "agp_runner"`))
}

// What a plugin emits while it stops is stored too.
func TestLastMetricsAreNotLost(t *testing.T) {
	db := influx.Start(t)
	config, dir := toyConfig(t, "  count = 20000\n")
	keep := writeFile(t, filepath.Join(dir, "keep.conf"),
		fmt.Sprintf("[[processors.toy]]\n  batch = 1000000\n  mark_at = 20000\n  dir = %q\n", dir))
	p := startTelegraf(t, agentConfig(db.URL)+pluginSection(t, "inputs", config)+pluginSection(t, "processors", keep))
	// The processor keeps everything until telegraf stops it.
	eventually(t, "processor has all", func() bool {
		_, err := os.Stat(filepath.Join(dir, "kept"))
		return err == nil
	})
	require.Zero(t, db.Int("e2e", countToy))
	p.stop()
	require.EqualValues(t, 20_000, db.Int("e2e", `SELECT count("n") FROM "toy" WHERE "seen" = 'yes'`))
	p.requireCleanLog()
}

func TestProcessorThroughExecd(t *testing.T) {
	db := influx.Start(t)
	config, _ := toyConfig(t, "  count = 5000\n")
	p := startTelegraf(t, agentConfig(db.URL)+pluginSection(t, "inputs", config)+
		pluginSection(t, "processors", writeFile(t, filepath.Join(t.TempDir(), "p.conf"), "[[processors.toy]]\n  batch = 10\n")))
	require.EqualValues(t, 5_000, db.WaitInt("e2e", `SELECT count("n") FROM "toy" WHERE "seen" = 'yes'`, 5_000))
	p.stop()
	p.requireCleanLog()
}

func TestKilledTelegrafLeavesNoPlugin(t *testing.T) {
	config, dir := toyConfig(t, "  every = \"1ms\"\n")
	p := startTelegraf(t, agentConfig("")+"[[outputs.discard]]\n"+pluginSection(t, "inputs", config))
	pid := waitMarks(t, dir, "started", 1)[0]
	require.True(t, alive(pid))
	p.signal(syscall.SIGKILL)
	begin := time.Now()
	eventually(t, "plugin ends", func() bool { return !alive(pid) })
	require.Less(t, time.Since(begin), 2*time.Second)
	require.Equal(t, []int{pid}, marks(t, dir, "stopped"))
}

func TestKilledPluginIsStartedAgain(t *testing.T) {
	db := influx.Start(t)
	config, dir := toyConfig(t, "  every = \"5ms\"\n")
	p := startTelegraf(t, agentConfig(db.URL)+pluginSection(t, "inputs", config))
	first := waitMarks(t, dir, "started", 1)[0]
	db.WaitInt("e2e", countTick, 10)
	require.NoError(t, syscall.Kill(first, syscall.SIGKILL))
	eventually(t, "second plugin", func() bool { return len(marks(t, dir, "started")) == 2 })
	require.False(t, alive(first))
	i := slices.IndexFunc(marks(t, dir, "started"), func(pid int) bool { return pid != first })
	second := marks(t, dir, "started")[i]
	db.WaitInt("e2e", fmt.Sprintf(`%s WHERE "pid" = '%d'`, countTick, second), 10)
	p.stop()
	require.Equal(t, []int{second}, marks(t, dir, "stopped"))
}

func TestReloadReplacesThePlugin(t *testing.T) {
	db := influx.Start(t)
	config, dir := toyConfig(t, "  every = \"5ms\"\n")
	p := startTelegraf(t, agentConfig(db.URL)+pluginSection(t, "inputs", config))
	first := waitMarks(t, dir, "started", 1)[0]
	p.signal(syscall.SIGHUP)
	waitMarks(t, dir, "started", 2)
	require.Equal(t, []int{first}, marks(t, dir, "stopped"), "the old one is stopped before the new one starts")
	require.False(t, alive(first))
	before := db.WaitInt("e2e", countTick, 1)
	db.WaitInt("e2e", countTick, before+10)
	p.stop()
	require.Len(t, marks(t, dir, "stopped"), 2)
	p.requireCleanLog()
}

// A telegraf that does not read for a while costs no metric and no plugin.
func TestFullPipe(t *testing.T) {
	db := influx.Start(t)
	config, dir := toyConfig(t, "  every = \"1ms\"\n  count = 30000\n  pad = \"a pad that fills the pipe a good deal faster than the plain number would\"\n")
	p := startTelegraf(t, agentConfig(db.URL)+pluginSection(t, "inputs", config))
	pid := waitMarks(t, dir, "started", 1)[0]
	p.signal(syscall.SIGSTOP)
	eventually(t, "full pipe", func() bool { return stdoutIsFull(t, pid) })
	p.signal(syscall.SIGCONT)
	require.EqualValues(t, 30_000, db.WaitInt("e2e", countToy, 30_000))
	before := db.Int("e2e", countTick)
	db.WaitInt("e2e", countTick, before+10)
	p.stop()
	require.Len(t, marks(t, dir, "started"), 1)
	require.Len(t, marks(t, dir, "stopped"), 1)
	p.requireCleanLog()
}

// stdoutIsFull reports whether a process would have to wait if it wrote to the
// pipe that is its standard output.
func stdoutIsFull(t *testing.T, pid int) bool {
	t.Helper()
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/fd/1", pid), unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, 0)
	require.NoError(t, err)
	return n == 0
}

// The same plugin, linked into an agent.
func TestCompiledIn(t *testing.T) {
	db := influx.Start(t)
	dir := t.TempDir()
	path := writeFile(t, filepath.Join(dir, "telegraf.conf"), agentConfig(db.URL)+
		fmt.Sprintf("[[inputs.toy]]\n  dir = %q\n  count = 50000\n  distinct_times = true\n", dir))
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self, path)
	cmd.Env = append(os.Environ(), roleEnv+"=agent")
	p := startProcess(t, cmd)
	require.EqualValues(t, 50_000, db.WaitInt("e2e", countToy, 50_000))
	p.stop()
	require.Len(t, waitMarks(t, dir, "stopped", 1), 1)
	p.requireCleanLog()
}

// Wrong configuration reaches telegraf's log as one clear error.
func TestWrongPluginConfiguration(t *testing.T) {
	config, dir := toyConfig(t, "  evry = \"1ms\"\n")
	p := startTelegraf(t, agentConfig("")+"[[outputs.discard]]\n"+pluginSection(t, "inputs", config))
	eventually(t, "error in the log", func() bool {
		return strings.Contains(p.log.String(), fmt.Sprintf("E! [inputs.execd] %s: line 3: unknown key \"evry\" in [[inputs.toy]]", config))
	})
	require.Empty(t, marks(t, dir, "started"))
}
