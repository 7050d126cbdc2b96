package enforce

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/agp-net/telegraf-agp/agp/telemetry/agppb"
)

// Sender gives commands to the running engine. An error means that the engine did
// not get this one and gets no other: either there is none, or it is being replaced.
type Sender interface {
	Send(*agppb.Command) error
}

// Logger is the part of telegraf.Logger that is used.
type Logger interface {
	Errorf(format string, args ...any)
	Warnf(format string, args ...any)
	Infof(format string, args ...any)
	Debugf(format string, args ...any)
}

// Config of a Manager. Log is required, zero values of the rest take the defaults.
type Config struct {
	Enforce    bool          // false: dry run, the engine counts what it would drop
	TTL        time.Duration // of a rule that asks for none; default 10 min
	MaxEntries int           // default 65536
	Allow      []netip.Prefix
	Protect    []string // hosts as ParseHost returns them
	Policy     Policy
	StateFile  string // where rules outlive this process; "": they do not
	Sender     Sender // nil: there is nothing that could enforce
	Log        Logger

	Now    func() time.Time
	Local  func() ([]Allowed, error)                                    // default LocalAllowed
	Lookup func(ctx context.Context, host string) ([]netip.Addr, error) // default: the system's resolver
}

// Defaults of Config.
const (
	DefaultTTL        = 10 * time.Minute
	DefaultMaxEntries = 1 << 16
)

const (
	batch         = 4096 // rules in one command
	tick          = time.Second
	localInterval = 10 * time.Second // between looks at addresses and routes
	localShare    = 50               // and this many times as long as one takes
	lookupLimit   = 3 * time.Second
	lookupAgain   = 5 * time.Minute
	lookupRetry   = 30 * time.Second
	lookupKeep    = time.Hour // an address stays allowed after the last answer that had it
	maxLines      = 10        // log lines about one cause
)

// Stats of a Manager. Gauges are of this moment, counters never step back.
type Stats struct {
	DryRun         bool
	Blocked        uint64 // gauge: rules that block
	RateLimited    uint64 // gauge: rules that limit
	MaxEntries     uint64
	Allowed        uint64 // gauge: entries of the allow list
	Added          uint64
	Expired        uint64
	RefusedAllowed uint64 // by the allow list, also rules that it took away later
	RefusedFull    uint64
	RefusedRate    uint64 // alerts beyond the bound per minute
	RefusedOther   uint64
	// RefusedUnconfirmed counts alerts whose source may be forged.
	RefusedUnconfirmed uint64
}

// entry is a rule and its place among those that expire.
type entry struct {
	Rule
	at int
}

// expiry orders entries by the end of their lifetime.
type expiry []*entry

func (e expiry) Len() int           { return len(e) }
func (e expiry) Less(i, j int) bool { return e[i].Expires.Before(e[j].Expires) }
func (e expiry) Swap(i, j int)      { e[i], e[j] = e[j], e[i]; e[i].at, e[j].at = i, j }
func (e *expiry) Push(x any)        { x.(*entry).at = len(*e); *e = append(*e, x.(*entry)) }
func (e *expiry) Pop() any {
	last := len(*e) - 1
	x := (*e)[last]
	(*e)[last], *e = nil, (*e)[:last]
	return x
}

// Manager keeps the list of rules.
type Manager struct {
	cfg  Config
	wake chan struct{} // capacity 1: there is something to send or save

	every time.Duration // between two looks at what is due

	send sync.Mutex // held while commands are on their way; before mu

	mu     sync.Mutex // guards what follows
	rules  map[netip.Prefix]*entry
	ends   expiry
	limits uint64 // rules that limit a rate
	stats  Stats

	allowed map[string][]Allowed // by where they come from
	known   map[string]map[netip.Addr]time.Time
	ready   bool // addresses of this machine are known

	engine bool           // there is one that gets what changes
	unable bool           // the engine that came up last can enforce nothing
	epoch  uint64         // counts engines
	clear  bool           // the next command empties the engine's list first
	queue  []netip.Prefix // changed since they were sent
	queued map[netip.Prefix]bool

	nextLocal time.Time
	localErr  string // said already
	fullSaid  bool   // that alerts find no room

	minute   time.Time // when the present minute of alerts began
	inMinute int

	unsaved  bool
	nextSave time.Time
	saveErr  string // said already
}

// New returns a manager with the rules of the state file. A state file that cannot
// be read is put aside and the list is empty; that is logged, not an error.
func New(cfg Config) (*Manager, error) {
	if cfg.Log == nil {
		return nil, errors.New("enforce: Log is required")
	}
	if cfg.TTL == 0 {
		cfg.TTL = DefaultTTL
	}
	if cfg.TTL < MinTTL || cfg.TTL > MaxTTL {
		return nil, fmt.Errorf("%w: %s, allowed %s to %s", ErrTTL, cfg.TTL, MinTTL, MaxTTL)
	}
	if cfg.MaxEntries <= 0 {
		cfg.MaxEntries = DefaultMaxEntries
	}
	cfg.Policy.setDefaults(cfg.TTL)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Local == nil {
		cfg.Local = LocalAllowed
	}
	if cfg.Lookup == nil {
		cfg.Lookup = func(ctx context.Context, name string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", name)
		}
	}
	m := &Manager{
		cfg: cfg, wake: make(chan struct{}, 1), every: tick,
		rules: map[netip.Prefix]*entry{}, queued: map[netip.Prefix]bool{},
		allowed: map[string][]Allowed{}, known: map[string]map[netip.Addr]time.Time{},
	}
	var configured []Allowed
	for _, p := range cfg.Allow {
		configured = append(configured, Allowed{unmap(p).Masked(), "configured"})
	}
	m.setAllowed("configured", configured)
	if cfg.StateFile != "" {
		m.load()
	}
	return m, nil
}

// Block blocks a prefix for ttl, or for the default lifetime if ttl is 0. A rule
// for the same prefix is replaced.
func (m *Manager) Block(p netip.Prefix, ttl time.Duration, reason, by string) (Rule, error) {
	return m.add(Rule{Prefix: p, Reason: reason, By: by}, ttl)
}

// RateLimit lets pps packets per second of a prefix pass, see Block.
func (m *Manager) RateLimit(p netip.Prefix, pps uint64, ttl time.Duration, reason, by string) (Rule, error) {
	if pps == 0 || pps > MaxRate {
		return Rule{}, fmt.Errorf("%w: %d packets per second, allowed 1 to %d", ErrRate, pps, MaxRate)
	}
	return m.add(Rule{Prefix: p, PacketsPerSecond: pps, Reason: reason, By: by}, ttl)
}

func (m *Manager) add(r Rule, ttl time.Duration) (Rule, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.addLocked(&r, ttl); err != nil {
		m.refused(err)
		return Rule{}, err
	}
	return r, nil
}

func (m *Manager) refused(err error) {
	switch {
	case errors.Is(err, ErrAllowed):
		m.stats.RefusedAllowed++
	case errors.Is(err, ErrFull):
		m.stats.RefusedFull++
	default:
		m.stats.RefusedOther++
	}
}

func (m *Manager) addLocked(r *Rule, ttl time.Duration) error {
	if ttl == 0 {
		ttl = m.cfg.TTL
	}
	if ttl < MinTTL || ttl > MaxTTL {
		return fmt.Errorf("%w: %s, allowed %s to %s", ErrTTL, ttl, MinTTL, MaxTTL)
	}
	for _, text := range []*string{&r.Reason, &r.By} {
		if len(*text) > MaxText {
			return fmt.Errorf("%w: %d bytes, allowed %d", ErrText, len(*text), MaxText)
		}
		*text = clean(*text)
	}
	if err := m.permitted(r.Prefix); err != nil {
		return err
	}
	if !m.ready {
		return ErrNotReady
	}
	if m.unable {
		return ErrUnable
	}
	r.Created = m.cfg.Now()
	r.Expires = r.Created.Add(ttl)
	return m.insert(r)
}

// permitted refuses what must not be blocked.
func (m *Manager) permitted(p netip.Prefix) error {
	if err := checkPrefix(p); err != nil {
		return err
	}
	for _, list := range m.allowed {
		for _, a := range list {
			if a.Prefix.Overlaps(p) {
				return conflict(p, a)
			}
		}
	}
	return nil
}

// because puts a reason, if there is one, into a sentence.
func because(reason string) string {
	if reason == "" {
		return ""
	}
	return " (" + reason + ")"
}

func conflict(p netip.Prefix, a Allowed) error {
	how := "contains"
	if p.Bits() >= a.Prefix.Bits() {
		how = "is in"
	}
	if p == a.Prefix {
		how = "is"
	}
	return fmt.Errorf("%w: %s %s %s: %s", ErrAllowed, show(p), how, show(a.Prefix), a.Why)
}

// show is a prefix for people: an address without its length.
func show(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

// clean makes one printable line of a text.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
}

// insert puts a rule that is permitted into the list.
func (m *Manager) insert(r *Rule) error {
	old := m.rules[r.Prefix]
	if old == nil && len(m.rules) >= m.cfg.MaxEntries {
		return fmt.Errorf("%w: %d entries", ErrFull, len(m.rules))
	}
	if old != nil {
		same := old.PacketsPerSecond == r.PacketsPerSecond
		m.count(old, -1)
		old.Rule = *r
		m.count(old, 1)
		heap.Fix(&m.ends, old.at)
		if !same {
			m.enqueue(r.Prefix)
		}
	} else {
		e := &entry{Rule: *r}
		m.rules[r.Prefix] = e
		heap.Push(&m.ends, e)
		m.count(e, 1)
		m.stats.Added++
		m.enqueue(r.Prefix)
	}
	m.unsaved = true
	m.signal()
	return nil
}

func (m *Manager) count(e *entry, by int) {
	if e.PacketsPerSecond > 0 {
		m.limits += uint64(by) //nolint:gosec // wraps back for -1
	}
}

func (m *Manager) remove(e *entry) {
	heap.Remove(&m.ends, e.at)
	delete(m.rules, e.Prefix)
	m.count(e, -1)
	m.enqueue(e.Prefix)
	m.unsaved = true
	m.signal()
	m.fullSaid = m.fullSaid && len(m.rules) > m.cfg.MaxEntries/2
}

// enqueue notes a change for the engine.
func (m *Manager) enqueue(p netip.Prefix) {
	if !m.engine {
		return // the next one gets everything
	}
	if !m.queued[p] {
		m.queued[p] = true
		m.queue = append(m.queue, p)
	}
}

// signal has Run send and save at once.
func (m *Manager) signal() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// Unblock takes the rule of exactly this prefix away.
func (m *Manager) Unblock(p netip.Prefix) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.rules[p]; e != nil {
		m.remove(e)
		return nil
	}
	if p.IsValid() {
		for bits := p.Bits() - 1; bits >= 0; bits-- {
			if wider, err := p.Addr().Prefix(bits); err == nil && m.rules[wider] != nil {
				return fmt.Errorf("%w: %s is in %s, which is one", ErrNotFound, show(p), wider)
			}
		}
	}
	return fmt.Errorf("%w: %s", ErrNotFound, show(p))
}

// List returns all rules by prefix.
func (m *Manager) List() []Rule {
	m.mu.Lock()
	list := make([]Rule, 0, len(m.rules))
	for _, e := range m.rules {
		list = append(list, e.Rule)
	}
	m.mu.Unlock()
	slices.SortFunc(list, func(a, b Rule) int { return a.Prefix.Compare(b.Prefix) })
	return list
}

// Allowed returns the allow list by prefix.
func (m *Manager) Allowed() []Allowed {
	m.mu.Lock()
	var list []Allowed
	for _, l := range m.allowed {
		list = append(list, l...)
	}
	m.mu.Unlock()
	slices.SortFunc(list, func(a, b Allowed) int {
		if c := a.Prefix.Compare(b.Prefix); c != 0 {
			return c
		}
		return strings.Compare(a.Why, b.Why)
	})
	return list
}

// Stats returns the present figures.
func (m *Manager) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.stats
	s.DryRun = !m.cfg.Enforce
	s.MaxEntries = uint64(m.cfg.MaxEntries)
	s.RateLimited, s.Blocked = m.limits, uint64(len(m.rules))-m.limits
	for _, l := range m.allowed {
		s.Allowed += uint64(len(l))
	}
	return s
}

// Ready says that an engine has come up which knows no rules yet, and whether it can
// enforce any: if not, rules are kept for a later one and new ones are refused. It does
// not block.
func (m *Manager) Ready(able bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unable = !able
	if m.unable {
		m.engine = false
		if len(m.rules) > 0 {
			m.cfg.Log.Warnf("%d rules are not enforced: %v", len(m.rules), ErrUnable)
		}
		return
	}
	m.engine, m.clear = true, true
	m.epoch++
	m.queue = m.queue[:0]
	clear(m.queued)
	for p := range m.rules {
		m.queued[p] = true
		m.queue = append(m.queue, p)
	}
	m.signal()
}

// Tick lets what is due happen: expiry, a look at the machine's addresses, sending
// and saving.
func (m *Manager) Tick() {
	now := m.cfg.Now()
	m.mu.Lock()
	for len(m.ends) > 0 && !now.Before(m.ends[0].Expires) {
		m.remove(m.ends[0])
		m.stats.Expired++
	}
	look := !now.Before(m.nextLocal)
	save := m.cfg.StateFile != "" && m.unsaved && !now.Before(m.nextSave)
	m.mu.Unlock()
	if look {
		m.Refresh()
	}
	m.flush()
	if save {
		m.save()
	}
}

// Refresh looks at the machine's addresses. When it fails the last answer holds.
func (m *Manager) Refresh() {
	begin := m.cfg.Now()
	list, err := m.cfg.Local()
	now := m.cfg.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.nextLocal = now.Add(max(localInterval, localShare*now.Sub(begin)))
	if err != nil {
		if text := err.Error(); text != m.localErr {
			m.localErr = text
			m.cfg.Log.Errorf("Allow list: %v", err)
		}
		return
	}
	m.localErr = ""
	m.ready = true
	m.setAllowed("local", list)
}

// Resolve looks the hosts to protect up and reports whether all answered. When one
// does not, its last answer holds.
func (m *Manager) Resolve(ctx context.Context) bool {
	ok := true
	for _, name := range m.cfg.Protect {
		addrs, err := m.lookup(ctx, name)
		if ctx.Err() != nil {
			return false
		}
		if err != nil {
			ok = false
			m.cfg.Log.Warnf("Allow list: %s: %v", name, err)
			continue
		}
		now := m.cfg.Now()
		m.mu.Lock()
		known := m.known[name]
		if known == nil {
			known = map[netip.Addr]time.Time{}
			m.known[name] = known
		}
		for _, a := range addrs {
			known[a.Unmap().WithZone("")] = now
		}
		var list []Allowed
		for a, last := range known {
			if now.Sub(last) > lookupKeep {
				delete(known, a)
				continue
			}
			list = append(list, Allowed{host(a), "protected host " + name})
		}
		m.setAllowed("host "+name, list)
		m.mu.Unlock()
	}
	return ok
}

func (m *Manager) lookup(ctx context.Context, name string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(name); err == nil {
		return []netip.Addr{a}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookupLimit)
	defer cancel()
	addrs, err := m.cfg.Lookup(ctx, name)
	if err == nil && len(addrs) == 0 {
		err = errors.New("no address")
	}
	return addrs, err
}

// setAllowed replaces one source of the allow list and takes away the rules that
// now conflict.
func (m *Manager) setAllowed(source string, list []Allowed) {
	had := map[netip.Prefix]bool{}
	for _, l := range m.allowed {
		for _, a := range l {
			had[a.Prefix] = true
		}
	}
	m.allowed[source] = slices.Clone(list)
	lines := 0
	for _, a := range list {
		if had[a.Prefix] {
			continue
		}
		for _, e := range m.rules {
			if !a.Prefix.Overlaps(e.Prefix) {
				continue
			}
			m.remove(e)
			m.stats.RefusedAllowed++
			if lines++; lines <= maxLines {
				m.cfg.Log.Warnf("Rule for %s%s taken away: %v", show(e.Prefix), because(e.Reason), conflict(e.Prefix, a))
			}
		}
	}
	if lines > maxLines {
		m.cfg.Log.Warnf("%d more rules taken away by the allow list", lines-maxLines)
	}
}

// flush sends what changed.
func (m *Manager) flush() {
	m.send.Lock()
	defer m.send.Unlock()
	for {
		m.mu.Lock()
		cmd, epoch := m.next(), m.epoch
		m.mu.Unlock()
		if cmd == nil {
			return
		}
		if err := m.cfg.Sender.Send(cmd); err != nil {
			m.mu.Lock()
			if m.epoch == epoch {
				m.engine = false
				m.queue = nil
				clear(m.queued)
			}
			m.mu.Unlock()
			m.cfg.Log.Debugf("Rules wait for the next engine: %v", err)
			return
		}
	}
}

// next returns the command that is to be sent now, nil if there is none.
func (m *Manager) next() *agppb.Command {
	if m.cfg.Sender == nil || !m.engine || !m.ready || len(m.queue) == 0 && !m.clear {
		return nil
	}
	rules := &agppb.SteerRules{Clear: m.clear}
	n := min(batch, len(m.queue))
	for _, p := range m.queue[:n] {
		delete(m.queued, p)
		if e := m.rules[p]; e != nil {
			rules.Add = append(rules.Add, &agppb.SteerRule{
				Prefix: p.String(), PacketsPerSecond: e.PacketsPerSecond, DryRun: !m.cfg.Enforce,
			})
		} else if !m.clear {
			rules.Remove = append(rules.Remove, p.String())
		}
	}
	m.queue = m.queue[n:]
	if len(m.queue) == 0 {
		m.queue = nil
	}
	m.clear = false
	return &agppb.Command{Command: &agppb.Command_SteerRules{SteerRules: rules}}
}

// Run works until ctx ends; then it saves once more. Nothing is sent before the
// hosts to protect were looked up once.
func (m *Manager) Run(ctx context.Context) {
	m.Refresh()
	ok := m.Resolve(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { m.resolveAgain(ctx, ok) })
	t := time.NewTicker(m.every)
	defer t.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-m.wake:
			m.Tick()
		case <-t.C:
			m.Tick()
		}
	}
	wg.Wait()
	m.mu.Lock()
	save := m.cfg.StateFile != "" && m.unsaved
	m.mu.Unlock()
	if save {
		m.save()
	}
}

func (m *Manager) resolveAgain(ctx context.Context, ok bool) {
	if len(m.cfg.Protect) == 0 {
		return
	}
	for {
		wait := lookupAgain
		if !ok {
			wait = lookupRetry
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
		ok = m.Resolve(ctx)
	}
}
