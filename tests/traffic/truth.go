package traffic

import (
	"math"
)

// HalfTruth is what one direction of a flow holds.
type HalfTruth struct {
	Packets      uint64  `json:"packets"`
	WireBytes    uint64  `json:"wire_bytes"`
	L3Bytes      uint64  `json:"l3_bytes"`
	PayloadBytes uint64  `json:"payload_bytes"`
	TCPFlags     uint8   `json:"tcp_flags"`
	WireLenMin   uint32  `json:"wire_len_min"`
	WireLenMax   uint32  `json:"wire_len_max"`
	WireLenMean  float64 `json:"wire_len_mean"`
	WireLenStd   float64 `json:"wire_len_std"` // population
	DelayMinNs   int64   `json:"delay_ns_min"`
	DelayMaxNs   int64   `json:"delay_ns_max"`
	DelayMeanNs  float64 `json:"delay_ns_mean"`
	DelayStdNs   float64 `json:"delay_ns_std"` // population
	Retransmits  uint32  `json:"tcp_retransmits"`
	OutOfOrder   uint32  `json:"tcp_out_of_order"`
	ZeroWindows  uint32  `json:"tcp_zero_windows"`
}

// Truth is what a correct meter reports of one flow if no timeout cuts it.
type Truth struct {
	App, Event     string
	Protocol       uint8
	StartNs, EndNs int64
	Dir            [2]HalfTruth
	FirstReplyNs   int64 // -1 without reply
	HandshakeNs    int64 // SYN to the ACK that completes it, -1 if there was none

	lengths [2][]float64
	times   [2][]int64
	synNs   int64
	synAck  bool
}

// Truth computes the truth of every flow, by index of Flows, in two passes
// over all values: slower than any meter but free of its shortcuts.
func (c *Capture) Truth() []Truth {
	c.sort()
	truths := make([]Truth, len(c.flows))
	for i, f := range c.flows {
		truths[i] = Truth{App: f.App, Event: f.Event, Protocol: f.Protocol, FirstReplyNs: -1, HandshakeNs: -1, synNs: -1}
	}
	for i := range c.packets {
		truths[c.packets[i].flow].add(c.flows[c.packets[i].flow], &c.packets[i])
	}
	for i := range truths {
		truths[i].finish()
	}
	return truths
}

func (t *Truth) add(f *Flow, p *packet) {
	if len(t.times[Fwd])+len(t.times[Rev]) == 0 {
		t.StartNs = p.at
	}
	t.EndNs = p.at
	l3 := 20
	if f.Src.Addr().Is6() {
		l3 = 40
	}
	l3 += l4Header(f, p) + int(p.length)
	wire := l3 + 14
	if f.VLAN != 0 {
		wire += 4
	}
	wire = max(wire, minFrame)
	h := &t.Dir[p.dir]
	h.Packets++
	h.WireBytes += uint64(wire)
	h.L3Bytes += uint64(l3)
	h.PayloadBytes += uint64(p.length)
	h.TCPFlags |= p.flags
	if p.again {
		h.Retransmits++
	}
	if p.late {
		h.OutOfOrder++
	}
	if f.Protocol == TCP {
		t.addTCP(h, p)
	}
	if p.dir == Rev && t.FirstReplyNs < 0 {
		t.FirstReplyNs = p.at - t.StartNs
	}
	t.lengths[p.dir] = append(t.lengths[p.dir], float64(wire))
	t.times[p.dir] = append(t.times[p.dir], p.at)
}

func (t *Truth) addTCP(h *HalfTruth, p *packet) {
	if p.window == 0 && p.flags&(syn|fin|rst) == 0 {
		h.ZeroWindows++
	}
	switch {
	case p.flags&(syn|ack) == syn && t.synNs < 0:
		t.synNs = p.at
	case p.flags&(syn|ack) == syn|ack:
		t.synAck = true
	case p.flags&(syn|ack|rst) == ack && p.dir == Fwd && t.synAck && t.synNs >= 0 && t.HandshakeNs < 0:
		t.HandshakeNs = p.at - t.synNs
	}
}

func (t *Truth) finish() {
	for d := range t.Dir {
		h := &t.Dir[d]
		if h.Packets == 0 {
			continue
		}
		low, high, mean, std := moments(t.lengths[d])
		h.WireLenMin, h.WireLenMax, h.WireLenMean, h.WireLenStd = uint32(low), uint32(high), mean, std
		if h.Packets > 1 {
			delays := make([]float64, 0, len(t.times[d])-1)
			for i := 1; i < len(t.times[d]); i++ {
				delays = append(delays, float64(t.times[d][i]-t.times[d][i-1]))
			}
			low, high, mean, std = moments(delays)
			h.DelayMinNs, h.DelayMaxNs, h.DelayMeanNs, h.DelayStdNs = int64(low), int64(high), mean, std
		}
	}
	t.lengths, t.times = [2][]float64{}, [2][]int64{}
}

func moments(values []float64) (low, high, mean, std float64) {
	low, high = math.Inf(1), math.Inf(-1)
	for _, v := range values {
		low, high, mean = min(low, v), max(high, v), mean+v
	}
	mean /= float64(len(values))
	for _, v := range values {
		std += (v - mean) * (v - mean)
	}
	return low, high, mean, math.Sqrt(std / float64(len(values)))
}

// Total is what a group of flows holds.
type Total struct {
	Flows   uint64 `json:"flows"`
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"` // on the wire
}

// Event is one scenario that a detector should find.
type Event struct {
	Kind string `json:"kind"`
	Src  string `json:"src,omitempty"` // empty if there are many
	Dst  string `json:"dst,omitempty"`
	Total
}

// Summary is the content of a profile's truth file.
type Summary struct {
	Profile string `json:"profile"`
	Seed    uint64 `json:"seed"`
	StartNs int64  `json:"start_ns"`
	EndNs   int64  `json:"end_ns"`
	Total
	Retransmits uint64           `json:"tcp_retransmits"`
	OutOfOrder  uint64           `json:"tcp_out_of_order"`
	Apps        map[string]Total `json:"apps"`
	Events      []Event          `json:"events,omitempty"`
}

func (t *Total) add(o *Truth) {
	t.Flows++
	t.Packets += o.Dir[Fwd].Packets + o.Dir[Rev].Packets
	t.Bytes += o.Dir[Fwd].WireBytes + o.Dir[Rev].WireBytes
}

// Summary adds the flows up by application and by scenario.
func (c *Capture) Summary(profile string, seed uint64) Summary {
	s := Summary{Profile: profile, Seed: seed, Apps: map[string]Total{}}
	events := map[string]int{}
	for i, t := range c.Truth() {
		if i == 0 || t.StartNs < s.StartNs {
			s.StartNs = t.StartNs
		}
		s.EndNs = max(s.EndNs, t.EndNs)
		s.add(&t)
		for d := range t.Dir {
			s.Retransmits += uint64(t.Dir[d].Retransmits)
			s.OutOfOrder += uint64(t.Dir[d].OutOfOrder)
		}
		if t.App != "" {
			a := s.Apps[t.App]
			a.add(&t)
			s.Apps[t.App] = a
		}
		if t.Event != "" {
			s.addEvent(events, c.flows[i], &t)
		}
	}
	return s
}

func (s *Summary) addEvent(index map[string]int, f *Flow, t *Truth) {
	src, dst := f.Src.Addr().String(), f.Dst.Addr().String()
	k, ok := index[t.Event]
	if !ok {
		k = len(s.Events)
		index[t.Event] = k
		s.Events = append(s.Events, Event{Kind: t.Event, Src: src, Dst: dst})
	}
	e := &s.Events[k]
	e.add(t)
	if e.Src != src {
		e.Src = ""
	}
	if e.Dst != dst {
		e.Dst = ""
	}
}
