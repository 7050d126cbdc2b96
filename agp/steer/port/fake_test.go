package port

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/agp-net/telegraf-agp/agp/steer/ethtool"
)

// fakeNIC is an interface with RSS, rings, channels, hash fields, features and rules. It
// refuses what the kernel refuses, and has the habits of real drivers.
type fakeNIC struct {
	// Habits.
	roundsRings bool // to powers of two
	resetsTable bool // and key, when the number of queues changes
	dropsRules  bool // when the number of queues changes
	noDefault   bool // cannot take the table back

	c, maxC    ethtool.Channels
	g, maxG    ethtool.Rings
	rss        ethtool.RSS
	configured bool // somebody has written the table (IFF_RXFH_CONFIGURED)
	fields     map[ethtool.FlowType]uint64
	features   map[string]ethtool.Feature
	rules      map[uint32]ethtool.Spec
	places     int

	calls int             // of setters
	tick  func()          // before and after each change
	fail  func(int) error // of the n-th setter
	after bool            // it fails after it has done its work
	gone  bool
}

func newNIC() *fakeNIC {
	n := &fakeNIC{
		c: ethtool.Channels{Other: 1, Combined: 8}, maxC: ethtool.Channels{Other: 1, Combined: 16},
		g:    ethtool.Rings{RX: 512, TX: 512},
		maxG: ethtool.Rings{RX: 8192, TX: 8192},
		rss:  ethtool.RSS{Function: ethtool.XOR, Key: bytes.Repeat([]byte{0xa5, 1}, 20), Indirection: make([]uint32, 32)},
		fields: map[ethtool.FlowType]uint64{
			ethtool.TCP4: 0xf0, ethtool.UDP4: 0x30, ethtool.TCP6: 0xf0, ethtool.UDP6: 0x30,
		},
		features: map[string]ethtool.Feature{ntupleRules: {}, "rx-lro": {Active: true, Wanted: true}},
		rules:    map[uint32]ethtool.Spec{},
		places:   32,
	}
	n.spread()
	return n
}

func (n *fakeNIC) spread() {
	for i := range n.rss.Indirection {
		n.rss.Indirection[i] = uint32(i % n.c.Receive())
	}
	n.configured = false
}

// picture is all that a restore has to bring back.
func (n *fakeNIC) picture() string {
	return fmt.Sprint(n.c, n.g, n.rss, n.configured, n.fields, n.features, n.rules)
}

// set is one change.
func (n *fakeNIC) set(do func() error) error {
	if n.gone {
		return ErrNoInterface
	}
	n.calls++
	if n.tick != nil {
		n.tick()
	}
	var injected error
	if n.fail != nil {
		injected = n.fail(n.calls)
	}
	if injected != nil && !n.after {
		return injected
	}
	if err := do(); err != nil {
		return err
	}
	if n.tick != nil {
		n.tick()
	}
	return injected
}

func (n *fakeNIC) present() error {
	if n.gone {
		return ErrNoInterface
	}
	return nil
}

func (n *fakeNIC) Channels() (c, m ethtool.Channels, err error) { return n.c, n.maxC, n.present() }

func (n *fakeNIC) SetChannels(c ethtool.Channels) error {
	return n.set(func() error {
		switch {
		case c.RX > n.maxC.RX || c.TX > n.maxC.TX || c.Other > n.maxC.Other || c.Combined > n.maxC.Combined, c.Receive() == 0:
			return unix.EINVAL
		case n.configured && !n.resetsTable && !fits(n.rss.Indirection, c.Receive()):
			return unix.EINVAL
		}
		for _, r := range n.rules {
			if q, _ := r.Queue(); q >= c.Receive() && !n.dropsRules {
				return unix.EINVAL
			}
		}
		n.c = c
		if !n.configured || n.resetsTable {
			n.spread()
		}
		if n.resetsTable {
			n.rss.Key = bytes.Repeat([]byte{0xa5, 1}, 20)
		}
		if n.dropsRules {
			clear(n.rules)
		}
		return nil
	})
}

func (n *fakeNIC) Rings() (c, m ethtool.Rings, err error) { return n.g, n.maxG, n.present() }

func (n *fakeNIC) SetRings(g ethtool.Rings) error {
	return n.set(func() error {
		if g.RX > n.maxG.RX || g.TX > n.maxG.TX || g.RX == 0 || g.TX == 0 {
			return unix.EINVAL
		}
		if n.roundsRings {
			for _, r := range []*uint32{&g.RX, &g.TX} {
				up := uint32(64)
				for up < *r {
					up *= 2
				}
				*r = up
			}
		}
		n.g = g
		return nil
	})
}

func (n *fakeNIC) RSS() (ethtool.RSS, error) {
	r := n.rss
	r.Key, r.Indirection = bytes.Clone(r.Key), slices.Clone(r.Indirection)
	return r, n.present()
}

func (n *fakeNIC) SetRSS(c ethtool.RSSChange) error {
	return n.set(func() error {
		switch {
		case c.Key != nil && len(c.Key) != len(n.rss.Key),
			c.Indirection != nil && (len(c.Indirection) != len(n.rss.Indirection) || !fits(c.Indirection, n.c.Receive())):
			return unix.EINVAL
		case c.DefaultIndirection && n.noDefault:
			return ErrNotSupported
		}
		if c.Key != nil {
			n.rss.Key = bytes.Clone(c.Key)
		}
		if c.Function != 0 {
			n.rss.Function = c.Function
		}
		if c.Indirection != nil {
			n.rss.Indirection, n.configured = slices.Clone(c.Indirection), true
		}
		if c.DefaultIndirection {
			n.spread()
		}
		return nil
	})
}

func (n *fakeNIC) HashFields(t ethtool.FlowType) (uint64, error) {
	if f, ok := n.fields[t]; ok {
		return f, n.present()
	}
	return 0, errors.Join(n.present(), unix.EINVAL)
}

func (n *fakeNIC) SetHashFields(t ethtool.FlowType, f uint64) error {
	return n.set(func() error { n.fields[t] = f; return nil })
}

func (n *fakeNIC) Features() (map[string]ethtool.Feature, error) {
	return maps.Clone(n.features), n.present()
}

func (n *fakeNIC) SetFeature(name string, on bool) error {
	return n.set(func() error {
		n.features[name] = ethtool.Feature{Active: on, Wanted: on}
		if name == ntupleRules && !on {
			clear(n.rules)
		}
		return nil
	})
}

func (n *fakeNIC) Rules() (rules []ethtool.Spec, places int, err error) {
	for _, l := range slices.Sorted(maps.Keys(n.rules)) {
		rules = append(rules, n.rules[l])
	}
	return rules, n.places, n.present()
}

func (n *fakeNIC) InsertRule(s ethtool.Spec) error {
	return n.set(func() error {
		q, _ := s.Queue()
		switch {
		case !n.features[ntupleRules].Active:
			return ErrNotSupported
		case int(s.Location()) >= n.places || q >= n.c.Receive():
			return unix.EINVAL
		}
		n.rules[s.Location()] = s
		return nil
	})
}

func (n *fakeNIC) DeleteRule(location uint32) error {
	return n.set(func() error {
		if _, ok := n.rules[location]; !ok {
			return unix.ENOENT
		}
		delete(n.rules, location)
		return nil
	})
}

// fakeKernel has some interfaces.
type fakeKernel struct {
	boot  string
	netns uint64
	links []link
	nics  map[int]*fakeNIC
	// noPromisc is what the packet socket says.
	noPromisc error
	promisc   int
}

func newKernel(n *fakeNIC) *fakeKernel {
	return &fakeKernel{
		boot: "b1", netns: 4026531840,
		links: []link{{Index: 2, Name: "eth0", Driver: "fake", Bus: "0000:03:00.0", Address: "02:00:00:00:00:01", mtu: 1500, up: true}},
		nics:  map[int]*fakeNIC{2: n},
	}
}

// hardwareless makes the interface one that has no address of its own.
func (k *fakeKernel) hardwareless() *fakeKernel {
	k.links[0].Bus, k.links[0].Address = "", ""
	return k
}

func (k *fakeKernel) Boot() string  { return k.boot }
func (k *fakeKernel) Netns() uint64 { return k.netns }
func (k *fakeKernel) Close() error  { return nil }

func (k *fakeKernel) find(ok func(link) bool) (link, error) {
	if i := slices.IndexFunc(k.links, ok); i >= 0 {
		return k.links[i], nil
	}
	return link{}, ErrNoInterface
}

func (k *fakeKernel) Link(name string) (link, error) {
	return k.find(func(l link) bool { return l.Name == name })
}

func (k *fakeKernel) LinkByIndex(i int) (link, error) {
	return k.find(func(l link) bool { return l.Index == i })
}

func (k *fakeKernel) Links() ([]link, error)    { return slices.Clone(k.links), nil }
func (k *fakeKernel) Device(ifindex int) device { return k.nics[ifindex] }

func (k *fakeKernel) Claim(link) (io.Closer, error) { return closer(func() {}), nil }

type closer func()

func (c closer) Close() error { c(); return nil }

func (k *fakeKernel) Promiscuous(link) (io.Closer, error) {
	if k.noPromisc != nil {
		return nil, k.noPromisc
	}
	k.promisc++
	return closer(func() { k.promisc-- }), nil
}
