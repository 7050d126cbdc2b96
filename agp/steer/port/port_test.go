package port

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/agp-net/telegraf-agp/agp/steer/ethtool"
)

var everything = Settings{
	Channels: 4, RXRing: 1000, TXRing: 4096, RSSKey: []byte{0x6d, 0x5a},
	Indirection: []uint32{0, 1, 3},
	HashFields:  map[ethtool.FlowType]uint64{ethtool.UDP4: 0xf0, ethtool.UDP6: 0xf0},
	Features:    map[string]bool{"rx-lro": false},
	Rules: []ethtool.Rule{
		{Flow: ethtool.TCP4, DstPort: 443, Queue: 2},
		{Flow: ethtool.UDP6, Src: netip.MustParsePrefix("2001:db8::/32"), Queue: ethtool.Drop},
	},
	Promiscuous: true,
}

// lossless is everything with ring sizes that no driver rounds.
func lossless() Settings {
	s := everything
	s.RXRing = 1024
	return s
}

// scenario is an interface as somebody has left it, and what is asked of it.
type scenario struct {
	name  string
	nic   func() *fakeNIC
	apply []Settings
}

func scenarios() []scenario {
	custom := func(queues int) func() *fakeNIC {
		return func() *fakeNIC {
			n := newNIC()
			for i := range n.rss.Indirection {
				n.rss.Indirection[i] = uint32(i * i % queues)
			}
			n.configured = true
			return n
		}
	}
	fewer := Settings{Channels: 2, Indirection: []uint32{1}, RSSKey: []byte{1, 2, 3}, Rules: []ethtool.Rule{}}
	more := Settings{Channels: 16, Indirection: []uint32{15, 0}}
	return []scenario{
		{"driver's own table", newNIC, []Settings{everything}},
		{"rounds rings", func() *fakeNIC { n := newNIC(); n.roundsRings = true; return n }, []Settings{everything}},
		{"table of the administrator", custom(8), []Settings{everything}},
		{"table that fits the new queues", custom(3), []Settings{everything, fewer}},
		{"more queues", custom(8), []Settings{more, everything}},
		{"more queues, driver's own table", newNIC, []Settings{more}},
		{"twice", newNIC, []Settings{everything, fewer, more}},
		{"only queues", custom(8), []Settings{{Channels: 1}}},
		{"separate queues", func() *fakeNIC {
			n := newNIC()
			n.c, n.maxC = ethtool.Channels{RX: 8, TX: 8}, ethtool.Channels{RX: 16, TX: 16}
			return n
		}, []Settings{everything}},
		{"resets table and key", func() *fakeNIC { n := newNIC(); n.resetsTable = true; return n }, []Settings{everything, more}},
		{"resets a table of the administrator", func() *fakeNIC {
			n := custom(8)()
			n.resetsTable = true
			return n
		}, []Settings{everything}},
		{"rules of the administrator", func() *fakeNIC {
			n := newNIC()
			n.features[ntupleRules] = ethtool.Feature{Active: true, Wanted: true}
			s, _ := ethtool.Rule{Flow: ethtool.TCP4, DstPort: 22, Queue: 1}.Spec()
			n.rules[31] = s.At(31).Canonical()
			return n
		}, []Settings{everything, fewer}},
		{"drops rules with the queues", func() *fakeNIC {
			n := newNIC()
			n.dropsRules = true
			n.features[ntupleRules] = ethtool.Feature{Active: true, Wanted: true}
			s, _ := ethtool.Rule{Flow: ethtool.TCP4, DstPort: 22, Queue: 1}.Spec()
			n.rules[5] = s.At(5).Canonical()
			return n
		}, []Settings{everything}},
		{"table cannot be given back", func() *fakeNIC {
			n := custom(8)()
			n.noDefault = true
			return n
		}, []Settings{everything}},
	}
}

// journals returns the journals of a directory.
func journals(t *testing.T, dir string) []string {
	t.Helper()
	j, err := store{dir: dir}.list()
	require.NoError(t, err)
	return j
}

func TestRestoreBringsEverythingBack(t *testing.T) {
	for _, s := range scenarios() {
		t.Run(s.name, func(t *testing.T) {
			n := s.nic()
			k := newKernel(n)
			before := n.picture()
			o := options(t)
			p, err := open(k, "eth0", o, nil)
			require.NoError(t, err)
			for _, a := range s.apply {
				require.NoError(t, p.Apply(a))
				require.NotEqual(t, before, n.picture())
				calls := n.calls
				require.NoError(t, p.Apply(a))
				require.Equal(t, calls, n.calls, "the same settings again change nothing")
				if a.Channels != 0 {
					require.Equal(t, a.Channels, n.c.Receive())
				}
				for i, q := range n.rss.Indirection {
					if a.Indirection != nil {
						require.Equal(t, a.Indirection[i%len(a.Indirection)], q)
					}
				}
			}
			rep, err := p.Restore()
			require.NoError(t, err)
			require.Empty(t, rep.Left)
			require.NotEmpty(t, rep.Restored)
			require.Equal(t, before, n.picture())
			require.Zero(t, k.promisc)
			require.Empty(t, journals(t, o.StateDir))
			rep, err = p.Restore()
			require.NoError(t, err)
			require.True(t, rep.Empty(), "nothing is left to restore")
			_, err = p.Close()
			require.NoError(t, err)
		})
	}
}

// powerCut ends the world at its n-th step.
type powerCut struct{ step, at int }

func (c *powerCut) tick() {
	if c.step++; c.step == c.at {
		panic(c)
	}
}

// survive runs f and says whether it was cut.
func (c *powerCut) survive(f func()) (cut bool) {
	defer func() {
		if r := recover(); r != nil {
			if r != c {
				panic(r)
			}
			cut = true
		}
	}()
	f()
	return false
}

// memoryDir is a directory where a sync costs nothing, if there is one.
func memoryDir(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "port-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// life opens the port, applies all settings and closes it; the end may come at any step.
func life(t *testing.T, s scenario, k *fakeKernel, o Options, at int) (cut bool) {
	n := k.nics[2]
	c := &powerCut{at: at}
	n.tick = c.tick
	defer func() { n.tick = nil }()
	var p *Port
	cut = c.survive(func() {
		var err error
		p, err = open(k, "eth0", o, func(string) { c.tick() })
		require.NoError(t, err)
		for _, a := range s.apply {
			require.NoError(t, p.Apply(a))
		}
		_, err = p.Close()
		require.NoError(t, err)
	})
	if cut && p != nil {
		p.lock.f.Close()
	}
	return cut
}

// Whatever the step at which the process ends, RestoreAll brings the port back: the
// kernel goes on with the settings that it has (a crash), or starts with those of its
// boot scripts (a power cut).
func TestEveryCrashPoint(t *testing.T) {
	for _, s := range scenarios() {
		t.Run(s.name, func(t *testing.T) {
			dir := memoryDir(t)
			points := 0
			for at := 1; ; at += stride {
				o := Options{StateDir: filepath.Join(dir, fmt.Sprint(at))}
				k := newKernel(s.nic())
				before := k.nics[2].picture()
				if !life(t, s, k, o, at) {
					break
				}
				points++
				for range 2 {
					_, err := restoreAll(k, store{dir: o.StateDir}, nil)
					require.NoError(t, err, "step %d", at)
					require.Equal(t, before, k.nics[2].picture(), "step %d", at)
					require.Empty(t, journals(t, o.StateDir), "step %d", at)
				}
				if points%3 == 0 { // the same with a new boot
					o.StateDir += "b"
					require.True(t, life(t, s, newKernel(s.nic()), o, at))
					k := newKernel(s.nic())
					k.boot, k.links[0].Index, k.links[0].Name = "b2", 7, "ens1"
					k.nics[7] = k.nics[2]
					_, err := restoreAll(k, store{dir: o.StateDir}, nil)
					require.NoError(t, err)
					require.Equal(t, before, k.nics[7].picture(), "step %d", at)
					require.Empty(t, journals(t, o.StateDir))
				}
				require.NoError(t, os.RemoveAll(o.StateDir))
			}
			require.Greater(t, points*stride, 20)
			t.Logf("%d crash points", points)
		})
	}
}

// The one that puts the port back may end at any step too.
func TestEveryCrashPointOfARestore(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, s := range scenarios() {
		t.Run(s.name, func(t *testing.T) {
			dir := memoryDir(t)
			total := 0
			for life(t, s, newKernel(s.nic()), Options{StateDir: filepath.Join(dir, fmt.Sprint("n", total))}, total+1) {
				total++
			}
			for round := range 2 {
				first := 1 + r.IntN(total)
				for at := 1; ; at += stride {
					o := Options{StateDir: filepath.Join(dir, fmt.Sprint(round, "-", at))}
					k := newKernel(s.nic())
					n := k.nics[2]
					before := n.picture()
					require.True(t, life(t, s, k, o, first))
					c := &powerCut{at: at}
					n.tick = c.tick
					cut := c.survive(func() {
						_, err := restoreAll(k, store{dir: o.StateDir, step: func(string) { c.tick() }}, nil)
						require.NoError(t, err)
					})
					n.tick = nil
					_, err := restoreAll(k, store{dir: o.StateDir}, nil)
					require.NoError(t, err, "steps %d, %d", first, at)
					require.Equal(t, before, n.picture(), "steps %d, %d", first, at)
					require.Empty(t, journals(t, o.StateDir))
					if !cut {
						break
					}
				}
			}
		})
	}
}

// Whichever change the driver refuses, before or after it has done it, Apply says so
// and the port is as before.
func TestEveryChangeThatFails(t *testing.T) {
	for _, s := range scenarios() {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprint(s.name, " after ", after), func(t *testing.T) {
				for at := 1; ; at++ {
					n := s.nic()
					k := newKernel(n)
					before := n.picture()
					o := Options{StateDir: memoryDir(t)}
					p, err := open(k, "eth0", o, nil)
					require.NoError(t, err)
					for _, a := range s.apply[:len(s.apply)-1] {
						require.NoError(t, p.Apply(a))
					}
					first := n.picture()
					calls := n.calls
					n.after = after
					n.fail = func(c int) error {
						if c == calls+at {
							return unix.EIO
						}
						return nil
					}
					err = p.Apply(s.apply[len(s.apply)-1])
					done := err == nil
					if !done {
						require.ErrorIs(t, err, unix.EIO)
						if len(s.apply) == 1 {
							require.Equal(t, before, n.picture(), "change %d", at)
							require.Empty(t, journals(t, o.StateDir))
						} else {
							require.NotEqual(t, first, "")
						}
					}
					n.fail = nil
					_, err = p.Close()
					require.NoError(t, err)
					require.Equal(t, before, n.picture(), "change %d", at)
					if done {
						break
					}
				}
			})
		}
	}
}

func TestDriverThatRefusesEverythingKeepsTheJournal(t *testing.T) {
	n := newNIC()
	k := newKernel(n)
	before := n.picture()
	o := options(t)
	p, err := open(k, "eth0", o, nil)
	require.NoError(t, err)
	require.NoError(t, p.Apply(everything))
	n.fail = func(int) error { return unix.EIO }
	_, err = p.Close()
	require.ErrorIs(t, err, ErrNotRestored)
	require.ErrorIs(t, err, unix.EIO)
	require.Len(t, journals(t, o.StateDir), 1)
	_, err = open(k, "eth0", o, nil)
	require.ErrorIs(t, err, ErrNotRestored, "a port in an unknown state is not used")
	n.fail = nil
	_, err = restoreAll(k, store{dir: o.StateDir}, nil)
	require.NoError(t, err)
	require.Equal(t, before, n.picture())
}

// What an administrator changes after us stays as he left it; all else is put back.
func TestWhatSomebodyElseChangedIsLeft(t *testing.T) {
	for _, c := range []struct {
		left   string
		change func(n *fakeNIC)
		now    func(n *fakeNIC) any
	}{
		{"rings", func(n *fakeNIC) { n.g.RX = 2048 }, func(n *fakeNIC) any { return n.g }},
		{"rss_key", func(n *fakeNIC) { n.rss.Key[3] = 9 }, func(n *fakeNIC) any { return fmt.Sprint(n.rss.Key) }},
		{"indirection", func(n *fakeNIC) { n.rss.Indirection[10] = 2 }, func(n *fakeNIC) any { return fmt.Sprint(n.rss.Indirection) }},
		{"hash_fields/2", func(n *fakeNIC) { n.fields[ethtool.UDP4] = 0x10 }, func(n *fakeNIC) any { return fmt.Sprint(n.fields[ethtool.UDP4]) }},
		{"rule/31", func(n *fakeNIC) {
			s, _ := ethtool.Rule{Flow: ethtool.TCP4, DstPort: 8080}.Spec()
			n.rules[31] = s.At(31)
		}, func(n *fakeNIC) any { return n.rules[31] }},
		{"channels", func(n *fakeNIC) { n.c.Combined = 5 }, func(n *fakeNIC) any { return n.c }},
	} {
		t.Run(c.left, func(t *testing.T) {
			n := newNIC()
			n.features[ntupleRules] = ethtool.Feature{Active: true, Wanted: true}
			k := newKernel(n)
			o := options(t)
			before := n.picture()
			p, err := open(k, "eth0", o, nil)
			require.NoError(t, err)
			require.NoError(t, p.Apply(everything))
			n.tick = nil
			c.change(n)
			want := c.now(n)
			rep, err := p.Close()
			require.NoError(t, err)
			require.Equal(t, []string{c.left}, rep.Left)
			require.Equal(t, want, c.now(n))
			require.NotEqual(t, before, n.picture())
			require.NotEmpty(t, rep.Restored)
			require.NotContains(t, rep.Restored, c.left)
			require.Empty(t, journals(t, o.StateDir))
			require.Contains(t, rep.String(), "left: "+c.left)
			if c.left != "rss_key" {
				require.Equal(t, ethtool.XOR, n.rss.Function)
			}
		})
	}
}

// Restoring can make a driver drop what somebody else has made meanwhile.
func TestRulesThatTheRestoreDropped(t *testing.T) {
	n := newNIC()
	n.dropsRules, n.resetsTable = true, true
	n.features[ntupleRules] = ethtool.Feature{Active: true, Wanted: true}
	p, err := open(newKernel(n), "eth0", options(t), nil)
	require.NoError(t, err)
	require.NoError(t, p.Apply(Settings{Channels: 4}))
	s, err := ethtool.Rule{Flow: ethtool.TCP4, DstPort: 22, Queue: 1}.Spec()
	require.NoError(t, err)
	n.rules[7] = s.At(7)
	n.rss.Key[5] = 99
	_, err = p.Close()
	require.NoError(t, err)
	require.Equal(t, 8, n.c.Receive())
	require.Equal(t, map[uint32]ethtool.Spec{7: s.At(7)}, n.rules)
	require.EqualValues(t, 99, n.rss.Key[5])
}

// An administrator's setting that we found, changed and changed again is what comes back.
func TestSecondApplyAfterSomebodyElseChanged(t *testing.T) {
	n := newNIC()
	p, err := open(newKernel(n), "eth0", options(t), nil)
	require.NoError(t, err)
	require.NoError(t, p.Apply(Settings{RXRing: 1024}))
	n.g.RX = 2048
	require.NoError(t, p.Apply(Settings{RXRing: 4096}))
	_, err = p.Close()
	require.NoError(t, err)
	require.EqualValues(t, 2048, n.g.RX)
}

func TestLimitsAreSaidBeforeAnyChange(t *testing.T) {
	five := make([]ethtool.Rule, 33)
	for i := range five {
		five[i] = ethtool.Rule{Flow: ethtool.TCP4, DstPort: uint16(i + 1)}
	}
	for _, c := range []struct {
		s    Settings
		want string
	}{
		{Settings{Channels: 17}, "eth0: 17 receive queues, but the interface has at most 16"},
		{Settings{RXRing: 9000}, "eth0: 9000 receive ring entries, but the interface has at most 8192"},
		{Settings{TXRing: 9000}, "eth0: 9000 transmit ring entries, but the interface has at most 8192"},
		{Settings{RSSKey: make([]byte, 41)}, "eth0: 41 bytes of RSS key, but the interface has at most 40"},
		{Settings{Indirection: make([]uint32, 33)}, "eth0: 33 entries of the indirection table, but the interface has at most 32"},
		{Settings{Indirection: []uint32{8}}, "eth0: 9 receive queues in the indirection table, but the interface has at most 8"},
		{Settings{Channels: 4, Indirection: []uint32{4}}, "eth0: 5 receive queues in the indirection table, but the interface has at most 4"},
		{Settings{Rules: []ethtool.Rule{{Flow: ethtool.TCP4, Queue: 8}}}, "eth0: 9 receive queues in rules, but the interface has at most 8"},
		{Settings{Rules: five}, "eth0: 33 classification rules, but the interface has at most 32"},
	} {
		n := newNIC()
		o := options(t)
		p, err := open(newKernel(n), "eth0", o, nil)
		require.NoError(t, err)
		c.s.RXRing = max(c.s.RXRing, 1024)
		err = p.Apply(c.s)
		require.ErrorIs(t, err, ErrLimit)
		require.EqualError(t, err, c.want)
		require.Zero(t, n.calls)
		require.Empty(t, files(t, o.StateDir))
	}
}

func TestFewerQueuesThanARuleOfSomebodyElseNeeds(t *testing.T) {
	n := newNIC()
	s, err := ethtool.Rule{Flow: ethtool.TCP4, DstPort: 22, Queue: 6}.Spec()
	require.NoError(t, err)
	n.rules[3] = s.At(3)
	p, err := open(newKernel(n), "eth0", options(t), nil)
	require.NoError(t, err)
	err = p.Apply(Settings{Channels: 4})
	require.ErrorIs(t, err, ErrLimit)
	require.ErrorContains(t, err, "rule 3 leads to queue 6")
	require.Zero(t, n.calls)
}

// "ethtool -X eth0 equal 8" writes the table that the driver would have.
func TestFewerQueuesThanAnEvenTableOfTheAdministratorUses(t *testing.T) {
	n := newNIC()
	n.configured = true
	table := slices.Clone(n.rss.Indirection)
	p, err := open(newKernel(n), "eth0", options(t), nil)
	require.NoError(t, err)
	require.NoError(t, p.Apply(Settings{Channels: 4}))
	require.Equal(t, 4, n.c.Receive())
	_, err = p.Close()
	require.NoError(t, err)
	require.Equal(t, 8, n.c.Receive())
	require.Equal(t, table, n.rss.Indirection)
	_, err = p.Restore()
	require.ErrorIs(t, err, ErrClosed)
}

func TestRulesOfOthersMatchFirstAndOursFollowTheSettings(t *testing.T) {
	n := newNIC()
	a := ethtool.Rule{Flow: ethtool.TCP4, DstPort: 1, Queue: 1}
	b := ethtool.Rule{Flow: ethtool.TCP4, DstPort: 2, Queue: 2}
	other, err := ethtool.Rule{Flow: ethtool.UDP4, DstPort: 3, Queue: 3}.Spec()
	require.NoError(t, err)
	n.rules[30] = other.At(30)
	p, err := open(newKernel(n), "eth0", options(t), nil)
	require.NoError(t, err)
	require.NoError(t, p.Apply(Settings{Rules: []ethtool.Rule{a, b}}))
	require.Equal(t, []uint32{29, 30, 31}, slices.Sorted(maps.Keys(n.rules)))
	require.NoError(t, p.Apply(Settings{Rules: []ethtool.Rule{b}}))
	require.Equal(t, []uint32{30, 31}, slices.Sorted(maps.Keys(n.rules)))
	require.NoError(t, p.Apply(Settings{}), "no list leaves them")
	require.Len(t, n.rules, 2)
	require.NoError(t, p.Apply(Settings{Rules: []ethtool.Rule{}}))
	require.Equal(t, []uint32{30}, slices.Sorted(maps.Keys(n.rules)))
	require.True(t, n.features[ntupleRules].Active)
	rep, err := p.Close()
	require.NoError(t, err)
	require.Equal(t, []string{"feature/rx-ntuple-filter"}, rep.Left, "the other rule would go with it")
	require.Equal(t, []uint32{30}, slices.Sorted(maps.Keys(n.rules)))
}

func TestDriverThatTakesAnotherValue(t *testing.T) {
	n := newNIC()
	n.fail = func(c int) error {
		if c == 1 {
			n.fields[ethtool.UDP4] = 0x10 // and it says nothing
			n.after = true
		}
		return nil
	}
	before := n.picture()
	p, err := open(newKernel(stubborn{n}.fakeNIC), "eth0", options(t), nil)
	require.NoError(t, err)
	p.d = stubborn{n}
	err = p.Apply(Settings{HashFields: map[ethtool.FlowType]uint64{ethtool.UDP4: 0xf0}})
	require.ErrorIs(t, err, ErrNotApplied)
	require.ErrorContains(t, err, "asked 240, got 16")
	require.Equal(t, before, n.picture())
}

// stubborn has its own idea of hash fields, unless they are those that it knows.
type stubborn struct{ *fakeNIC }

func (s stubborn) SetHashFields(t ethtool.FlowType, f uint64) error {
	if f == 0xf0 {
		f = 0x10
	}
	return s.fakeNIC.SetHashFields(t, f)
}

func TestNoPrivilege(t *testing.T) {
	n := newNIC()
	before := n.picture()
	n.fail = func(int) error { return &ethtool.PermissionError{Op: "set channels", Capability: "CAP_NET_ADMIN"} }
	k := newKernel(n)
	o := options(t)
	p, err := open(k, "eth0", o, nil)
	require.NoError(t, err, "taking a port needs no privilege")
	err = p.Apply(everything)
	require.ErrorIs(t, err, ErrPermission)
	require.ErrorContains(t, err, "CAP_NET_ADMIN")
	n.fail = nil
	k.noPromisc = &ethtool.PermissionError{Op: "eth0: promiscuous mode", Capability: "CAP_NET_RAW"}
	err = p.Apply(everything)
	require.ErrorIs(t, err, ErrPermission)
	require.ErrorContains(t, err, "CAP_NET_RAW")
	require.Equal(t, before, n.picture(), "what was changed before is undone")
	require.Empty(t, journals(t, o.StateDir))
}

func TestJournalThatCannotBeWrittenForbidsTheChange(t *testing.T) {
	n := newNIC()
	o := options(t)
	p, err := open(newKernel(n), "eth0", o, nil)
	require.NoError(t, err)
	require.NoError(t, os.RemoveAll(o.StateDir))
	require.ErrorIs(t, p.Apply(everything), os.ErrNotExist)
	require.Zero(t, n.calls)
}

// A disk that takes no journal any more does not keep the port from being put back.
func TestFullDiskWhileRestoring(t *testing.T) {
	n := newNIC()
	before := n.picture()
	o := options(t)
	p, err := open(newKernel(n), "eth0", o, nil)
	require.NoError(t, err)
	require.NoError(t, p.Apply(everything))
	require.NoError(t, os.Mkdir(p.path+newSuffix, 0o700)) // no file can be made there
	_, err = p.Close()
	require.NoError(t, err)
	require.Equal(t, before, n.picture())
	require.Empty(t, journals(t, o.StateDir))
}

// leave applies settings and ends without a word.
func leave(t *testing.T, k *fakeKernel, o Options) {
	t.Helper()
	p, err := open(k, "eth0", o, nil)
	require.NoError(t, err)
	require.NoError(t, p.Apply(lossless()))
	p.lock.f.Close()
}

// A journal that is cut off or altered at any place is refused with its name, kept and
// copied, and the port stays as it is.
func TestTornJournal(t *testing.T) {
	n := newNIC()
	k := newKernel(n)
	o := options(t)
	leave(t, k, o)
	path := journals(t, o.StateDir)[0]
	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	applied := n.picture()
	torn := [][]byte{}
	for cut := 0; cut < len(whole); cut += 1 + len(whole)/150 {
		torn = append(torn, whole[:cut])
	}
	r := rand.New(rand.NewPCG(3, 4))
	for range 150 {
		b := slices.Clone(whole)
		b[r.IntN(len(b))] ^= 1 << r.IntN(8)
		torn = append(torn, b)
	}
	torn = append(torn, append(slices.Clone(whole), '\n'), make([]byte, len(whole)))
	for _, b := range torn {
		require.NoError(t, os.WriteFile(path, b, 0o600))
		_, err := open(k, "eth0", o, nil)
		require.ErrorIs(t, err, ErrJournal)
		require.ErrorContains(t, err, path)
		reps, err := restoreAll(k, store{dir: o.StateDir}, nil)
		require.ErrorIs(t, err, ErrJournal)
		require.Empty(t, reps)
		require.Equal(t, applied, n.picture())
		kept, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, b, kept)
		aside, err := os.ReadFile(fmt.Sprintf("%s.damaged-%08x", path, checksum(b)))
		require.NoError(t, err)
		require.Equal(t, b, aside)
		require.Len(t, files(t, o.StateDir), 2, "one copy")
		require.NoError(t, os.Remove(fmt.Sprintf("%s.damaged-%08x", path, checksum(b))))
	}
	require.NoError(t, os.WriteFile(path, whole, 0o600))
	_, err = restoreAll(k, store{dir: o.StateDir}, nil)
	require.NoError(t, err)
	require.Equal(t, newNIC().picture(), n.picture())
}

func TestDamagedJournalOfAnotherPortIsNoHindrance(t *testing.T) {
	o := options(t)
	require.NoError(t, os.WriteFile(filepath.Join(o.StateDir, "4026531840-9-eth9.journal"), []byte("x"), 0o600))
	p, err := open(newKernel(newNIC()), "eth0", o, nil)
	require.NoError(t, err)
	_, err = p.Close()
	require.NoError(t, err)
	_, err = restoreAll(newKernel(newNIC()), store{dir: o.StateDir}, nil)
	require.ErrorIs(t, err, ErrJournal, "but it is not forgotten")
}

func TestWhichInterfaceAJournalIsOf(t *testing.T) {
	other := link{Index: 2, Name: "eth0", Driver: "fake", Bus: "0000:04:00.0", Address: "02:00:00:00:00:02"}
	for _, c := range []struct {
		name    string
		virtual bool
		change  func(k *fakeKernel)
		at      int  // index of the interface that is put back, 0: none
		kept    bool // the journal
		err     bool
	}{
		{"renamed", false, func(k *fakeKernel) { k.links[0].Name = "lan" }, 2, false, false},
		{"another MAC address", true, func(k *fakeKernel) {}, 2, false, false},
		{"virtual and renamed", true, func(k *fakeKernel) { k.links[0].Name = "lan" }, 2, false, false},
		{"other index after a boot", false, func(k *fakeKernel) { k.boot = "b2"; k.links[0].Index = 5; k.nics[5] = k.nics[2] }, 5, false, false},
		{"another card has its name and index after a boot", false, func(k *fakeKernel) { k.boot = "b2"; k.links[0] = other }, 0, true, false},
		{"driver loaded again", false, func(k *fakeKernel) { k.links[0].Index = 6; k.nics[6] = k.nics[2] }, 6, false, false},
		{"back from a namespace that is gone", false, func(k *fakeKernel) { k.netns = 7; k.links[0].Index = 4; k.nics[4] = k.nics[2] }, 4, false, false},
		{"gone", false, func(k *fakeKernel) { k.links = nil }, 0, true, false},
		{"virtual and gone", true, func(k *fakeKernel) { k.links = nil }, 0, false, false},
		{"virtual, after a boot", true, func(k *fakeKernel) { k.boot = "b2" }, 0, false, false},
		{"virtual, in another namespace", true, func(k *fakeKernel) { k.netns = 7 }, 0, true, false},
		{"two have its address", false, func(k *fakeKernel) {
			k.boot = "b2"
			twin := k.links[0]
			twin.Index = 3
			k.links = append(k.links, twin)
		}, 0, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNIC()
			k := newKernel(n)
			if c.virtual {
				k.hardwareless()
			}
			before := n.picture()
			o := options(t)
			leave(t, k, o)
			applied := n.picture()
			c.change(k)
			reps, err := restoreAll(k, store{dir: o.StateDir}, nil)
			require.Equal(t, c.err, err != nil, "%v", err)
			require.Equal(t, c.kept, len(journals(t, o.StateDir)) == 1)
			if c.at != 0 {
				require.Equal(t, before, k.nics[c.at].picture())
			} else {
				require.Equal(t, applied, n.picture(), "another interface is not touched")
			}
			if !c.err {
				require.Len(t, reps, 1)
				require.Equal(t, c.at == 0, reps[0].Absent)
			}
		})
	}
}

// After a boot the driver may not know a property any more; its settings went with the
// boot, and that is no reason to refuse the port.
func TestPropertyThatIsGoneAfterABoot(t *testing.T) {
	n := newNIC()
	k := newKernel(n)
	o := options(t)
	leave(t, k, o)
	delete(n.fields, ethtool.UDP6)
	_, err := restoreAll(k, store{dir: o.StateDir}, nil)
	require.ErrorIs(t, err, ErrNotRestored, "in the same boot it is")
	require.ErrorContains(t, err, "hash_fields/6")
	k.boot = "b2"
	_, err = restoreAll(k, store{dir: o.StateDir}, nil)
	require.NoError(t, err)
	require.Empty(t, journals(t, o.StateDir))
}

// A journal of a card that is away is not overwritten by the card in its place.
func TestJournalOfAnotherCardIsKept(t *testing.T) {
	o := options(t)
	leave(t, newKernel(newNIC()), o)
	old := journals(t, o.StateDir)[0]
	want, err := os.ReadFile(old)
	require.NoError(t, err)
	n := newNIC()
	k := newKernel(n)
	before := n.picture()
	k.boot, k.links[0].Address = "b2", "02:00:00:00:00:02"
	p, err := open(k, "eth0", o, nil)
	require.NoError(t, err)
	require.NoError(t, p.Apply(everything))
	require.Len(t, journals(t, o.StateDir), 2)
	_, err = p.Close()
	require.NoError(t, err)
	require.Equal(t, before, n.picture())
	got, err := os.ReadFile(old)
	require.NoError(t, err)
	require.Equal(t, want, got)
}

func TestHardwareGoneWhileApplied(t *testing.T) {
	n := newNIC()
	k := newKernel(n)
	o := options(t)
	p, err := open(k, "eth0", o, nil)
	require.NoError(t, err)
	require.NoError(t, p.Apply(everything))
	n.gone = true
	rep, err := p.Close()
	require.NoError(t, err)
	require.True(t, rep.Absent)
	require.Len(t, journals(t, o.StateDir), 1, "until the card is back")
}

func TestErrorsNameTheirPort(t *testing.T) {
	for _, err := range []error{&BusyError{Interface: "eth0"}, &LimitError{Interface: "eth0"}} {
		require.ErrorContains(t, err, "eth0")
	}
	require.True(t, errors.Is(&BusyError{}, ErrBusy))
	require.False(t, errors.Is(&BusyError{}, ErrLimit))
	require.True(t, strings.Contains((&BusyError{Interface: "e", Pid: 12}).Error(), "process 12"))
}

func FuzzJournal(f *testing.F) {
	j := &journal{
		Boot: "b1", Netns: 1, Link: link{Index: 2, Name: "eth0", Driver: "fake"}, Pending: channels,
		Before: state{channels: encode(ethtool.Channels{Combined: 8}), indirection: encode([]uint32{0, 1})},
		Ours:   map[property][]value{channels: {encode(ethtool.Channels{Combined: 4})}, ruleAt(3): {absent}},
	}
	whole, err := encodeJournal(j)
	require.NoError(f, err)
	f.Add(whole)
	_, body, _ := strings.Cut(string(whole), "\n")
	f.Add([]byte(body))
	f.Add([]byte("agp-port-journal 1 3 00000000\n{}\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		// As it is, and with a first line that is right, so that the rest is read too.
		whole := append([]byte(fmt.Sprintf("agp-port-journal 1 %d %08x\n", len(b), checksum(b))), b...)
		for _, in := range [][]byte{b, whole} {
			j, err := decodeJournal(in)
			if err != nil {
				continue
			}
			again, err := encodeJournal(j)
			require.NoError(t, err)
			k, err := decodeJournal(again)
			require.NoError(t, err)
			require.Equal(t, j, k)
			// What it says can be tried on an interface without harm to us.
			_, _ = undo(newNIC(), j, j.Before, func() error { return nil })
		}
	})
}
