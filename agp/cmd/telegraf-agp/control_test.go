package main

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/influxdata/telegraf/testutil"
	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/control"
	"github.com/agp-net/telegraf-agp/agp/enforce"
)

// serveControl is the plugin's side of the commands.
func serveControl(t *testing.T, enforced, up bool) (socket string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "agp")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	m, err := enforce.New(enforce.Config{
		Log: testutil.Logger{}, Enforce: enforced,
		Local: func() ([]enforce.Allowed, error) {
			return []enforce.Allowed{{Prefix: netip.MustParsePrefix("192.0.2.1/32"), Why: "default gateway"}}, nil
		},
	})
	require.NoError(t, err)
	m.Tick()
	s, err := control.Listen(control.Config{Path: filepath.Join(dir, "s"), Enforcer: m, EngineUp: func() bool { return up }, Log: testutil.Logger{}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return filepath.Join(dir, "s")
}

func TestBlockListAndUnblock(t *testing.T) {
	socket := serveControl(t, false, true)
	out, log, code := call(t, "block", "198.51.100.7", "--ttl", "10m", "--reason", "scans us", "--socket", socket)
	require.Zero(t, code, log)
	require.Equal(t, "198.51.100.7 blocked for 10m0s (dry run: only counted)\n", out)
	out, log, code = call(t, "rate-limit", "--socket", socket, "2001:db8:7::/48", "100")
	require.Zero(t, code, log)
	require.Equal(t, "2001:db8:7::/48 limited to 100 packets/s for 10m0s (dry run: only counted)\n", out)

	out, log, code = call(t, "blocked", "--socket", socket)
	require.Zero(t, code, log)
	me := fmt.Sprintf("uid %d", os.Getuid())
	lines := strings.Split(strings.TrimSpace(out), "\n")
	require.Len(t, lines, 3)
	require.Regexp(t, `^PREFIX +ACTION +EXPIRES IN +BY +REASON$`, lines[0])
	require.Regexp(t, `^198\.51\.100\.7 +block +(10m0s|9m\d+s) +`+me+` +scans us$`, lines[1])
	require.Regexp(t, `^2001:db8:7::/48 +100 packets/s +(10m0s|9m\d+s) +`+me, lines[2])
	require.Equal(t, "2 of 65536 rules, dry run: only counted\n", log)

	out, _, code = call(t, "blocked", "--output", "json", "--socket", socket)
	require.Zero(t, code)
	var rules []blockedRule
	for _, line := range strings.Split(strings.TrimSpace(out), "\n") {
		var r blockedRule
		require.NoError(t, json.Unmarshal([]byte(line), &r))
		rules = append(rules, r)
	}
	require.Equal(t, 10*time.Minute, rules[0].Expires.Sub(rules[0].Created))
	rules[0].Created, rules[0].Expires = time.Time{}, time.Time{}
	require.Equal(t, blockedRule{Prefix: "198.51.100.7/32", Action: "block", By: me, Reason: "scans us", DryRun: true}, rules[0])
	require.Equal(t, "rate_limit", rules[1].Action)
	require.EqualValues(t, 100, rules[1].PacketsPerSecond)

	out, log, code = call(t, "unblock", "198.51.100.7", "--socket="+socket)
	require.Zero(t, code, log)
	require.Equal(t, "unblocked 198.51.100.7\n", out)
	_, log, code = call(t, "unblock", "198.51.100.7", "--socket="+socket)
	require.Equal(t, 1, code)
	require.Equal(t, "unblock: refused: no such rule: 198.51.100.7\n", log)
	out, _, code = call(t, "blocked", "--allowed", "--socket", socket)
	require.Zero(t, code)
	require.Equal(t, "192.0.2.1  default gateway\n", out)
	out, _, code = call(t, "blocked", "--allowed", "--output", "json", "--socket", socket)
	require.Zero(t, code)
	require.JSONEq(t, `{"prefix": "192.0.2.1/32", "why": "default gateway"}`, out)
}

func TestBlockSaysWhetherItIsInForce(t *testing.T) {
	out, _, code := call(t, "block", "198.51.100.7", "--socket", serveControl(t, true, true))
	require.Zero(t, code)
	require.Equal(t, "198.51.100.7 blocked for 10m0s\n", out)
	out, _, code = call(t, "block", "198.51.100.7", "--socket", serveControl(t, true, false))
	require.Zero(t, code)
	require.Equal(t, "198.51.100.7 blocked for 10m0s (when the engine is up again)\n", out)
}

func TestRefusedBlocksAreErrorsThatSayWhy(t *testing.T) {
	socket := serveControl(t, false, true)
	for want, args := range map[string][]string{
		"block: refused: conflicts with the allow list: 192.0.2.0/24 contains 192.0.2.1: default gateway": {"block", "192.0.2.0/24"},
		"block: refused: never a host to block: 127.0.0.1/32 is loopback":                                 {"block", "127.0.0.1"},
		"block: refused: prefix is too wide to block: 0.0.0.0/0":                                          {"block", "0.0.0.0/0"},
		`block: refused: not an address or prefix: "example.org"`:                                         {"block", "example.org"},
		"block: refused: lifetime of a rule is out of range: 1ms":                                         {"block", "198.51.100.7", "--ttl", "1ms"},
		"rate-limit: refused: rate is out of range: 0 packets per second":                                 {"rate-limit", "198.51.100.7", "0"},
		"unblock: refused: no such rule: 198.51.100.9":                                                    {"unblock", "198.51.100.9"},
	} {
		out, log, code := call(t, append(args, "--socket", socket)...)
		require.Equal(t, 1, code, want)
		require.Empty(t, out)
		require.Contains(t, log, want)
	}
}

func TestControlCommandsWithWrongArgumentsPrintTheUsage(t *testing.T) {
	socket := serveControl(t, false, true)
	for want, args := range map[string][]string{
		"usage: telegraf-agp block [options] PREFIX":              {"block"},
		"usage: telegraf-agp unblock [options] PREFIX":            {"unblock", "a", "b"},
		"usage: telegraf-agp rate-limit [options] PREFIX PPS":     {"rate-limit", "198.51.100.7"},
		"usage: telegraf-agp blocked [options]":                   {"blocked", "198.51.100.7"},
		"block: flag provided but not defined: -tll":              {"block", "198.51.100.7", "--tll", "10m"},
		`block: invalid value "soon" for flag -ttl: parse error`:  {"block", "--ttl", "soon", "198.51.100.7"},
		"block: ttl = -1m0s, want more than 0":                    {"block", "198.51.100.7", "--ttl", "-1m"},
		`PPS = "many", want a whole number of packets per second`: {"rate-limit", "198.51.100.7", "many", "--socket", socket},
		`blocked: output = "xml", want table or json`:             {"blocked", "--output", "xml", "--socket", socket},
	} {
		_, log, code := call(t, args...)
		require.Equal(t, 2, code, want)
		require.Contains(t, log, want)
	}
	out, _, code := call(t, "block", "--help")
	require.Zero(t, code)
	require.Contains(t, out, "--ttl")
	_, log, code := call(t, "block", "--socket", socket, "--", "-7")
	require.Equal(t, 1, code)
	require.Contains(t, log, `not an address or prefix: "-7"`, "what follows -- is no option")
}

func TestControlCommandsWithoutAPluginSaySo(t *testing.T) {
	for _, args := range [][]string{{"block", "198.51.100.7"}, {"unblock", "198.51.100.7"}, {"rate-limit", "198.51.100.7", "5"}, {"blocked"}} {
		_, log, code := call(t, append(args, "--socket", "/does/not/exist")...)
		require.Equal(t, 1, code)
		require.Contains(t, log, args[0]+": "+control.ErrNoServer.Error()+": dial unix /does/not/exist")
	}
}

// enforcing starts the plugin with enforcement on a capture at its pace.
func enforcing(t *testing.T, dir string, persist bool) *exec.Cmd {
	t.Helper()
	conf := filepath.Join(dir, "agp.conf")
	require.NoError(t, os.WriteFile(conf, fmt.Appendf(nil, `[[inputs.agp]]
  files = [%q]
  models = ["none"]
  speed = 1.0
  [inputs.agp.enforce]
    enabled = true
    persist = %t
    state_file = %q
    socket = %q
`, capturePackets(t, 1000), persist, filepath.Join(dir, "state"), filepath.Join(dir, "s")), 0o600))
	cmd := program("run", "--config", conf)
	_, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd
}

// list waits for the plugin and returns its rules.
func list(t *testing.T, dir string) []string {
	t.Helper()
	var out string
	require.Eventually(t, func() bool {
		o, _, code := call(t, "blocked", "--output", "json", "--socket", filepath.Join(dir, "s"))
		out = o
		return code == 0
	}, 10*time.Second, 10*time.Millisecond)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if lines[0] == "" {
		return nil
	}
	return lines
}

// TestKilledPluginLeavesItsRulesOnlyWithPersist: and the socket that it left behind does
// not keep the next one from listening.
func TestKilledPluginLeavesItsRulesOnlyWithPersist(t *testing.T) {
	for _, persist := range []bool{false, true} {
		t.Run(fmt.Sprintf("persist %t", persist), func(t *testing.T) {
			dir, err := os.MkdirTemp("", "agp")
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
			cmd := enforcing(t, dir, persist)
			require.Empty(t, list(t, dir))
			require.Eventually(t, func() bool {
				_, _, code := call(t, "block", "198.51.100.7", "--socket", filepath.Join(dir, "s"))
				return code == 0
			}, 10*time.Second, 10*time.Millisecond, "as soon as the own addresses are known")
			if persist {
				require.Eventually(t, func() bool {
					data, err := os.ReadFile(filepath.Join(dir, "state"))
					return err == nil && strings.Contains(string(data), "198.51.100.7")
				}, 10*time.Second, 10*time.Millisecond)
			}
			require.NoError(t, cmd.Process.Kill())
			require.Error(t, cmd.Wait())
			_, log, code := call(t, "blocked", "--socket", filepath.Join(dir, "s"))
			require.Equal(t, 1, code)
			require.Contains(t, log, control.ErrNoServer.Error())

			enforcing(t, dir, persist)
			rules := list(t, dir)
			if !persist {
				require.Empty(t, rules)
				require.NoFileExists(t, filepath.Join(dir, "state"))
				return
			}
			require.Len(t, rules, 1)
			require.Contains(t, rules[0], `"prefix":"198.51.100.7/32"`)
		})
	}
}
