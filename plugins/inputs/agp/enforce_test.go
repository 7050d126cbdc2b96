package agp

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/influxdata/telegraf"
	"github.com/influxdata/telegraf/config"
	"github.com/influxdata/telegraf/testutil"
	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/control"
	"github.com/agp-net/telegraf-agp/agp/enforce"
	"github.com/agp-net/telegraf-agp/agp/steer"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
	"github.com/agp-net/telegraf-agp/agp/telemetry/agppb"
	"github.com/agp-net/telegraf-agp/plugins/runner"
)

// enforcing returns a plugin with enforcement and its socket in a short path.
func enforcing(t *testing.T) *AGP {
	t.Helper()
	a := plugin(t)
	dir, err := os.MkdirTemp("", "agp")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	a.Enforce.Enabled = true
	a.Enforce.Socket = filepath.Join(dir, "s")
	a.Enforce.StateFile = filepath.Join(dir, "state")
	return a
}

func TestBadEnforcementNamesKeyValueAndAllowed(t *testing.T) {
	for want, spoil := range map[string]func(*AGP){
		`enforce.dry_run = false, allowed: true with source = "pcap"`:  func(a *AGP) { a.Enforce.DryRun = false },
		`enforce.ttl = 0s, allowed: 1s to 8760h0m0s`:                   func(a *AGP) { a.Enforce.TTL = 0 },
		`enforce.ttl = 8761h0m0s, allowed: 1s`:                         func(a *AGP) { a.Enforce.TTL = config.Duration(8761 * time.Hour) },
		`enforce.max_entries = 0, allowed: 1 to 16777216`:              func(a *AGP) { a.Enforce.MaxEntries = 0 },
		`enforce.allow[1]: not an address or prefix: "x"`:              func(a *AGP) { a.Enforce.Allow = []string{"10.0.0.0/8", "x"} },
		`enforce.protect[0]: not a host name, host:port or URL: "a b"`: func(a *AGP) { a.Enforce.Protect = []string{"a b"} },
		`enforce.kinds: kind of alert: "syn_flood" never blocks`:       func(a *AGP) { a.Enforce.Kinds = []string{"syn_flood"} },
		`enforce.kinds: kind of alert: "scan" does not exist`:          func(a *AGP) { a.Enforce.Kinds = []string{"scan"} },
		`"port_scan": whoever forges addresses chooses who is blocked; allowed with enforce.unconfirmed = true`: func(a *AGP) {
			a.Source, a.Files, a.Interfaces, a.Enforce.Kinds = "mirror", nil, []string{"lo"}, []string{"brute_force", "port_scan"}
		},
		`enforce.min_count = -1, allowed: 0 to 1073741824`:        func(a *AGP) { a.Enforce.MinCount = -1 },
		`enforce.min_score = NaN, allowed: 0 to 1`:                func(a *AGP) { a.Enforce.MinScore = math.NaN() },
		`enforce.max_per_minute = 0, allowed: 1 to 100000`:        func(a *AGP) { a.Enforce.MaxPerMinute = 0 },
		`enforce.state_file = "state", allowed: an absolute path`: func(a *AGP) { a.Enforce.StateFile = "state" },
		`enforce.socket = "s", allowed: an absolute path`:         func(a *AGP) { a.Enforce.Socket = "s" },
		`at most 95 bytes, or ""`:                                 func(a *AGP) { a.Enforce.Socket = "/" + strings.Repeat("x", 95) },
		`enforce.max_entries = 65536, allowed: at most live.max_blocked, 1000`: func(a *AGP) {
			a.Source, a.Files, a.Interfaces, a.Live.MaxBlocked = "mirror", nil, []string{"lo"}, 1000
		},
	} {
		a := enforcing(t)
		spoil(a)
		err := a.Init()
		require.ErrorIs(t, err, ErrConfig, want)
		require.ErrorContains(t, err, want)
	}
	a := enforcing(t)
	a.Source, a.Files, a.Interfaces = "mirror", nil, []string{"lo"}
	a.Enforce.DryRun = false
	require.NoError(t, a.Init())
	a.Enforce.Kinds, a.Enforce.Unconfirmed = []string{"port_scan"}, true
	require.NoError(t, a.Init())
}

func TestUnknownKeyOfEnforcementIsAnError(t *testing.T) {
	code, log := runWith(t, "[[inputs.agp]]\n  files = [\"a.pcap\"]\n[inputs.agp.enforce]\n  dryrun = true\n")
	require.Equal(t, runner.ExitConfig, code)
	require.Contains(t, log, "dryrun")
}

func TestEnforcementIsOffByDefaultAndDryWhenSwitchedOn(t *testing.T) {
	a := New()
	require.False(t, a.Enforce.Enabled)
	require.True(t, a.Enforce.DryRun)
	require.Equal(t, []string{"brute_force"}, a.Enforce.Kinds, "the kind whose sources cannot be forged")
}

// steeringPoint returns the figures of the rule list as they are now.
func steeringPoint(t *testing.T, a *AGP) map[string]any {
	t.Helper()
	var acc testutil.Accumulator
	require.NoError(t, a.Gather(&acc))
	for _, m := range acc.GetTelegrafMetrics() {
		if m.Name() == "agp_steering" && m.Tags()["target"] == enforcementTarget {
			require.Equal(t, "pcap", m.Tags()["interface"])
			return m.Fields()
		}
	}
	return nil
}

func dialPlugin(t *testing.T, a *AGP) *control.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	c, err := control.Dial(ctx, a.Enforce.Socket)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestCommandsAndAlertsReachTheRuleListAndItsMetric(t *testing.T) {
	t.Setenv(engineEnv, "1")
	a := enforcing(t)
	a.Enforce.Kinds = []string{"port_scan"}
	a.Enforce.Allow = []string{"203.0.113.0/24"}
	require.NoError(t, a.Init())
	var acc testutil.Accumulator
	require.NoError(t, a.Start(&acc))
	defer a.Stop()
	c := dialPlugin(t, a)
	wait(t, "own addresses are known", func() bool { _, err := c.Block("198.51.100.7", time.Minute, "by hand"); return err == nil })
	_, err := c.RateLimit("198.51.100.8", 5, 0, "")
	require.NoError(t, err)
	_, err = c.Block("203.0.113.9", 0, "")
	require.ErrorContains(t, err, "203.0.113.0/24: configured")

	h := handler{a.converter, &acc, a.enforced, a.view}
	h.Alert(&telemetry.Alert{Kind: "port_scan", Src: "198.51.100.9", Count: 20})
	h.Alert(&telemetry.Alert{Kind: "host_scan", Src: "198.51.100.10", Count: 20})
	got := map[string]string{}
	_, err = c.List(func(r *agppb.ControlRule) error { got[r.GetPrefix()] = r.GetBy(); return nil })
	require.NoError(t, err)
	me := fmt.Sprintf("uid %d", os.Getuid())
	require.Equal(t, map[string]string{"198.51.100.7/32": me, "198.51.100.8/32": me, "198.51.100.9/32": "alert"}, got)

	f := steeringPoint(t, a)
	require.Equal(t, true, f["dry_run"])
	require.Equal(t, int64(2), f["blocked_sources"])
	require.Equal(t, int64(1), f["rate_limited_sources"])
	require.Equal(t, int64(1), f["refused_allowed"])
	wait(t, "engine", func() bool { st, err := c.Status(); return err == nil && st.GetEngineUp() })

	a.Stop()
	require.NoFileExists(t, a.Enforce.Socket)
	require.NoFileExists(t, a.Enforce.StateFile)
	require.NoError(t, a.Start(&acc), "again")
	require.Zero(t, steeringPoint(t, a)["blocked_sources"], "without persist the rules have ended")
}

func TestEveryEngineGetsTheRules(t *testing.T) {
	t.Setenv(engineEnv, "1")
	a := enforcing(t)
	a.Source, a.Files, a.Interfaces = "mirror", nil, []string{"lo"} // the engine of the test opens nothing
	require.NoError(t, a.Init())
	var acc testutil.Accumulator
	require.NoError(t, a.Start(&acc))
	defer a.Stop()
	rules := func() any {
		acc.ClearMetrics()
		require.NoError(t, a.Gather(&acc))
		for _, m := range acc.GetTelegrafMetrics() {
			if m.Name() == "agp_steering" && m.Tags()["target"] == "would_block" {
				return m.Fields()["rules"]
			}
		}
		return nil
	}
	c := dialPlugin(t, a)
	wait(t, "own addresses are known", func() bool { _, err := c.Block("198.51.100.7", 0, ""); return err == nil })
	_, err := c.Block("198.51.100.8", 0, "")
	require.NoError(t, err)
	wait(t, "both rules", func() bool { return rules() == int64(2) })
	_, err = c.Unblock("198.51.100.8")
	require.NoError(t, err)
	wait(t, "one rule", func() bool { return rules() == int64(1) })
	pid := a.supervisor.Status().Pid
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	wait(t, "the rules went with their engine", func() bool { return rules() == int64(0) })
	wait(t, "the next one has them", func() bool { return rules() == int64(1) })
}

func TestPersistKeepsRulesBeyondThePlugin(t *testing.T) {
	t.Setenv(engineEnv, "1")
	a := enforcing(t)
	a.Enforce.Persist = true
	require.NoError(t, a.Init())
	var acc testutil.Accumulator
	require.NoError(t, a.Start(&acc))
	c := dialPlugin(t, a)
	wait(t, "own addresses are known", func() bool { _, err := c.Block("198.51.100.7", time.Hour, ""); return err == nil })
	a.Stop()
	require.NoError(t, a.Start(&acc))
	defer a.Stop()
	require.Equal(t, int64(1), steeringPoint(t, a)["blocked_sources"])
}

func TestSocketThatCannotBeMadeDoesNotKeepThePluginFromStarting(t *testing.T) {
	t.Setenv(engineEnv, "1")
	a := enforcing(t)
	log := &testutil.CaptureLogger{}
	a.Log = log
	require.NoError(t, os.WriteFile(a.Enforce.Socket, nil, 0o600))
	require.NoError(t, a.Init())
	var acc testutil.Accumulator
	require.NoError(t, a.Start(&acc))
	require.NotNil(t, steeringPoint(t, a))
	a.Stop()
	require.FileExists(t, a.Enforce.Socket, "it is not ours")
	require.Len(t, log.Errors(), 1)
	require.Contains(t, log.Errors()[0], control.ErrNotSocket.Error())
}

func TestWithoutEnforcementThereIsNoSocketAndNoPoint(t *testing.T) {
	t.Setenv(engineEnv, "1")
	a := enforcing(t)
	a.Enforce.Enabled = false
	require.NoError(t, a.Init())
	var acc testutil.Accumulator
	require.NoError(t, a.Start(&acc))
	defer a.Stop()
	require.NoFileExists(t, a.Enforce.Socket)
	require.Nil(t, steeringPoint(t, a))
}

// shares returns the field share of agp_steering by interface and target.
func shares(metrics []telegraf.Metric) map[string]any {
	out := map[string]any{}
	for _, m := range metrics {
		if m.Name() == "agp_steering" {
			out[m.Tags()["interface"]+" "+m.Tags()["target"]] = m.Fields()["share"]
		}
	}
	return out
}

func TestShareIsOfTheFramesOfAnInterfaceSinceTheLastPoint(t *testing.T) {
	row := func(iface, target string, packets uint64) telemetry.SteeringRow {
		return telemetry.SteeringRow{Interface: iface, Target: target, Packets: packets, Bytes: 100 * packets, Rules: 3}
	}
	c := NewConverter(ConverterOptions{Interface: "eth0"})
	gather := func(rows ...telemetry.SteeringRow) []telegraf.Metric {
		var acc testutil.Accumulator
		c.Metrics(&telemetry.Snapshot{Steering: rows}, running(), time.Now(), &acc)
		return acc.GetTelegrafMetrics()
	}
	metrics := gather(row("eth0", "engine", 75), row("eth0", "blocked", 25), row("eth0", "would_block", 50), row("eth0", "pass", 75), row("eth1", "engine", 10))
	require.Equal(t, map[string]any{"eth0 engine": 0.75, "eth0 blocked": 0.25, "eth0 would_block": 0.5, "eth0 pass": 0.75, "eth1 engine": 1.0}, shares(metrics))
	require.Equal(t, map[string]any{"packets": int64(75), "bytes": int64(7500), "rules": int64(3), "share": 0.75}, metrics[0].Fields())
	require.Equal(t, map[string]any{"eth0 engine": 0.2, "eth0 blocked": 0.8, "eth1 engine": nil},
		shares(gather(row("eth0", "engine", 85), row("eth0", "blocked", 65), row("eth1", "engine", 10))), "since the last point, absent without frames")
	require.Equal(t, map[string]any{"eth0 engine": 1.0, "eth0 blocked": 0.0},
		shares(gather(row("eth0", "engine", 95), row("eth0", "blocked", 5))), "a counter that stepped back is no burst")
}

// Shares of what frames can have besides their fate do not add up to 1.
func TestRemarksAreTheCountersThatAreNoFates(t *testing.T) {
	for i := range reflect.TypeFor[steer.Counters]().NumField() {
		var c steer.Counters
		reflect.ValueOf(&c).Elem().Field(i).Set(reflect.ValueOf(steer.Count{Frames: 1}))
		c.Each(func(name string, n steer.Count) {
			if n.Frames > 0 {
				require.Equal(t, c.Seen().Frames == 0, remarks[name], name)
			}
		})
	}
}

func TestFiguresOfTheRuleListBecomeFields(t *testing.T) {
	m := collect(ConverterOptions{}, func(c *Converter, acc telegraf.Accumulator) {
		c.Enforcement(enforce.Stats{
			DryRun: true, Blocked: 1, RateLimited: 2, Added: 3, Expired: 4, RefusedAllowed: 5, RefusedFull: 6, RefusedRate: 7, RefusedOther: 8,
			RefusedUnconfirmed: 9,
		}, time.Now(), acc)
	})
	require.Len(t, m, 1)
	require.Equal(t, map[string]string{"interface": "eth0", "target": "enforcement"}, m[0].Tags())
	require.Equal(t, map[string]any{
		"dry_run": true, "blocked_sources": int64(1), "rate_limited_sources": int64(2), "added": int64(3), "expired": int64(4),
		"refused_allowed": int64(5), "refused_full": int64(6), "refused_rate": int64(7), "refused_other": int64(8),
		"refused_unconfirmed": int64(9),
	}, m[0].Fields())
}

func TestAllowAndProtectAreReadAsTheyAreWritten(t *testing.T) {
	e := EnforceConfig{Allow: []string{"10.0.0.0/8", "192.0.2.7"}, Protect: []string{"http://influx.example:8086", "db:5432"}}
	allow, err := e.allow()
	require.NoError(t, err)
	require.Equal(t, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("192.0.2.7/32")}, allow)
	protect, err := e.protect()
	require.NoError(t, err)
	require.Equal(t, []string{"influx.example", "db"}, protect)
}
