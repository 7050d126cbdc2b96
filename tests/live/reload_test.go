package live

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/agp-net/telegraf-agp/tests/e2e/telegrafbin"
	"github.com/agp-net/telegraf-agp/tests/live/rig"
)

// SIGHUP makes telegraf end its plugins and start them with what the files say now.
func TestTelegrafReloadsWhileItCaptures(t *testing.T) {
	stock, err := telegrafbin.Path(t.Context(), os.Stderr)
	require.NoError(t, err)
	h := newHost(t, 2, 0)
	mirror := pluginConfig(t, "mirror", "", "    promiscuous = true\n", "h0")
	divert := pluginConfig(t, "divert", "  interface = \"diverted\"\n", "    channels = 1\n", "h0")
	dir := t.TempDir()
	now, file := filepath.Join(dir, "agp.conf"), filepath.Join(dir, "telegraf.conf")
	use := func(config string) {
		require.NoError(t, os.RemoveAll(now))
		require.NoError(t, os.Symlink(config, now))
	}
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `[agent]
  interval = "200ms"
  flush_interval = "200ms"
  omit_hostname = true
[[outputs.file]]
  files = ["stdout"]
[[inputs.execd]]
  command = [%q, "run", "--config", %q]
  signal = "STDIN"
  restart_delay = "1h"
  data_format = "influx"
`, agpBinary(t), now), 0o600))
	use(mirror)
	p, err := rig.Run(h.host, exec.Command(stock, "--config", file)) //nolint:gosec // the stock telegraf
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = p.Stop()
		if t.Failed() {
			t.Logf("log of telegraf:\n%s", p.Log())
		}
	})
	// with waits until the engine has the interface in one way, alone.
	with := func(program string) (pid int) {
		eventually(t, program, func() bool {
			list, err := rig.Programs(h.host, "h0")
			pid = p.Engine()
			return err == nil && len(list) > 0 && strings.HasPrefix(strings.Join(list, ","), program) && pid != 0
		})
		list, err := rig.Programs(h.host, "h0")
		require.NoError(t, err)
		require.Equal(t, program == "xdp", len(list) == 1, list)
		captures(t, h, p, "h0")
		return pid
	}
	engine := with("egress")
	during := h.settings(t)
	require.Contains(t, during, "promiscuous 1")
	for range 2 {
		use(divert)
		p.Signal(syscall.SIGHUP)
		next := with("xdp")
		require.NotEqual(t, engine, next)
		require.False(t, rig.Exists(engine))
		require.Contains(t, p.Out(), "agp_engine,interface=diverted,")
		require.Contains(t, h.settings(t), "promiscuous 0")
		require.Contains(t, h.settings(t), "RX:1 ")

		use(mirror)
		p.Signal(syscall.SIGHUP)
		engine = with("egress")
		require.NotEqual(t, engine, next)
		require.False(t, rig.Exists(next))
	}
	for _, line := range complaints(p) {
		require.NotContains(t, line, "h0", "each plugin has given the port back before the next one takes it")
	}
	family := rig.Descendants(p.Pid())
	require.NoError(t, p.Stop())
	for _, pid := range family {
		require.False(t, rig.Exists(pid))
	}
	h.requireUntouched(t)
	for _, c := range []string{mirror, divert} {
		left, err := os.ReadDir(filepath.Join(filepath.Dir(c), "state"))
		require.NoError(t, err)
		require.Empty(t, left)
	}
}

// A stopped engine cannot see that its plugin was killed. The next plugin lets it go on, and
// with that end.
func TestStoppedEngineWhosePluginWasKilledGivesThePortBack(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			h := newHost(t, 2, 0)
			config := pluginConfig(t, kind, "", "    promiscuous = true\n", "h0")
			p := startPlugin(t, h.host, config)
			attached(t, h.host, "h0")
			captures(t, h, p, "h0")
			engine := p.Engine()
			require.NoError(t, syscall.Kill(engine, syscall.SIGSTOP))
			t.Cleanup(func() {
				if t.Failed() {
					_ = syscall.Kill(engine, syscall.SIGKILL)
				}
			})
			// Orphans come to this process: where they leave the session, the kernel continues them.
			require.NoError(t, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
			t.Cleanup(func() { require.NoError(t, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)) })
			p.Kill()
			settle(time.Second)
			require.True(t, rig.Exists(engine), "it cannot end")

			next := startPlugin(t, h.host, config)
			captures(t, h, next, "h0")
			var how unix.WaitStatus
			pid, err := unix.Wait4(engine, &how, unix.WNOHANG, nil)
			require.NoError(t, err)
			require.Equal(t, engine, pid, "it has ended")
			require.True(t, how.Exited(), "in order: %v", how)
			require.NoError(t, next.Stop())
			h.requireUntouched(t)
			left, err := filepath.Glob(filepath.Join(filepath.Dir(config), "state", "*"))
			require.NoError(t, err)
			require.Empty(t, left)
		})
	}
}
