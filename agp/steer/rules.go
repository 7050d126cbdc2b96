package steer

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/ebpf"

	"github.com/agp-net/telegraf-agp/agp/steer/bpf"
)

// Action is what a Rule does.
type Action uint8

// Actions.
const (
	Block     Action = bpf.ActionBlock
	RateLimit Action = bpf.ActionLimit
)

func (a Action) String() string {
	switch a {
	case Block:
		return "block"
	case RateLimit:
		return "rate-limit"
	}
	return fmt.Sprintf("action %d", uint8(a))
}

const (
	// BurstNs is how much of its rate a limited sender may send at once.
	BurstNs = int64(100 * time.Millisecond)
	// MaxPacketsPerSecond is the highest limit: above it the clock is too coarse.
	MaxPacketsPerSecond = 100_000_000
	// batch is the number of entries that one system call changes.
	batch = 1 << 15
)

// Rule blocks or limits a host or a network.
type Rule struct {
	Prefix           netip.Prefix
	Action           Action
	PacketsPerSecond uint64 // of RateLimit, frames on the wire
	DryRun           bool   // count what would be dropped, drop nothing
}

func (r Rule) encode() (netip.Prefix, bpf.Rule, error) {
	v := bpf.Rule{Action: uint8(r.Action)}
	p, err := canonical(r.Prefix)
	if err != nil {
		return p, v, err
	}
	switch r.Action {
	case Block:
		if r.PacketsPerSecond != 0 {
			return p, v, fmt.Errorf("%w: a block of %s with a rate", ErrRule, p)
		}
	case RateLimit:
		if r.PacketsPerSecond == 0 || r.PacketsPerSecond > MaxPacketsPerSecond {
			return p, v, fmt.Errorf("%w: a limit of %s to %d packets per second (1 to %d are possible)", ErrRule, p, r.PacketsPerSecond, MaxPacketsPerSecond)
		}
		v.Interval = (uint64(time.Second) << bpf.TimeShift) / r.PacketsPerSecond
		v.Burst = uint64(BurstNs) << bpf.TimeShift
	default:
		return p, v, fmt.Errorf("%w: %s of %s", ErrRule, r.Action, p)
	}
	if r.DryRun {
		v.DryRun = 1
	}
	return p, v, nil
}

// canonical returns the prefix without host bits, IPv4 as IPv4. The whole Internet is
// refused: there is no traffic left that it could be told from.
func canonical(p netip.Prefix) (netip.Prefix, error) {
	if !p.IsValid() {
		return p, fmt.Errorf("%w: invalid prefix", ErrRule)
	}
	addr, n := p.Addr().WithZone(""), p.Bits()
	if addr.Is4In6() {
		if n < 96 {
			return p, fmt.Errorf("%w: %s is wider than all of IPv4", ErrRule, p)
		}
		addr, n = addr.Unmap(), n-96
	}
	if n == 0 {
		return p, fmt.Errorf("%w: %s is every address", ErrRule, p)
	}
	return netip.PrefixFrom(addr, n).Masked(), nil
}

// Add adds rules or replaces those of the same prefixes; a replaced limit begins anew.
// If one rule is bad, or there are too many, nothing changes. If the kernel refuses in
// the middle, some rules are in force; the error says how many were not tried.
func (d *Datapath) Add(rules []Rule) error {
	encoded := make([]bpf.Rule, len(rules))
	at := make([]netip.Prefix, len(rules))
	for i, r := range rules {
		var err error
		if at[i], encoded[i], err = r.encode(); err != nil {
			return err
		}
	}

	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return ErrClosed
	}
	total := d.blocked()
	var s split
	for i, p := range at {
		if !d.has(p) {
			total++
		}
		s.add(p, encoded[i]) // of a repeated prefix the last one stays
	}
	if total > d.cfg.MaxBlocked {
		// Repeated prefixes have been counted more than once.
		if total = d.blocked() + d.missing(at); total > d.cfg.MaxBlocked {
			return fmt.Errorf("%w: %d rules, at most %d", ErrFull, total, d.cfg.MaxBlocked)
		}
	}
	if err := d.setLists(d.lists | s.lists()); err != nil {
		return err
	}
	var errs []error
	n, err := update(d.maps[bpf.SteerMapHost4], s.host4, s.host4v)
	for _, k := range s.host4[:n] {
		d.hosts4[k] = struct{}{}
	}
	errs = append(errs, err)
	n, err = update(d.maps[bpf.SteerMapHost6], s.host6, s.host6v)
	for _, k := range s.host6[:n] {
		d.hosts6[k] = struct{}{}
	}
	errs = append(errs, err)
	n, err = update(d.maps[bpf.SteerMapNet4], s.net4, s.net4v)
	for _, k := range s.net4[:n] {
		d.nets[netip.PrefixFrom(netip.AddrFrom4(k.Addr), int(k.Bits))] = struct{}{}
	}
	errs = append(errs, err)
	n, err = update(d.maps[bpf.SteerMapNet6], s.net6, s.net6v)
	for _, k := range s.net6[:n] {
		d.nets[netip.PrefixFrom(netip.AddrFrom16(k.Addr), int(k.Bits))] = struct{}{}
	}
	errs = append(errs, err)
	return errors.Join(append(errs, d.setLists(d.filled()))...)
}

// Remove removes the rules of these prefixes. Prefixes without a rule are none of its business.
func (d *Datapath) Remove(prefixes []netip.Prefix) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return ErrClosed
	}
	return d.remove(prefixes)
}

func (d *Datapath) remove(prefixes []netip.Prefix) error {
	var s split
	for _, p := range prefixes {
		p, err := canonical(p)
		if err != nil {
			return err
		}
		if d.has(p) {
			s.add(p, bpf.Rule{})
		}
	}
	// Each is removed once, whatever the caller repeats; of its own, the kernel would
	// stop at the second.
	s.compact()
	var errs []error
	n, err := remove(d.maps[bpf.SteerMapHost4], s.host4)
	for _, k := range s.host4[:n] {
		delete(d.hosts4, k)
	}
	errs = append(errs, err)
	n, err = remove(d.maps[bpf.SteerMapHost6], s.host6)
	for _, k := range s.host6[:n] {
		delete(d.hosts6, k)
	}
	errs = append(errs, err)
	n, err = remove(d.maps[bpf.SteerMapNet4], s.net4)
	for _, k := range s.net4[:n] {
		delete(d.nets, netip.PrefixFrom(netip.AddrFrom4(k.Addr), int(k.Bits)))
	}
	errs = append(errs, err)
	n, err = remove(d.maps[bpf.SteerMapNet6], s.net6)
	for _, k := range s.net6[:n] {
		delete(d.nets, netip.PrefixFrom(netip.AddrFrom16(k.Addr), int(k.Bits)))
	}
	errs = append(errs, err)
	return errors.Join(append(errs, d.setLists(d.filled()))...)
}

// Clear removes all rules. They are without effect at once.
func (d *Datapath) Clear() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return ErrClosed
	}
	if err := d.setLists(0); err != nil {
		return err
	}
	all := make([]netip.Prefix, 0, d.blocked())
	for k := range d.hosts4 {
		all = append(all, netip.PrefixFrom(netip.AddrFrom4(k), 32))
	}
	for k := range d.hosts6 {
		all = append(all, netip.PrefixFrom(netip.AddrFrom16(k), 128))
	}
	for p := range d.nets {
		all = append(all, p)
	}
	return d.remove(all)
}

// Blocked returns the number of rules.
func (d *Datapath) Blocked() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.blocked()
}

func (d *Datapath) blocked() int { return len(d.hosts4) + len(d.hosts6) + len(d.nets) }

func (d *Datapath) has(p netip.Prefix) bool {
	var ok bool
	switch {
	case !p.IsSingleIP():
		_, ok = d.nets[p]
	case p.Addr().Is4():
		_, ok = d.hosts4[p.Addr().As4()]
	default:
		_, ok = d.hosts6[p.Addr().As16()]
	}
	return ok
}

// missing returns how many different prefixes have no rule yet.
func (d *Datapath) missing(prefixes []netip.Prefix) int {
	seen := make(map[netip.Prefix]struct{})
	for _, p := range prefixes {
		if !d.has(p) {
			seen[p] = struct{}{}
		}
	}
	return len(seen)
}

// filled returns which lists have entries.
func (d *Datapath) filled() uint32 {
	var lists uint32
	if len(d.hosts4) > 0 {
		lists |= bpf.ListHost4
	}
	if len(d.hosts6) > 0 {
		lists |= bpf.ListHost6
	}
	for p := range d.nets {
		if p.Addr().Is4() {
			lists |= bpf.ListNet4
		} else {
			lists |= bpf.ListNet6
		}
		if lists&(bpf.ListNet4|bpf.ListNet6) == bpf.ListNet4|bpf.ListNet6 {
			break
		}
	}
	return lists
}

// setLists tells the programs which lists have entries; they look at no other.
func (d *Datapath) setLists(lists uint32) error {
	if lists == d.lists {
		return nil
	}
	if err := d.maps[variables].Put(uint32(0), lists); err != nil {
		return fmt.Errorf("switching block lists: %w", err)
	}
	d.lists = lists
	return nil
}

// split sorts rules by the map that they go to.
type split struct {
	host4                        [][4]byte
	host6                        [][16]byte
	net4                         []bpf.LPM4
	net6                         []bpf.LPM6
	host4v, host6v, net4v, net6v []bpf.Rule
}

func (s *split) add(p netip.Prefix, v bpf.Rule) {
	n := uint32(p.Bits()) //nolint:gosec // 1 to 128
	switch a := p.Addr(); {
	case a.Is4() && n == 32:
		s.host4, s.host4v = append(s.host4, a.As4()), append(s.host4v, v)
	case a.Is4():
		s.net4, s.net4v = append(s.net4, bpf.LPM4{Bits: n, Addr: a.As4()}), append(s.net4v, v)
	case n == 128:
		s.host6, s.host6v = append(s.host6, a.As16()), append(s.host6v, v)
	default:
		s.net6, s.net6v = append(s.net6, bpf.LPM6{Bits: n, Addr: a.As16()}), append(s.net6v, v)
	}
}

// compact removes repeated keys. Values are then no longer beside their keys.
func (s *split) compact() {
	s.host4, s.host6, s.net4, s.net6 = unique(s.host4), unique(s.host6), unique(s.net4), unique(s.net6)
}

func unique[K comparable](keys []K) []K {
	seen := make(map[K]struct{}, len(keys))
	return slices.DeleteFunc(keys, func(k K) bool {
		_, again := seen[k]
		seen[k] = struct{}{}
		return again
	})
}

func (s *split) lists() uint32 {
	var lists uint32
	for bit, n := range map[uint32]int{
		bpf.ListHost4: len(s.host4), bpf.ListHost6: len(s.host6), bpf.ListNet4: len(s.net4), bpf.ListNet6: len(s.net6),
	} {
		if n > 0 {
			lists |= bit
		}
	}
	return lists
}

// update writes entries in batches, or one by one if the map has no batches, and
// returns how many it wrote.
func update[K any](m *ebpf.Map, keys []K, values []bpf.Rule) (int, error) {
	done := 0
	for done < len(keys) {
		end := min(done+batch, len(keys))
		n, err := m.BatchUpdate(keys[done:end], values[done:end], nil)
		if errors.Is(err, ebpf.ErrNotSupported) {
			for ; done < len(keys); done++ {
				if err := m.Put(keys[done], values[done]); err != nil {
					return done, ruleError(len(keys)-done, err)
				}
			}
			return done, nil
		}
		done += n
		if err != nil {
			return done, ruleError(len(keys)-done, err)
		}
	}
	return done, nil
}

func remove[K any](m *ebpf.Map, keys []K) (int, error) {
	done := 0
	for done < len(keys) {
		n, err := m.BatchDelete(keys[done:min(done+batch, len(keys))], nil)
		if errors.Is(err, ebpf.ErrNotSupported) {
			for ; done < len(keys); done++ {
				if err := m.Delete(keys[done]); err != nil {
					return done, ruleError(len(keys)-done, err)
				}
			}
			return done, nil
		}
		done += n
		if err != nil {
			return done, ruleError(len(keys)-done, err)
		}
	}
	return done, nil
}

func ruleError(left int, err error) error {
	return fmt.Errorf("changing the block list, %d rules not changed: %w", left, explain(err))
}
