package flow

import (
	"slices"
	"unsafe"

	"github.com/agp-net/telegraf-agp/agp/internal/prefetch"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// The timing wheel holds every flow in the slot of its deadline when it was last
// looked at. Packets only move deadlines later, so a flow is looked at again only
// when its slot comes up, and then either ends or moves on.

func (t *Table) schedule(ref uint32, f *state) {
	due, _ := t.deadline(f)
	// A deadline inside step n is past at tick n+1.
	at := due/TickNs + 1
	if lo, hi := t.tick+1, t.tick+wheelSlots-1; t.tick != 0 {
		at = min(max(at, lo), hi)
	}
	t.link(ref, f, uint32(uint64(at)%wheelSlots))
}

// link puts a flow into a slot of the wheel.
func (t *Table) link(ref uint32, f *state, w uint32) {
	f.wheel, f.prev, f.next = w, none, t.wheel[w]
	if f.next != none {
		t.flows.at(f.next).prev = ref
	}
	t.wheel[w] = ref
}

func (t *Table) unschedule(ref uint32, f *state) {
	if f.wheel == none {
		return
	}
	if f.prev != none {
		t.flows.at(f.prev).next = f.next
	} else {
		t.wheel[f.wheel] = f.next
	}
	if f.next != none {
		t.flows.at(f.next).prev = f.prev
	}
	f.next, f.prev, f.wheel = none, none, none
}

// Tick lets time pass: flows whose deadline is before nowNs end, in the order in
// which they started. nowNs is a multiple of TickNs. A clock that goes back is
// followed; flows that were seen at later times then wait for it.
func (t *Table) Tick(nowNs int64) {
	now := nowNs / TickNs
	from := t.tick + 1
	if t.tick == 0 || now-t.tick >= wheelSlots {
		from = now - wheelSlots + 1
	}
	t.tick = now
	t.expired = t.expired[:0]
	for s := from; s <= now; s++ {
		w := uint64(s) % wheelSlots
		ref := t.wheel[w]
		t.wheel[w] = none
		for ref != none {
			f := t.flows.at(ref)
			next := f.next
			f.next, f.prev, f.wheel = none, none, none
			if due, _ := t.deadline(f); due < nowNs {
				t.expired = append(t.expired, ref)
			} else {
				t.schedule(ref, f)
			}
			ref = next
		}
	}
	t.inOrder(t.expired)
	for i, ref := range t.expired {
		t.prefetchEnd(i)
		f := t.flows.at(ref)
		_, reason := t.deadline(f)
		if reason == telemetry.EndActive && nowNs-f.lastNs <= t.cfg.IdleNs {
			t.cut(ref, f)
			t.schedule(ref, f)
			continue
		}
		t.end(ref, f, reason)
	}
}

// prefetchEnd asks for the state and the index entry of a flow that ends soon after the i-th.
func (t *Table) prefetchEnd(i int) {
	const state, index = 4, 2
	if i+state < len(t.expired) {
		prefetch.Lines8(unsafe.Pointer(t.flows.at(t.expired[i+state])))
	}
	if i+index < len(t.expired) {
		t.PrefetchIndex(t.flows.at(t.expired[i+index]).hash)
	}
}

func (t *Table) inOrder(refs []uint32) {
	slices.SortFunc(refs, func(a, b uint32) int {
		if t.flows.at(a).startSeq < t.flows.at(b).startSeq {
			return -1
		}
		return 1
	})
}

// Flush ends every flow at the end of the input, in start order. nowNs is the
// latest time of the whole input: what was due before it ends for its own reason.
func (t *Table) Flush(nowNs int64) {
	t.expired = slices.Grow(t.expired[:0], t.active)
	for _, s := range t.slots {
		if s.ref != none {
			t.expired = append(t.expired, s.ref)
		}
	}
	t.inOrder(t.expired)
	for i, ref := range t.expired {
		t.prefetchEnd(i)
		f := t.flows.at(ref)
		due, reason := t.deadline(f)
		if due >= nowNs && reason != telemetry.EndTCP {
			reason = telemetry.EndFlushed
		}
		t.end(ref, f, reason)
	}
}
