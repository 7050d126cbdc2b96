package enforce

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/detect"
	"github.com/agp-net/telegraf-agp/agp/options"
	"github.com/agp-net/telegraf-agp/agp/steer"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
	"github.com/agp-net/telegraf-agp/agp/telemetry/agppb"
)

type logLines struct {
	mu    sync.Mutex
	lines []string
}

func (l *logLines) add(level, format string, args []any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, level+" "+fmt.Sprintf(format, args...))
}

func (l *logLines) Errorf(format string, args ...any) { l.add("E!", format, args) }
func (l *logLines) Warnf(format string, args ...any)  { l.add("W!", format, args) }
func (l *logLines) Infof(format string, args ...any)  { l.add("I!", format, args) }
func (l *logLines) Debugf(format string, args ...any) { l.add("D!", format, args) }

func (l *logLines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "\n")
}

// engine is a Sender that obeys like the real one.
type engine struct {
	mu    sync.Mutex
	up    bool
	rules map[string]*agppb.SteerRule
	sent  int // commands
	most  int // rules in one command

	failing func() // called when a command fails
}

var errNoEngine = errors.New("no engine")

func (e *engine) Send(c *agppb.Command) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.up {
		if e.failing != nil {
			e.failing()
		}
		return errNoEngine
	}
	e.sent++
	r := c.GetSteerRules()
	e.most = max(e.most, len(r.GetAdd())+len(r.GetRemove()))
	if r.GetClear() {
		clear(e.rules)
	}
	for _, p := range r.GetRemove() {
		delete(e.rules, p)
	}
	for _, a := range r.GetAdd() {
		e.rules[a.GetPrefix()] = a
	}
	return nil
}

func (e *engine) prefixes() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	list := []string{}
	for p := range e.rules {
		list = append(list, p)
	}
	return list
}

func (e *engine) rule(p string) *agppb.SteerRule {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.rules[p]
}

// world is what a manager under test sees.
type world struct {
	*Manager
	t      *testing.T
	now    time.Time
	log    *logLines
	engine *engine
	local  []Allowed
	failed error // of Local
	dns    map[string][]netip.Addr
}

func newWorld(t *testing.T, change func(*Config)) *world {
	t.Helper()
	w := &world{
		t: t, now: time.Unix(1_700_000_000, 0), log: &logLines{}, dns: map[string][]netip.Addr{},
		engine: &engine{up: true, rules: map[string]*agppb.SteerRule{}},
		local:  []Allowed{{netip.MustParsePrefix("192.0.2.1/32"), "default gateway"}, {netip.MustParsePrefix("2001:db8::1/128"), "own address of eth0"}},
	}
	cfg := Config{
		Log: w.log, Sender: w.engine,
		Now:   func() time.Time { return w.now },
		Local: func() ([]Allowed, error) { return w.local, w.failed },
		Lookup: func(_ context.Context, name string) ([]netip.Addr, error) {
			if a := w.dns[name]; len(a) > 0 {
				return a, nil
			}
			return nil, errors.New("no such host")
		},
	}
	if change != nil {
		change(&cfg)
	}
	m, err := New(cfg)
	require.NoError(t, err)
	w.Manager = m
	m.Ready(true)
	m.Tick()
	return w
}

func (w *world) block(prefix string) error {
	_, err := w.Block(pfx(w.t, prefix), 0, "test", "uid 0")
	return err
}

func (w *world) listed() []string {
	list := []string{}
	for _, r := range w.List() {
		list = append(list, r.Prefix.String())
	}
	return list
}

func pfx(t *testing.T, s string) netip.Prefix {
	t.Helper()
	p, err := ParsePrefix(s)
	require.NoError(t, err)
	return p
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func TestPrefixesAreReadStrictly(t *testing.T) {
	for in, want := range map[string]string{
		"198.51.100.7": "198.51.100.7/32", "198.51.100.0/24": "198.51.100.0/24", "2001:db8::/32": "2001:db8::/32",
		"2001:db8::7": "2001:db8::7/128", "::ffff:198.51.100.7": "198.51.100.7/32", "::ffff:198.51.100.0/120": "198.51.100.0/24",
	} {
		require.Equal(t, want, pfx(t, in).String())
	}
	for _, in := range []string{"", "eth0", "1.2.3", "1.2.3.4/33", "1.2.3.4/", "1.2.3.4/08", "fe80::1%eth0", "fe80::%eth0/64", "1.2.3.4 ", "01.2.3.4", "10.0.0.7/8", "2001:db8::7/32"} {
		_, err := ParsePrefix(in)
		require.ErrorIs(t, err, ErrPrefix, in)
	}
	_, err := ParsePrefix("10.0.0.7/8")
	require.ErrorContains(t, err, "10.0.0.0/8 or 10.0.0.7?", "what was probably meant")
}

func TestWhatIsNeverAHostOrTooWideIsRefused(t *testing.T) {
	w := newWorld(t, nil)
	for prefix, want := range map[string]error{
		"127.0.0.1": ErrReserved, "127.0.0.0/8": ErrReserved, "::1": ErrReserved,
		"224.0.0.1": ErrReserved, "239.0.0.0/8": ErrReserved, "ff02::1": ErrReserved,
		"169.254.7.7": ErrReserved, "169.0.0.0/8": ErrReserved, "fe80::7": ErrReserved,
		"0.0.0.0": ErrReserved, "::": ErrReserved, "255.255.255.255": ErrReserved, "::/16": ErrReserved,
		"0.0.0.0/0": ErrTooWide, "128.0.0.0/1": ErrTooWide, "10.0.0.0/7": ErrTooWide, "::/0": ErrTooWide, "2000::/15": ErrTooWide, "2000::/3": ErrTooWide,
		"fe80::/9": ErrTooWide,
	} {
		require.ErrorIs(t, w.block(prefix), want, prefix)
		_, err := w.RateLimit(pfx(t, prefix), 10, 0, "", "")
		require.ErrorIs(t, err, want, prefix)
	}
	_, err := w.Block(netip.Prefix{}, 0, "", "")
	require.ErrorIs(t, err, ErrPrefix)
	_, err = w.Block(netip.MustParsePrefix("198.51.100.7/24"), 0, "", "")
	require.ErrorIs(t, err, ErrPrefix, "not masked")
	require.Empty(t, w.List())
	require.NoError(t, w.block("10.0.0.0/8"))
	require.NoError(t, w.block("2a00::/16"))
}

func TestBlockReachesTheEngineAsDryRunByDefault(t *testing.T) {
	w := newWorld(t, nil)
	require.NoError(t, w.block("198.51.100.7"))
	_, err := w.RateLimit(pfx(t, "198.51.100.8"), 100, 0, "", "")
	require.NoError(t, err)
	w.Tick()
	require.True(t, w.engine.rule("198.51.100.7/32").GetDryRun())
	require.True(t, w.engine.rule("198.51.100.8/32").GetDryRun())
	require.True(t, w.Stats().DryRun)

	w = newWorld(t, func(c *Config) { c.Enforce = true })
	require.NoError(t, w.block("198.51.100.7"))
	w.Tick()
	require.False(t, w.engine.rule("198.51.100.7/32").GetDryRun())
	require.False(t, w.Stats().DryRun)
}

func TestUnblockTakesTheRuleFromTheEngine(t *testing.T) {
	w := newWorld(t, nil)
	require.NoError(t, w.block("198.51.100.7"))
	require.NoError(t, w.block("203.0.113.0/24"))
	w.Tick()
	require.Len(t, w.engine.prefixes(), 2)
	require.NoError(t, w.Unblock(pfx(t, "198.51.100.7")))
	w.Tick()
	require.Equal(t, []string{"203.0.113.0/24"}, w.engine.prefixes())
	require.ErrorIs(t, w.Unblock(pfx(t, "198.51.100.7")), ErrNotFound)
	err := w.Unblock(pfx(t, "203.0.113.9"))
	require.ErrorIs(t, err, ErrNotFound)
	require.ErrorContains(t, err, "203.0.113.9 is in 203.0.113.0/24", "the rule that blocks it")
	require.ErrorIs(t, w.Unblock(netip.Prefix{}), ErrNotFound)
}

func TestRateLimitAndBlockReplaceEachOther(t *testing.T) {
	w := newWorld(t, nil)
	p := pfx(t, "198.51.100.7")
	for _, bad := range []uint64{0, MaxRate + 1} {
		_, err := w.RateLimit(p, bad, 0, "", "")
		require.ErrorIs(t, err, ErrRate)
	}
	require.NoError(t, w.block("198.51.100.7"))
	_, err := w.RateLimit(p, 100, 0, "", "")
	require.NoError(t, err)
	w.Tick()
	require.EqualValues(t, 100, w.engine.rule("198.51.100.7/32").GetPacketsPerSecond())
	require.EqualValues(t, 1, w.Stats().RateLimited)
	require.Zero(t, w.Stats().Blocked)
	require.NoError(t, w.block("198.51.100.7"))
	w.Tick()
	require.Zero(t, w.engine.rule("198.51.100.7/32").GetPacketsPerSecond())
	require.Zero(t, w.Stats().RateLimited)
	require.EqualValues(t, 1, w.Stats().Blocked)
}

func TestHighestRateIsThatOfTheEngine(t *testing.T) {
	require.EqualValues(t, steer.MaxPacketsPerSecond, MaxRate, "a command with a rule that the engine refuses is lost as a whole")
}

func TestRuleExpiresAfterItsTTL(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.TTL = time.Minute })
	require.NoError(t, w.block("198.51.100.7"))
	r, err := w.Block(pfx(t, "198.51.100.8"), time.Hour, "", "")
	require.NoError(t, err)
	require.Equal(t, w.now.Add(time.Hour), r.Expires)
	w.now = w.now.Add(time.Minute - 1)
	w.Tick()
	require.Len(t, w.engine.prefixes(), 2)
	w.now = w.now.Add(1)
	w.Tick()
	require.Equal(t, []string{"198.51.100.8/32"}, w.engine.prefixes())
	require.EqualValues(t, 1, w.Stats().Expired)

	_, err = w.Block(pfx(t, "198.51.100.8"), time.Second, "shorter", "")
	require.NoError(t, err)
	w.now = w.now.Add(time.Second)
	w.Tick()
	require.Empty(t, w.engine.prefixes(), "the last request stands")
	for _, ttl := range []time.Duration{-1, 1, MaxTTL + 1} {
		_, err = w.Block(pfx(t, "198.51.100.8"), ttl, "", "")
		require.ErrorIs(t, err, ErrTTL)
	}
	_, err = New(Config{Log: w.log, TTL: time.Millisecond})
	require.ErrorIs(t, err, ErrTTL)
}

func TestFullListRefusesNewRulesAndRenewsOldOnes(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.MaxEntries = 2 })
	require.NoError(t, w.block("198.51.100.1"))
	require.NoError(t, w.block("198.51.100.2"))
	require.ErrorIs(t, w.block("198.51.100.3"), ErrFull)
	require.NoError(t, w.block("198.51.100.2"))
	require.EqualValues(t, 1, w.Stats().RefusedFull)
	require.NoError(t, w.Unblock(pfx(t, "198.51.100.1")))
	require.NoError(t, w.block("198.51.100.3"))
	require.EqualValues(t, 2, w.Stats().MaxEntries)
}

func TestTextsAreBoundedAndPrintable(t *testing.T) {
	w := newWorld(t, nil)
	p := pfx(t, "198.51.100.7")
	_, err := w.Block(p, 0, strings.Repeat("x", MaxText+1), "")
	require.ErrorIs(t, err, ErrText)
	r, err := w.Block(p, 0, "two\nlines\x1b[31m", "uid 0")
	require.NoError(t, err)
	require.Equal(t, "two lines [31m", r.Reason)
}

func TestAllowListRefusesWithTheAddressAndTheReason(t *testing.T) {
	w := newWorld(t, func(c *Config) {
		c.Allow = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}
		c.Protect = []string{"influx.example", "198.51.100.77"}
	})
	w.dns["influx.example"] = []netip.Addr{addr("198.51.100.10"), addr("2001:db8:1::10")}
	require.True(t, w.Resolve(t.Context()))
	for prefix, want := range map[string]string{
		"192.0.2.1":        "192.0.2.1 is 192.0.2.1: default gateway",
		"192.0.2.0/24":     "192.0.2.0/24 contains 192.0.2.1: default gateway",
		"2001:db8::/64":    "contains 2001:db8::1: own address of eth0",
		"203.0.113.9":      "203.0.113.9 is in 203.0.113.0/24: configured",
		"203.0.0.0/16":     "203.0.0.0/16 contains 203.0.113.0/24: configured",
		"198.51.100.10":    "protected host influx.example",
		"2001:db8:1::/48":  "protected host influx.example",
		"198.51.100.64/26": "198.51.100.77: protected host 198.51.100.77",
	} {
		err := w.block(prefix)
		require.ErrorIs(t, err, ErrAllowed, prefix)
		require.ErrorContains(t, err, want)
	}
	require.EqualValues(t, 8, w.Stats().RefusedAllowed)
	require.NoError(t, w.block("192.0.2.2"))
	require.Len(t, w.Allowed(), 6)
	require.EqualValues(t, 6, w.Stats().Allowed)
}

func TestAddressThatAppearsLaterTakesRulesAway(t *testing.T) {
	w := newWorld(t, nil)
	require.NoError(t, w.block("198.51.100.0/24"))
	require.NoError(t, w.block("203.0.113.7"))
	w.Tick()
	require.Len(t, w.engine.prefixes(), 2)
	w.local = append(w.local, Allowed{netip.MustParsePrefix("198.51.100.9/32"), "own address of eth1"})
	w.Tick()
	require.Len(t, w.List(), 2, "looked at only now and then")
	w.now = w.now.Add(localInterval)
	w.Tick()
	require.Equal(t, []string{"203.0.113.7/32"}, w.engine.prefixes())
	require.Contains(t, w.log.text(), "W! Rule for 198.51.100.0/24 (test) taken away: conflicts with the allow list: 198.51.100.0/24 contains 198.51.100.9: own address of eth1")
	require.EqualValues(t, 1, w.Stats().RefusedAllowed)
	require.Equal(t, "a (b)", "a"+because("b"))
	require.Equal(t, "a", "a"+because(""))

	w.local = w.local[:1]
	w.now = w.now.Add(localInterval)
	w.Tick()
	require.NoError(t, w.block("198.51.100.9"), "an address that went can be blocked")
}

func TestManyConflictsAreAFewLines(t *testing.T) {
	w := newWorld(t, nil)
	for i := range 100 {
		require.NoError(t, w.block(fmt.Sprintf("10.0.0.%d", i+1)))
	}
	w.local = append(w.local, Allowed{netip.MustParsePrefix("10.0.0.0/8"), "own address of eth1"})
	w.Refresh()
	require.Empty(t, w.List())
	require.Equal(t, maxLines+1, strings.Count(w.log.text(), "taken away"))
	require.Contains(t, w.log.text(), "90 more rules")
}

func TestFailureToReadAddressesKeepsTheLastAnswer(t *testing.T) {
	w := newWorld(t, nil)
	w.failed, w.local = errors.New("netlink is gone"), nil
	for range 3 {
		w.now = w.now.Add(localInterval)
		w.Tick()
	}
	require.ErrorIs(t, w.block("192.0.2.1"), ErrAllowed)
	require.Equal(t, 1, strings.Count(w.log.text(), "netlink is gone"), "one line")
}

func TestNothingIsBlockedBeforeTheOwnAddressesAreKnown(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Local = func() ([]Allowed, error) { return nil, errors.New("no netlink") } })
	require.ErrorIs(t, w.block("198.51.100.7"), ErrNotReady)
	require.Zero(t, w.engine.sent)
}

func TestProtectedHostKeepsItsLastAnswerWhenTheResolverFails(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Protect = []string{"influx.example"} })
	require.False(t, w.Resolve(t.Context()), "no answer yet")
	require.NoError(t, w.block("198.51.100.10"))
	w.dns["influx.example"] = []netip.Addr{addr("198.51.100.10")}
	require.True(t, w.Resolve(t.Context()))
	require.Empty(t, w.List(), "resolved later, the block goes")
	w.Tick()
	require.Empty(t, w.engine.prefixes())

	delete(w.dns, "influx.example")
	w.now = w.now.Add(24 * time.Hour)
	require.False(t, w.Resolve(t.Context()))
	require.ErrorIs(t, w.block("198.51.100.10"), ErrAllowed)
	require.Contains(t, w.log.text(), "influx.example: no such host")

	w.dns["influx.example"] = []netip.Addr{addr("198.51.100.11")}
	require.True(t, w.Resolve(t.Context()))
	require.ErrorIs(t, w.block("198.51.100.11"), ErrAllowed)
	require.NoError(t, w.block("198.51.100.10"), "it has moved for good")
	w.now = w.now.Add(lookupAgain)
	w.dns["influx.example"] = []netip.Addr{addr("198.51.100.12")}
	require.True(t, w.Resolve(t.Context()))
	require.ErrorIs(t, w.block("198.51.100.11"), ErrAllowed, "answers take turns: connections to the one before go on")
}

func TestHostsToProtectAreReadFromNamesPortsAndURLs(t *testing.T) {
	for in, want := range map[string]string{
		"influx.example": "influx.example", "influx.example:8086": "influx.example", "http://influx.example:8086/db?x=1": "influx.example",
		"https://user:secret@influx.example": "influx.example", "[2001:db8::1]:8086": "2001:db8::1", "2001:db8::1": "2001:db8::1", "192.0.2.7": "192.0.2.7",
	} {
		got, err := ParseHost(in)
		require.NoError(t, err, in)
		require.Equal(t, want, got)
	}
	for _, in := range []string{"", ":8086", "http://", "unix:///run/influx", "a b", "[::1", "x:y:z", strings.Repeat("a", 254)} {
		_, err := ParseHost(in)
		require.ErrorIs(t, err, ErrHost, in)
	}
}

func TestAllowListOfThisMachine(t *testing.T) {
	list, err := LocalAllowed()
	require.NoError(t, err)
	require.Contains(t, list, Allowed{netip.MustParsePrefix("127.0.0.1/32"), "own address of lo"})
}

func TestNameServersOfResolvConf(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolv.conf")
	require.NoError(t, os.WriteFile(path, []byte("# nameserver 192.0.2.9\nsearch example\nnameserver 192.0.2.53\nnameserver fe80::53%eth0\nnameserver x\nnameserver\n"), 0o600))
	list, err := nameServers(path)
	require.NoError(t, err)
	require.Len(t, list, 2)
	require.Equal(t, "192.0.2.53/32", list[0].Prefix.String())
	require.Equal(t, "fe80::53/128", list[1].Prefix.String())
	require.Contains(t, list[0].Why, "DNS resolver")
	_, err = nameServers(filepath.Join(t.TempDir(), "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

// Whatever is asked for, in whichever order, an allowed address is never inside an
// active rule, neither in the list nor in the engine.
func TestAllowedAddressIsNeverInsideAnActiveRule(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 7))
		random := func() netip.Prefix {
			if rng.IntN(2) == 0 { // few bits vary, so that prefixes meet
				a := netip.AddrFrom4([4]byte{10, byte(rng.IntN(3)), byte(rng.IntN(4)), byte(rng.IntN(8))})
				return netip.PrefixFrom(a, 7+rng.IntN(26)).Masked()
			}
			var b [16]byte
			b[0], b[1], b[7], b[15] = 0x20, byte(rng.IntN(2)), byte(rng.IntN(3)), byte(rng.IntN(8))
			return netip.PrefixFrom(netip.AddrFrom16(b), 10+rng.IntN(119)).Masked()
		}
		w := newWorld(t, func(c *Config) {
			c.Allow = []netip.Prefix{random()}
			c.Protect = []string{"a.example"}
			c.MaxEntries = 50
			c.Policy.Kinds = []string{"port_scan"}
		})
		accepted := 0
		for range 400 {
			switch rng.IntN(8) {
			case 0:
				w.local = append(w.local[:rng.IntN(len(w.local)+1)], Allowed{host(random().Addr()), "own address of eth0"})
				w.Refresh()
			case 1:
				w.dns["a.example"] = []netip.Addr{random().Addr()}
				w.Resolve(t.Context())
			case 2:
				w.Alert(&telemetry.Alert{Kind: "port_scan", Src: random().Addr().String()})
			case 3:
				_, _ = w.RateLimit(random(), 5, time.Duration(rng.IntN(100))*time.Second, "", "")
			case 4:
				_ = w.Unblock(random())
				w.now = w.now.Add(time.Duration(rng.IntN(20)) * time.Second)
			case 5:
				w.Ready(true)
			default:
				if _, err := w.Block(random(), 0, "", ""); err == nil {
					accepted++
				}
			}
			w.Tick()
			rules := w.List()
			require.LessOrEqual(t, len(rules), 50)
			require.ElementsMatch(t, w.listed(), w.engine.prefixes(), "the engine has the same")
			for _, r := range rules {
				for _, a := range w.Allowed() {
					require.False(t, r.Prefix.Overlaps(a.Prefix), "%s and %s", r.Prefix, a.Prefix)
				}
			}
		}
		require.NotZero(t, accepted)
	}
}

func TestNewEngineGetsAllRulesInBatches(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.MaxEntries = 1 << 20 })
	const n = 3*batch + 5
	w.engine.up = false
	for i := range n {
		_, err := w.Block(host(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})), 0, "", "")
		require.NoError(t, err)
	}
	w.Tick()
	require.Empty(t, w.engine.prefixes())

	w.engine.up, w.engine.rules["old"] = true, &agppb.SteerRule{}
	w.Tick()
	require.Len(t, w.engine.prefixes(), 1, "nothing before it is ready")
	w.Ready(true)
	w.Tick()
	require.Len(t, w.engine.prefixes(), n, "all, and not what was there")
	require.Equal(t, batch, w.engine.most, "a command is bounded")
	sent := w.engine.sent
	w.Tick()
	require.Equal(t, sent, w.engine.sent, "nothing is sent twice")

	require.NoError(t, w.Unblock(pfx(t, "10.0.0.0")))
	w.engine.up = false
	w.Tick()
	w.engine.up = true
	w.Ready(true)
	w.Tick()
	require.Len(t, w.engine.prefixes(), n-1, "also the removal that the old one did not get")
}

// The command for the old engine fails after the new one has come up.
func TestEngineThatComesUpWhileSendingFailsIsNotForgotten(t *testing.T) {
	w := newWorld(t, nil)
	require.NoError(t, w.block("198.51.100.7"))
	w.engine.up = false
	w.engine.failing = func() { w.Ready(true) }
	w.Tick()
	w.engine.up = true
	w.Tick()
	require.Equal(t, []string{"198.51.100.7/32"}, w.engine.prefixes())
}

func TestWithoutASenderRulesAreOnlyKept(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Sender = nil })
	require.NoError(t, w.block("198.51.100.7"))
	w.Tick()
	require.Len(t, w.List(), 1)
}

func TestRunSendsChangesAtOnceAndEndsWithItsContext(t *testing.T) {
	w := newWorld(t, func(c *Config) {
		c.Now = time.Now
		c.Protect = []string{"influx.example"}
		c.StateFile = filepath.Join(t.TempDir(), "rules")
	})
	w.dns["influx.example"] = []netip.Addr{addr("198.51.100.10")}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.Run(ctx) }()
	require.NoError(t, w.block("198.51.100.7"))
	require.Eventually(t, func() bool { return w.engine.rule("198.51.100.7/32") != nil }, 10*time.Second, time.Millisecond)
	require.ErrorIs(t, w.block("198.51.100.10"), ErrAllowed, "looked up before anything is sent")
	cancel()
	<-done
	require.FileExists(t, w.cfg.StateFile, "saved at the end")
}

// Very many rules come, go to a new engine, are taken away and expire, in bounded commands.
func TestManyRules(t *testing.T) {
	const n = 1 << 17
	w := newWorld(t, func(c *Config) { c.MaxEntries = n })
	for i := range n {
		if _, err := w.Block(host(netip.AddrFrom4([4]byte{11, byte(i >> 16), byte(i >> 8), byte(i)})), 0, "", ""); err != nil {
			require.NoError(t, err)
		}
	}
	w.Tick()
	w.Ready(true)
	w.Tick()
	require.Len(t, w.engine.rules, n)
	require.Equal(t, batch, w.engine.most)
	w.local = append(w.local, Allowed{netip.MustParsePrefix("11.0.0.0/9"), "configured"})
	w.Refresh()
	w.now = w.now.Add(DefaultTTL)
	w.Tick()
	require.Empty(t, w.List())
	require.Empty(t, w.engine.rules)
}

func TestConcurrentUse(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Now = time.Now; c.Policy.Kinds = []string{"port_scan"} })
	ctx, cancel := context.WithCancel(t.Context())
	var run, wg sync.WaitGroup
	run.Go(func() { w.Run(ctx) })
	for g := range 4 {
		wg.Go(func() {
			for i := range 200 {
				p := host(netip.AddrFrom4([4]byte{10, 0, byte(g), byte(i)}))
				_, _ = w.Block(p, 0, "", "")
				w.Alert(&telemetry.Alert{Kind: "port_scan", Src: p.Addr().Next().String(), Confirmed: true})
				if i%3 == 0 {
					_ = w.Unblock(p)
				}
				w.Ready(true)
				w.Stats()
				w.List()
			}
		})
	}
	wg.Wait()
	require.Eventually(t, func() bool { return len(w.engine.prefixes()) == len(w.List()) }, 10*time.Second, time.Millisecond)
	cancel()
	run.Wait()
	require.ElementsMatch(t, w.listed(), w.engine.prefixes())
}

func scan(src string) *telemetry.Alert {
	return &telemetry.Alert{Kind: "port_scan", Src: src, Dst: "192.0.2.80", Count: 20, Threshold: 15, Confirmed: true}
}

func policy(change func(*Policy)) func(*Config) {
	return func(c *Config) {
		c.Policy = Policy{Kinds: []string{"port_scan", "classified/c2"}, TTL: time.Hour}
		if change != nil {
			change(&c.Policy)
		}
	}
}

func TestAlertOfAChosenKindBlocksItsSource(t *testing.T) {
	w := newWorld(t, policy(nil))
	w.Alert(scan("198.51.100.7"))
	w.Alert(&telemetry.Alert{Kind: "host_scan", Src: "198.51.100.8", Count: 99, Confirmed: true})
	w.Alert(&telemetry.Alert{Kind: "port_scan", Dst: "198.51.100.9", Count: 99, Confirmed: true})
	rules := w.List()
	require.Len(t, rules, 1, "not the victim, not another kind, not an alert without a source")
	require.Equal(t, "198.51.100.7/32", rules[0].Prefix.String())
	require.Equal(t, w.now.Add(time.Hour), rules[0].Expires, "the policy's lifetime")
	require.Equal(t, "alert", rules[0].By)
	require.Equal(t, "port_scan 20 of 15", rules[0].Reason)
	require.Contains(t, w.log.text(), "I! Would block 198.51.100.7 for 1h0m0s (dry run): port_scan 20 of 15")

	w.now = w.now.Add(time.Minute)
	w.Alert(scan("198.51.100.7"))
	require.Equal(t, w.now.Add(time.Hour), w.List()[0].Expires, "seen again, blocked for longer")
	require.Equal(t, 1, strings.Count(w.log.text(), "Would block"))
}

// TestAlertWhoseSourceMayBeForgedDoesNotBlock: counted, said once, and a rule that is there
// ends when it would have. A person may block all the same.
func TestAlertWhoseSourceMayBeForgedDoesNotBlock(t *testing.T) {
	for _, enforce := range []bool{false, true} {
		w := newWorld(t, func(c *Config) { policy(nil)(c); c.Enforce = enforce })
		a := scan("198.51.100.7")
		w.Alert(a)
		ends := w.List()[0].Expires
		w.now = w.now.Add(time.Minute)
		a.Confirmed = false
		w.Alert(a)
		require.Equal(t, ends, w.List()[0].Expires)
		a.Src = "198.51.100.8"
		w.Alert(a)
		require.Equal(t, []string{"198.51.100.7/32"}, w.listed())
		st := w.Stats()
		require.EqualValues(t, 2, st.RefusedUnconfirmed)
		require.EqualValues(t, 1, st.Added)
		require.Equal(t, 1, strings.Count(w.log.text(), "its source may be forged"))
		require.Contains(t, w.log.text(), "W! Alert port_scan about 198.51.100.7 blocks nothing")
		require.NoError(t, w.block("198.51.100.8"))
	}
}

// TestUnconfirmedAlertsBlockWhereThatIsChosenOrNothingIsDropped: by the policy, and in files, of
// which nothing is known but what they hold.
func TestUnconfirmedAlertsBlockWhereThatIsChosenOrNothingIsDropped(t *testing.T) {
	for _, change := range []func(*Config){
		func(c *Config) { c.Policy.Unconfirmed = true },
		func(c *Config) { c.Sender = nil },
	} {
		w := newWorld(t, func(c *Config) { policy(nil)(c); change(c) })
		a := scan("198.51.100.7")
		a.Confirmed = false
		w.Alert(a)
		require.Equal(t, []string{"198.51.100.7/32"}, w.listed())
		require.Zero(t, w.Stats().RefusedUnconfirmed)
	}
}

func TestAlertBelowTheMinimumDoesNotBlock(t *testing.T) {
	w := newWorld(t, policy(func(p *Policy) { p.MinCount, p.MinScore = 21, 0.9 }))
	w.Alert(scan("198.51.100.7"))
	classified := telemetry.Alert{Kind: "classified", Class: "c2", Model: "class@1", Src: "198.51.100.8", Count: 50, Score: 0.8, Confirmed: true}
	w.Alert(&classified)
	require.Empty(t, w.List())
	classified.Score = 0.95
	w.Alert(&classified)
	a := scan("198.51.100.7")
	a.Count = 21
	w.Alert(a)
	require.Len(t, w.List(), 2)
	classified.Class, classified.Src = "tunnel", "198.51.100.9"
	w.Alert(&classified)
	require.Len(t, w.List(), 2, "another class")
}

func TestFloodsNeverBlockEvenIfConfigured(t *testing.T) {
	w := newWorld(t, policy(func(p *Policy) { p.Kinds = []string{"syn_flood", "amplification"} }))
	for _, k := range []string{"syn_flood", "amplification"} {
		w.Alert(&telemetry.Alert{Kind: k, Src: "198.51.100.7", Dst: "192.0.2.80", Count: 1e6, Confirmed: true})
	}
	require.Empty(t, w.List())
}

func TestEveryKindOfAlertIsKnownToThePolicy(t *testing.T) {
	var names []string
	for _, k := range options.AlertKinds() {
		names = append(names, k.Name)
	}
	require.ElementsMatch(t, []string{
		detect.SYNFlood, detect.SYNACKReflection, detect.Amplification, detect.UDPFlood, detect.ICMPFlood, detect.RequestFlood,
		detect.PortScan, detect.HostScan, detect.StealthScan, detect.BruteForce, detect.Beacon, detect.DNSTunnel,
		detect.ICMPTunnel, detect.CovertTiming, detect.CovertSize, detect.OneWayPush, options.Classified,
	}, names)
}

func TestAlertsBlockABoundedNumberPerMinute(t *testing.T) {
	w := newWorld(t, policy(func(p *Policy) { p.PerMinute = 3 }))
	burst := func(net byte) {
		for i := range 10 {
			w.Alert(scan(netip.AddrFrom4([4]byte{10, 0, net, byte(i)}).String()))
		}
	}
	burst(1)
	require.Len(t, w.List(), 3)
	require.EqualValues(t, 7, w.Stats().RefusedRate)
	require.Equal(t, 1, strings.Count(w.log.text(), "more than 3 sources in a minute"))
	require.NoError(t, w.block("198.51.100.7"), "a person is not bounded")
	w.now = w.now.Add(time.Minute)
	burst(2)
	require.Len(t, w.List(), 7)
}

func TestAlertNeverChangesWhatAPersonDecided(t *testing.T) {
	w := newWorld(t, policy(nil))
	_, err := w.RateLimit(pfx(t, "198.51.100.7"), 5, time.Minute, "", "uid 0")
	require.NoError(t, err)
	w.Alert(scan("198.51.100.7"))
	require.EqualValues(t, 5, w.List()[0].PacketsPerSecond)
	require.Equal(t, w.now.Add(time.Minute), w.List()[0].Expires)
}

func TestAlertAboutAnAllowedAddressIsCountedAndLogged(t *testing.T) {
	w := newWorld(t, func(c *Config) { policy(nil)(c); c.MaxEntries = 1 })
	w.Alert(scan("192.0.2.1"))
	require.Empty(t, w.List())
	require.EqualValues(t, 1, w.Stats().RefusedAllowed)
	require.Contains(t, w.log.text(), "W! Alert port_scan blocks nothing: conflicts with the allow list: 192.0.2.1 is 192.0.2.1: default gateway")
	for i := range 5 {
		w.Alert(scan(fmt.Sprintf("10.0.0.%d", i)))
	}
	require.EqualValues(t, 4, w.Stats().RefusedFull)
	require.Equal(t, 1, strings.Count(w.log.text(), "list of rules is full"))
}

// TestNothingIsPromisedThatTheEngineCannotDo: a capture by packet sockets has no block list.
func TestNothingIsPromisedThatTheEngineCannotDo(t *testing.T) {
	w := newWorld(t, nil)
	require.NoError(t, w.block("198.51.100.7"))
	w.Ready(false)
	require.ErrorIs(t, w.block("198.51.100.8"), ErrUnable)
	sent := len(w.engine.prefixes())
	w.Tick()
	require.Len(t, w.engine.prefixes(), sent, "nothing goes to an engine that ignores it")
	w.Ready(true)
	w.Tick()
	require.Equal(t, []string{"198.51.100.7/32"}, w.engine.prefixes(), "the rule waited for one that can")
	require.NoError(t, w.block("198.51.100.8"))
}
