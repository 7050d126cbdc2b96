package live

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/control"
	"github.com/agp-net/telegraf-agp/agp/telemetry/agppb"
	"github.com/agp-net/telegraf-agp/tests/live/rig"
	"github.com/agp-net/telegraf-agp/tests/netns"
)

// guarded is a host whose plugin blocks, and a far one that is asked all the time.
type guarded struct {
	*lan
	plugin *rig.Process
	config string
	probe  *rig.Probe
	socket string
}

func guard(t *testing.T, enforce string) *guarded {
	t.Helper()
	return guardOf(t, enforce, "", "")
}

// guardOf is guard with keys of the table itself and of its table "live".
func guardOf(t *testing.T, enforce, keys, live string) *guarded {
	t.Helper()
	netns.NothingLeft(t)
	g := &guarded{lan: newLAN(t, false)}
	dir, err := os.MkdirTemp("", "agp") // a path that is short enough for a socket
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	g.socket = filepath.Join(dir, "s")
	g.config = pluginConfig(t, "mirror", keys,
		fmt.Sprintf("%s  [inputs.agp.enforce]\n    enabled = true\n    socket = %q\n%s", live, g.socket, enforce), "h0")
	g.plugin = startPlugin(t, g.host, g.config)
	g.probe, err = rig.ProbeUDP(g.host, farNet.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { g.probe.Stop() })
	g.answers(t)
	g.up(t)
	return g
}

// answers waits until the far host answers.
func (g *guarded) answers(t *testing.T) {
	t.Helper()
	n := g.probe.Answered()
	eventually(t, "answers", func() bool { return g.probe.Answered() > n+10 })
}

// silent waits until it does not.
func (g *guarded) silent(t *testing.T) {
	t.Helper()
	eventually(t, "silence", func() bool {
		n := g.probe.Answered()
		settle(200 * time.Millisecond)
		return g.probe.Answered() == n
	})
}

// ask gives the plugin a command, as soon as it can be given.
func (g *guarded) ask(t *testing.T, f func(*control.Client) error) {
	t.Helper()
	var err error
	eventually(t, "the plugin obeys", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
		defer cancel()
		var c *control.Client
		if c, err = control.Dial(ctx, g.socket); err != nil {
			return false
		}
		err = f(c)
		return errors.Join(err, c.Close()) == nil
	})
	require.NoError(t, err)
}

func (g *guarded) block(t *testing.T, ttl time.Duration) {
	t.Helper()
	g.ask(t, func(c *control.Client) error { _, err := c.Block(farNet.Addr().String(), ttl, ""); return err })
}

func (g *guarded) up(t *testing.T) {
	t.Helper()
	g.ask(t, func(c *control.Client) error {
		st, err := c.Status()
		if err == nil && !st.GetEngineUp() {
			err = errors.New("no engine")
		}
		return err
	})
}

// has says whether a target of agp_steering has packets.
func (g *guarded) has(target string) bool {
	for line := range strings.Lines(g.plugin.Out()) {
		if strings.HasPrefix(line, "agp_steering,interface=h0,target="+target+" ") && !strings.Contains(line, "packets=0i") {
			return true
		}
	}
	return false
}

// counted waits until a target has packets.
func (g *guarded) counted(t *testing.T, target string) {
	t.Helper()
	eventually(t, target, func() bool {
		require.NoError(t, g.plugin.Gather())
		settle(50 * time.Millisecond)
		return g.has(target)
	})
}

// TestDryRunCountsAndDropsNothing is the default.
func TestDryRunCountsAndDropsNothing(t *testing.T) {
	g := guard(t, "")
	g.block(t, 0)
	g.counted(t, "would_block")
	g.answers(t)
	require.True(t, g.has("to_engine"))
	require.False(t, g.has("blocked"))
}

// TestRuleIsInForceUntilItEndsAndInEveryEngine: taken away, expired, after kill -9 of the
// engine, and gone with the plugin.
func TestRuleIsInForceUntilItEndsAndInEveryEngine(t *testing.T) {
	g := guard(t, "    dry_run = false\n")
	g.block(t, time.Hour)
	g.silent(t)
	g.counted(t, "blocked")
	g.ask(t, func(c *control.Client) error { _, err := c.Unblock(farNet.Addr().String()); return err })
	g.answers(t)

	g.block(t, 2*time.Second)
	g.silent(t)
	g.answers(t) // it has expired

	g.block(t, time.Hour)
	g.silent(t)
	pid := g.plugin.Engine()
	require.NotZero(t, pid)
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	g.answers(t) // steering fails open
	g.silent(t)  // the next engine has the rule
	g.plugin.Kill()
	g.answers(t)
}

// TestRulesOutliveThePluginOnlyIfTheyPersist: kill -9 of the plugin opens the way in any case.
func TestRulesOutliveThePluginOnlyIfTheyPersist(t *testing.T) {
	for _, persist := range []bool{true, false} {
		t.Run(fmt.Sprintf("persist = %v", persist), func(t *testing.T) {
			g := guard(t, fmt.Sprintf("    dry_run = false\n    persist = %v\n    state_file = %q\n", persist, filepath.Join(t.TempDir(), "enforce.state")))
			g.block(t, time.Hour)
			g.silent(t)
			begin := time.Now()
			g.plugin.Kill()
			g.answers(t)
			require.Less(t, time.Since(begin), passWithin)

			g.plugin = startPlugin(t, g.host, g.config)
			g.up(t)
			if persist {
				g.silent(t)
				return
			}
			settle(time.Second)
			g.answers(t)
		})
	}
}

// TestOwnAddressIsNeverBlocked, however the prefix is written.
func TestOwnAddressIsNeverBlocked(t *testing.T) {
	g := guard(t, "    dry_run = false\n")
	for _, prefix := range []string{hostNet.Addr().String(), hostNet.Masked().String()} {
		g.ask(t, func(c *control.Client) error {
			_, err := c.Block(prefix, 0, "")
			if !errors.Is(err, control.ErrRefused) || !strings.Contains(err.Error(), "own address of h0") {
				return fmt.Errorf("not refused: %w", err)
			}
			return nil
		})
	}
	g.answers(t)
}

// TestAlertBlocksItsSource: the far host tries ports and is cut off.
func TestAlertBlocksItsSource(t *testing.T) {
	g := guard(t, "    dry_run = false\n    kinds = [\"port_scan\"]\n    unconfirmed = true\n")
	require.NoError(t, g.far.Do(func() error {
		for port := range uint16(40) {
			c, err := net.DialTimeout("tcp", netip.AddrPortFrom(hostNet.Addr(), 2000+port).String(), time.Second)
			if err == nil {
				return errors.Join(c.Close(), errors.New("a port is open"))
			}
		}
		return nil
	}))
	g.silent(t)
	g.ask(t, func(c *control.Client) error {
		var rules []string
		_, err := c.List(func(r *agppb.ControlRule) error {
			rules = append(rules, r.GetPrefix()+" by "+r.GetBy())
			return nil
		})
		require.Equal(t, []string{farNet.Addr().String() + "/32 by alert"}, rules)
		return err
	})
}
