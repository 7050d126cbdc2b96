package port

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agp-net/telegraf-agp/agp/steer/ethtool"
)

// Options say where a port keeps its files.
type Options struct {
	StateDir string // journals: must survive a power cut; /var/lib/telegraf-agp
	LockDir  string // locks, StateDir if empty: /run/telegraf-agp
}

// Settings are what a port is to be set to. What is zero is left as it is.
type Settings struct {
	Channels int // receive queues
	RXRing   int // entries of each receive ring
	TXRing   int // entries of each transmit ring
	// RSSKey is repeated to the length that the interface wants, and makes Toeplitz
	// the hash function. {0x6d, 0x5a} gives both directions of a flow the same queue.
	RSSKey []byte
	// Indirection is repeated to the length of the table: {0, 1} spreads over two queues.
	Indirection []uint32
	// HashFields are the fields that the hash covers, by flow type.
	HashFields map[ethtool.FlowType]uint64
	// Features are switched on or off, by the kernel's name.
	Features map[string]bool
	// Rules are the classification rules of this process, after those of others. An
	// empty list that is not nil removes them.
	Rules []ethtool.Rule
	// Promiscuous makes the interface receive frames for others. false ends that.
	Promiscuous bool
}

// Info is what an interface is and is set to. What the driver does not have is zero.
type Info struct {
	Name        string
	IfIndex     int
	Driver      string
	Bus         string // address of the hardware, "" if it is virtual
	Address     string // permanent hardware address, "" if it has none
	MTU         int
	Up          bool // up, with a carrier
	Channels    ethtool.Channels
	MaxChannels ethtool.Channels
	Rings       ethtool.Rings
	MaxRings    ethtool.Rings
	RSS         ethtool.RSS
	HashFields  map[ethtool.FlowType]uint64
	Features    map[string]ethtool.Feature
	Rules       int // classification rules, of whoever
	RulePlaces  int
}

// RSSSupported says whether the driver can steer by an indirection table.
func (i Info) RSSSupported() bool { return len(i.RSS.Indirection) > 0 }

// Port is an interface that this process holds.
type Port struct {
	// Recovered says what Open put back that an earlier process had left.
	Recovered []Report

	mu       sync.Mutex
	link     link // as it was at Open
	k        kernel
	d        device
	lock     *portLock
	lockDir  string
	st       store
	path     string
	j        *journal // nil while nothing is to be undone
	features []string // names of those that have been set
	promisc  io.Closer
	closed   bool

	left  chan struct{} // closed when Watch knows that the interface has left the namespace; nil: not watched
	moved atomic.Bool   // to another namespace; written before left is closed
}

// Open takes an interface for this process and puts back what an earlier one left
// changed on it. It needs no privilege if there is nothing to put back.
func Open(name string, o Options) (*Port, error) {
	k, err := openLinux()
	if err != nil {
		return nil, err
	}
	p, err := open(k, name, o, nil)
	if err != nil {
		k.Close()
	}
	return p, err
}

func open(k kernel, name string, o Options, step func(string)) (*Port, error) {
	if o.StateDir == "" {
		return nil, fmt.Errorf("%s: no directory for journals", name)
	}
	if o.LockDir == "" {
		o.LockDir = o.StateDir
	}
	l, err := k.Link(name)
	if err != nil {
		return nil, err
	}
	lock, err := acquire(k, o.LockDir, l)
	if err != nil {
		return nil, err
	}
	p := &Port{
		link: l, k: k, d: k.Device(l.Index), lock: lock, lockDir: o.LockDir,
		st: store{dir: o.StateDir, step: step},
	}
	if p.Recovered, err = restoreAll(k, p.st, &l); err != nil {
		lock.release()
		return nil, err
	}
	if p.path, err = p.st.free(k.Netns(), l); err != nil {
		lock.release()
		return nil, err
	}
	return p, nil
}

// IfIndex is the index of the interface. It does not change while the interface exists.
func (p *Port) IfIndex() int { return p.link.Index }

// Info reads the present state of the interface.
func (p *Port) Info() (Info, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return Info{}, p.fail(ErrClosed)
	}
	l, err := p.k.LinkByIndex(p.link.Index)
	if err != nil {
		return Info{}, err
	}
	r, err := read(p.d, nil)
	if err != nil {
		return Info{}, err
	}
	i := Info{
		Name: l.Name, IfIndex: l.Index, Driver: l.Driver, Bus: l.Bus, Address: l.Address, MTU: l.mtu, Up: l.up,
		MaxChannels: r.maxChannels, MaxRings: r.maxRings,
		HashFields: map[ethtool.FlowType]uint64{},
		Features:   r.features, Rules: len(r.rules), RulePlaces: r.places,
	}
	i.Channels, _ = decode[ethtool.Channels](r.state[channels])
	i.Rings, _ = decode[ethtool.Rings](r.state[rings])
	k, _ := decode[keyValue](r.state[rssKey])
	i.RSS = ethtool.RSS{Function: k.Function, Key: k.Key, Indirection: r.table(), Transform: r.transform}
	for _, t := range hashed {
		if f, err := decode[uint64](r.state[hashProperty(t)]); err == nil {
			i.HashFields[t] = f
		}
	}
	return i, nil
}

// fail names the port, unless the error does.
func (p *Port) fail(err error) error {
	if strings.HasPrefix(err.Error(), p.link.Name+": ") {
		return err
	}
	return fmt.Errorf("%s: %w", p.link.Name, err)
}

// Look reads the present state of an interface without taking it.
func Look(name string) (Info, error) {
	k, err := openLinux()
	if err != nil {
		return Info{}, err
	}
	defer k.Close()
	l, err := k.Link(name)
	if err != nil {
		return Info{}, err
	}
	return (&Port{link: l, k: k, d: k.Device(l.Index)}).Info()
}

// Apply changes the port. All limits are checked before the first change; if a change
// fails, those before it are undone. Apply may be called again with other settings.
func (p *Port) Apply(s Settings) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return p.fail(ErrClosed)
	}
	names := slices.Concat(p.features, slices.Collect(maps.Keys(s.Features)))
	if len(s.Rules) > 0 {
		names = append(names, ntupleRules)
	}
	slices.Sort(names)
	p.features = slices.Compact(names)
	start, err := read(p.d, p.features)
	if err != nil {
		return err
	}
	plan, err := p.plan(s, start)
	if err != nil {
		return err
	}
	earlier := p.j != nil
	for _, step := range plan {
		if err := p.change(step); err != nil {
			return errors.Join(err, p.rollback(start.state, earlier))
		}
	}
	if err := p.setPromiscuous(s.Promiscuous); err != nil {
		return errors.Join(err, p.rollback(start.state, earlier))
	}
	return nil
}

// rollback undoes what this Apply has done. earlier says that another one came
// before it, whose changes stay.
func (p *Port) rollback(target state, earlier bool) error {
	if p.j == nil {
		return nil
	}
	save := func() error { return p.st.write(p.path, p.j) }
	if _, err := undo(p.d, p.j, target, save); err != nil {
		return errors.Join(err, save())
	}
	if earlier {
		return save()
	}
	p.j = nil
	return p.st.remove(p.path)
}

// Restore puts back everything that Apply changed and ends promiscuous mode. It may
// be called again after an error, and is a no-op if nothing is left to do.
func (p *Port) Restore() (Report, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return Report{Interface: p.link.Name}, p.fail(ErrClosed)
	}
	return p.restore()
}

func (p *Port) restore() (Report, error) {
	rep := Report{Interface: p.link.Name}
	err := p.setPromiscuous(false)
	if p.j == nil {
		return rep, err
	}
	rep, rerr := settle(p.d, p.st, p.path, p.j)
	if errors.Is(rerr, ErrNoInterface) {
		rep.Absent, rerr = true, nil
		switch {
		case p.link.physical():
		case p.hasMoved():
			p.j.Moved = true
			rerr = p.st.write(p.path, p.j)
		default:
			rerr = p.st.remove(p.path)
		}
	}
	if rerr == nil {
		p.j = nil
	}
	return rep, errors.Join(err, rerr)
}

// leaveLimit is how long the kernel may take to say where an interface has gone that others
// have noticed to be gone.
const leaveLimit = time.Second

// hasMoved says whether an interface that is gone is in another network namespace. Only
// who watches it knows.
func (p *Port) hasMoved() bool {
	if p.left == nil {
		return false
	}
	select {
	case <-p.left:
	case <-time.After(leaveLimit):
	}
	return p.moved.Load()
}

// Close restores the port and gives it up. If that fails, the journal stays for
// RestoreAll. Closing twice is a no-op.
func (p *Port) Close() (Report, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return Report{Interface: p.link.Name}, nil
	}
	rep, err := p.restore()
	p.closed = true
	p.lock.release()
	return rep, errors.Join(err, p.k.Close())
}

func (p *Port) setPromiscuous(on bool) (err error) {
	switch {
	case on && p.promisc == nil:
		p.promisc, err = p.k.Promiscuous(p.link)
	case !on && p.promisc != nil:
		err = p.promisc.Close()
		p.promisc = nil
	}
	return err
}

// change is one step of a plan.
type change struct {
	p  property
	to func(cur reading) (value, error) // the value, given what the steps before led to
}

func to(v value) func(reading) (value, error) {
	return func(reading) (value, error) { return v, nil }
}

func hashProperty(t ethtool.FlowType) property {
	return property(hashFields + strconv.Itoa(int(t)))
}

// plan checks s against what the interface has and says what to do in which order.
func (p *Port) plan(s Settings, cur reading) ([]change, error) {
	queues := cur.queues()
	limit := func(what string, want, max int) error {
		return &LimitError{Interface: p.link.Name, What: what, Want: want, Max: max}
	}
	need := func(q property) error {
		if _, ok := cur.state[q]; !ok {
			return p.fail(cur.reason(q))
		}
		return nil
	}

	if s.Channels < 0 || s.RXRing < 0 || s.TXRing < 0 {
		return nil, p.fail(errors.New("negative number of queues or ring entries"))
	}
	// Rules that are no longer wanted go first: they may lead to queues that go too.
	steps, rules, err := p.removals(s.Rules, cur)
	if err != nil {
		return nil, err
	}
	if s.Channels > 0 {
		if err := need(channels); err != nil {
			return nil, err
		}
		c, err := decode[ethtool.Channels](cur.state[channels])
		if err != nil {
			return nil, p.fail(err)
		}
		most := max(int(cur.maxChannels.Combined), int(cur.maxChannels.RX))
		if s.Channels > most {
			return nil, limit("receive queues", s.Channels, most)
		}
		if s.Channels <= int(cur.maxChannels.Combined) {
			c.RX, c.Combined = 0, uint32(s.Channels)
		} else {
			c.RX, c.Combined = uint32(s.Channels), 0
		}
		for _, r := range cur.rules {
			if q, ok := r.Queue(); ok && q >= s.Channels && !slices.ContainsFunc(steps, func(c change) bool { return c.p == ruleAt(r.Location()) }) {
				return nil, p.fail(fmt.Errorf("%d receive queues: rule %d leads to queue %d: %w",
					s.Channels, r.Location(), q, ErrLimit))
			}
		}
		if t := cur.table(); !even(t, queues) && !fits(t, s.Channels) {
			// The kernel refuses fewer queues than a table uses that somebody has set.
			n := min(s.Channels, queues)
			steps = append(steps, change{indirection, func(cur reading) (value, error) {
				return repeatTable(spread(n), len(cur.table())), nil
			}})
		}
		queues = s.Channels
		steps = append(steps, change{channels, to(encode(c))})
	}

	if s.RXRing > 0 || s.TXRing > 0 {
		if err := need(rings); err != nil {
			return nil, err
		}
		g, err := decode[ethtool.Rings](cur.state[rings])
		if err != nil {
			return nil, p.fail(err)
		}
		for _, r := range []struct {
			what    string
			want    int
			max     uint32
			current *uint32
		}{
			{"receive ring entries", s.RXRing, cur.maxRings.RX, &g.RX},
			{"transmit ring entries", s.TXRing, cur.maxRings.TX, &g.TX},
		} {
			if r.want > int(r.max) {
				return nil, limit(r.what, r.want, int(r.max))
			}
			if r.want > 0 {
				*r.current = uint32(r.want)
			}
		}
		steps = append(steps, change{rings, to(encode(g))})
	}

	if len(s.RSSKey) > 0 {
		if err := need(rssKey); err != nil {
			return nil, err
		}
		k, err := decode[keyValue](cur.state[rssKey])
		if err != nil {
			return nil, p.fail(err)
		}
		if len(s.RSSKey) > len(k.Key) {
			return nil, limit("bytes of RSS key", len(s.RSSKey), len(k.Key))
		}
		key := bytes.Repeat(s.RSSKey, len(k.Key)/len(s.RSSKey)+1)[:len(k.Key)]
		steps = append(steps, change{rssKey, to(encode(keyValue{ethtool.Toeplitz, key}))})
	}

	if len(s.Indirection) > 0 {
		if err := need(indirection); err != nil {
			return nil, err
		}
		if n := len(cur.table()); len(s.Indirection) > n {
			return nil, limit("entries of the indirection table", len(s.Indirection), n)
		}
		if q := int(slices.Max(s.Indirection)); queues > 0 && q >= queues {
			return nil, limit("receive queues in the indirection table", q+1, queues)
		}
		steps = append(steps, change{indirection, func(cur reading) (value, error) {
			return repeatTable(s.Indirection, len(cur.table())), nil
		}})
	}

	for _, t := range slices.Sorted(maps.Keys(s.HashFields)) {
		if err := need(hashProperty(t)); err != nil {
			return nil, err
		}
		steps = append(steps, change{hashProperty(t), to(encode(s.HashFields[t]))})
	}
	for _, n := range slices.Sorted(maps.Keys(s.Features)) {
		if err := need(property(feature + n)); err != nil {
			return nil, err
		}
		steps = append(steps, change{property(feature + n), to(encode(s.Features[n]))})
	}
	r, err := p.additions(rules, cur, queues)
	return append(steps, r...), err
}

// own says whether a rule is one that this port has made.
func (p *Port) own(r ethtool.Spec) bool {
	return p.j != nil && p.j.Before.get(ruleAt(r.Location())) == absent && p.j.ours(ruleAt(r.Location()), encode(r))
}

// removals compares the rules that are wanted with ours that are there: the steps
// remove those that are no longer wanted, missing are those to be made.
func (p *Port) removals(rules []ethtool.Rule, cur reading) (steps []change, missing []ethtool.Spec, err error) {
	for i, r := range rules {
		s, err := r.Spec()
		if err != nil {
			return nil, nil, p.fail(fmt.Errorf("rule %d: %w", i+1, err))
		}
		missing = append(missing, s.Canonical())
	}
	if rules == nil {
		return nil, nil, nil
	}
	for _, r := range cur.rules {
		if !p.own(r) {
			continue
		}
		if i := slices.Index(missing, r.At(0)); i >= 0 {
			missing = slices.Delete(missing, i, i+1)
		} else {
			steps = append(steps, change{ruleAt(r.Location()), to(absent)})
		}
	}
	return steps, missing, nil
}

// additions gives each new rule the last free location, so that rules of others
// match first.
func (p *Port) additions(rules []ethtool.Spec, cur reading, queues int) (steps []change, err error) {
	if len(rules) == 0 {
		return nil, nil
	}
	if err := cur.errs[rule]; err != nil {
		return nil, p.fail(err)
	}
	if cur.places == 0 {
		return nil, p.fail(fmt.Errorf("rules: the driver does not say how many it takes: %w", ErrNotSupported))
	}
	if f, ok := cur.features[ntupleRules]; ok && !f.Active {
		steps = append(steps, change{feature + ntupleRules, to(encode(true))})
	}
	used := map[uint32]bool{}
	for _, r := range cur.rules {
		used[r.Location()] = true
	}
	at := cur.places
	for _, r := range slices.Backward(rules) {
		if q, _ := r.Queue(); queues > 0 && q >= queues {
			return nil, &LimitError{Interface: p.link.Name, What: "receive queues in rules", Want: q + 1, Max: queues}
		}
		for at--; at >= 0 && used[uint32(at)]; at-- {
		}
		if at < 0 {
			return nil, &LimitError{Interface: p.link.Name, What: "classification rules", Want: len(used) + len(rules), Max: cur.places}
		}
		steps = append(steps, change{ruleAt(uint32(at)), to(encode(r.At(uint32(at))))})
	}
	return steps, nil
}

func spread(n int) []uint32 {
	t := make([]uint32, n)
	for i := range t {
		t[i] = uint32(i)
	}
	return t
}

func repeatTable(pattern []uint32, n int) value {
	t := make([]uint32, n)
	for i := range t {
		t[i] = pattern[i%len(pattern)]
	}
	return encode(t)
}

// change makes one change: journal, change, look, journal.
func (p *Port) change(c change) error {
	before, err := read(p.d, p.features)
	if err != nil {
		return err
	}
	v, err := c.to(before)
	if err != nil {
		return p.fail(err)
	}
	was, ok := before.at(c.p)
	switch {
	case !ok:
		return p.fail(before.reason(c.p))
	case was == v, c.p == rings && p.j != nil && p.j.ours(rings, was) && roundedTo(was, v):
		return nil
	}
	first := p.j == nil
	if first {
		p.j = &journal{
			Boot: p.k.Boot(), Netns: p.k.Netns(), Link: p.link, LockDir: p.lockDir,
			Before: maps.Clone(before.state), Ours: map[property][]value{},
		}
	}
	p.j.touch(c.p, was)
	p.j.add(c.p, v)
	p.j.Pending = c.p
	if err := p.st.write(p.path, p.j); err != nil {
		if first {
			p.j = nil // nothing has been changed
		}
		return err
	}
	werr := write(p.d, c.p, v)
	if werr != nil && c.p == channels && even(before.table(), before.queues()) {
		// An even table that somebody has written looks like the driver's own, but
		// forbids fewer queues until it is given back.
		if p.d.SetRSS(ethtool.RSSChange{DefaultIndirection: true}) == nil {
			werr = write(p.d, c.p, v)
		}
	}
	after, err := read(p.d, p.features)
	if err != nil {
		return errors.Join(werr, err)
	}
	got, _ := after.at(c.p)
	if werr == nil && got != v && !(c.p == rings && roundedTo(got, v)) {
		werr = p.fail(fmt.Errorf("%s: %w: asked %.60s, got %.60s", c.p, ErrNotApplied, v, got))
	}
	// What changed with it is undone with it.
	for q := range union(before.state, after.state) {
		was, now := before.get(q), after.get(q)
		if was == now {
			continue
		}
		p.j.touch(q, was)
		if werr == nil {
			p.j.Ours[q] = nil // earlier values are not there any more
		}
		p.j.add(q, now)
	}
	p.j.Pending = ""
	return errors.Join(werr, p.st.write(p.path, p.j))
}

func union(a, b state) state {
	u := maps.Clone(a)
	maps.Copy(u, b)
	return u
}
