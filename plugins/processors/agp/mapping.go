package agp

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/influxdata/telegraf"

	"github.com/agp-net/telegraf-agp/agp/flow"
	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// Mapping says which metrics are flows and where their readings are. A value names a field or a
// tag; several names separated by spaces are tried in order.
type Mapping struct {
	Measurement   string            `toml:"measurement"`
	Tags          map[string]string `toml:"tags"` // that a metric must have
	Src           string            `toml:"src"`
	Dst           string            `toml:"dst"`
	SrcPort       string            `toml:"src_port"`
	DstPort       string            `toml:"dst_port"`
	Protocol      string            `toml:"protocol"`
	Packets       string            `toml:"packets"`
	Bytes         string            `toml:"bytes"`
	TCPFlags      string            `toml:"tcp_flags"`
	ReplyPackets  string            `toml:"reply_packets"`
	ReplyBytes    string            `toml:"reply_bytes"`
	ReplyTCPFlags string            `toml:"reply_tcp_flags"`
	Start         string            `toml:"start"`
	End           string            `toml:"end"`
	TimeFormat    string            `toml:"time_format"`
	Source        string            `toml:"source"`      // who metered
	FrameBytes    bool              `toml:"frame_bytes"` // bytes count the Ethernet header too
	Sampling      string            `toml:"sampling_interval"`

	uptime string // the exporter's uptime in ms when it sent
	state  string // of a connection, in Suricata's words
	single bool   // a metric is one sampled packet
}

// Formats of times in metrics.
const (
	formatUptime = "uptime_ms" // since the exporter's start
	formatText   = "rfc3339"
)

var unixFormats = map[string]time.Duration{"unix": time.Second, "unix_ms": time.Millisecond, "unix_us": time.Microsecond, "unix_ns": 1}

func timeFormats() []string {
	return []string{"unix", "unix_ms", "unix_us", "unix_ns", formatText, formatUptime}
}

// textTimes are what formatText reads; Suricata writes its zone without a colon.
var textTimes = []string{time.RFC3339Nano, "2006-01-02T15:04:05.999999999-0700"}

// known are the inputs of telegraf whose flows are understood without a mapping in the
// configuration. The first entry whose tags, addresses and times a metric has is used.
var known = func() []Mapping {
	netflow := Mapping{
		Measurement: "netflow", Src: "src", Dst: "dst", SrcPort: "src_port", DstPort: "dst_port", Protocol: "protocol",
		Packets: "in_packets in_total_packets", Bytes: "in_bytes in_total_bytes", TCPFlags: "tcp_flags", Source: "source", Sampling: "sampling_interval",
	}
	absolute, seconds, relative := netflow, netflow, netflow
	absolute.Start, absolute.End, absolute.TimeFormat = "flow_start_ms", "flow_end_ms", "unix_ms"
	seconds.Start, seconds.End, seconds.TimeFormat = "flow_start", "flow_end", "unix"
	relative.Start, relative.End, relative.TimeFormat, relative.uptime = "first_switched", "last_switched", formatUptime, "sys_uptime"
	sflow := netflow
	sflow.Tags, sflow.Packets, sflow.Bytes, sflow.single = map[string]string{"version": "sFlowV5"}, "", "ipv4_total_len ipv6_total_len", true
	old := Mapping{
		Measurement: "sflow", Src: "src_ip", Dst: "dst_ip", SrcPort: "src_port", DstPort: "dst_port", Protocol: "ip_protocol", Bytes: "frame_length",
		Source: "agent_address", Sampling: "sampling_rate", FrameBytes: true, single: true,
	}
	suricata := Mapping{
		Measurement: "suricata", Tags: map[string]string{"event_type": "flow"}, Src: "src_ip", Dst: "dest_ip", SrcPort: "src_port", DstPort: "dest_port", Protocol: "proto",
		Packets: "pkts_toserver", Bytes: "bytes_toserver", ReplyPackets: "pkts_toclient", ReplyBytes: "bytes_toclient",
		Start: "start", End: "end", TimeFormat: formatText, Source: "in_iface", FrameBytes: true, state: "state",
	}
	return []Mapping{sflow, absolute, seconds, relative, netflow, old, suricata}
}()

func (m *Mapping) check(key string) error {
	var errs []error
	for name, v := range map[string]string{"measurement": m.Measurement, "src": m.Src, "dst": m.Dst, "protocol": m.Protocol, "packets": m.Packets, "bytes": m.Bytes} {
		if strings.TrimSpace(v) == "" {
			errs = append(errs, bad(key+"."+name, v, "the name of a field or tag"))
		}
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	if m.TimeFormat != "" && !slices.Contains(timeFormats(), m.TimeFormat) {
		errs = append(errs, bad(key+".time_format", m.TimeFormat, `"`+strings.Join(timeFormats(), `", "`)+`"`))
	}
	if (m.Start != "" || m.End != "") && m.TimeFormat == "" {
		errs = append(errs, bad(key+".time_format", m.TimeFormat, "a format, because start or end is given"))
	}
	if (m.ReplyPackets == "") != (m.ReplyBytes == "") {
		errs = append(errs, bad(key+".reply_packets", m.ReplyPackets, "both reply_packets and reply_bytes or neither"))
	}
	return errors.Join(errs...)
}

// get returns the first of the names that the metric has.
func get(m telegraf.Metric, names string) (any, bool) {
	for name := range strings.FieldsSeq(names) {
		if v, ok := m.GetField(name); ok {
			return v, true
		}
		if v, ok := m.GetTag(name); ok {
			return v, true
		}
	}
	return nil, false
}

func has(m telegraf.Metric, names string) bool {
	_, ok := get(m, names)
	return names == "" || ok
}

// fits says whether a metric is a flow of this mapping.
func (m *Mapping) fits(metric telegraf.Metric) bool {
	if metric.Name() != m.Measurement {
		return false
	}
	for k, want := range m.Tags {
		if v, _ := metric.GetTag(k); v != want {
			return false
		}
	}
	return has(metric, m.Src) && has(metric, m.Dst) && has(metric, m.Start) && has(metric, m.End)
}

// Why a flow cannot be read; the name of a counter of agp_processor.
var (
	errAddress  = errors.New("address")
	errPort     = errors.New("port")
	errProtocol = errors.New("protocol")
	errCount    = errors.New("count")
	errTime     = errors.New("time")
)

// refusals are all of them.
var refusals = []error{errAddress, errPort, errProtocol, errCount, errTime, errHistogram}

// half is one direction of a flow as it was metered.
type half struct {
	packets, bytes uint64
	flags          uint8
	hasFlags       bool
}

// seen is one metric that is a flow, src and dst as the metric has them.
type seen struct {
	info     packet.Info // addresses, ports, protocol, IP version
	dir      [2]half     // from src, from dst
	both     bool        // the metric has both directions, and src is the initiator
	start    int64       // ns; of the exporter's clock if relative
	end      int64
	relative bool
	source   string
	sampling uint64
	single   bool
}

// read turns a metric into a flow.
func (m *Mapping) read(metric telegraf.Metric) (s seen, err error) {
	s.single = m.single
	if err := s.addresses(metric, m); err != nil {
		return s, err
	}
	protocol, _ := get(metric, m.Protocol)
	p, ok := protocolNumber(protocol)
	if !ok {
		return s, fmt.Errorf("%w: %v", errProtocol, protocol)
	}
	s.info.Protocol = p
	if telemetry.HasPorts(p) { // ICMP has a type there, of which the two directions differ
		for names, to := range map[string]*uint16{m.SrcPort: &s.info.SrcPort, m.DstPort: &s.info.DstPort} {
			v, ok := get(metric, names)
			if !ok {
				continue // a fragment, or not exported
			}
			n, ok := count(v)
			if !ok || n > math.MaxUint16 {
				return s, fmt.Errorf("%w: %v", errPort, v)
			}
			*to = uint16(n)
		}
	}
	if err := s.counts(metric, m); err != nil {
		return s, err
	}
	if err := s.times(metric, m); err != nil {
		return s, err
	}
	if v, ok := get(metric, m.Source); ok {
		s.source, _ = v.(string)
	}
	s.sampling = 1
	if v, ok := get(metric, m.Sampling); ok {
		if n, ok := count(v); ok {
			s.sampling = max(1, n)
		}
	}
	for _, h := range s.dir {
		if over(h.packets, s.sampling) || over(h.bytes, s.sampling) {
			return s, fmt.Errorf("%w: %d packets, %d bytes, sampled 1 of %d", errCount, h.packets, h.bytes, s.sampling)
		}
	}
	return s, nil
}

func (s *seen) addresses(metric telegraf.Metric, m *Mapping) error {
	var ends [2]netip.Addr
	for i, names := range []string{m.Src, m.Dst} {
		v, _ := get(metric, names)
		text, _ := v.(string)
		a, err := netip.ParseAddr(text)
		if err != nil {
			return fmt.Errorf("%w: %v", errAddress, v)
		}
		ends[i] = a.Unmap()
	}
	if ends[0].Is4() != ends[1].Is4() {
		return fmt.Errorf("%w: %s and %s", errAddress, ends[0], ends[1])
	}
	s.info.IPVersion = 6
	if ends[0].Is4() {
		s.info.IPVersion = 4
	}
	copy(s.info.Src[:], ends[0].AsSlice())
	copy(s.info.Dst[:], ends[1].AsSlice())
	return nil
}

func (s *seen) counts(metric telegraf.Metric, m *Mapping) error {
	s.both = m.ReplyPackets != ""
	names := [2][3]string{{m.Packets, m.Bytes, m.TCPFlags}, {m.ReplyPackets, m.ReplyBytes, m.ReplyTCPFlags}}
	for d, n := range names {
		h := &s.dir[d]
		if d == telemetry.Rev && !s.both {
			break
		}
		if m.single {
			h.packets = 1
		}
		for i, to := range []*uint64{&h.packets, &h.bytes} {
			v, ok := get(metric, n[i])
			if !ok && (n[i] == "" || m.single) {
				continue
			}
			c, good := count(v)
			if !ok || !good {
				return fmt.Errorf("%w: %s = %v", errCount, n[i], v)
			}
			*to = c
		}
		if m.FrameBytes {
			h.bytes -= min(h.bytes, h.packets*etherHeader)
		}
		if v, ok := get(metric, n[2]); ok {
			h.flags, h.hasFlags = tcpFlags(v)
		}
	}
	if s.dir[0].packets+s.dir[1].packets == 0 {
		return fmt.Errorf("%w: no packets", errCount)
	}
	if v, ok := get(metric, m.state); ok && s.info.Protocol == packet.ProtoTCP {
		s.fromState(v)
	}
	return nil
}

// over says that a flow would stand for more than a petabyte, of which sums must not overflow.
func over(n, sampling uint64) bool { return n > 1<<50/sampling }

// fromState gives flags to a connection of which the state is told instead: "new", "established"
// or "closed".
func (s *seen) fromState(state any) {
	fwd, rev := &s.dir[telemetry.Fwd], &s.dir[telemetry.Rev]
	fwd.flags, rev.flags, fwd.hasFlags, rev.hasFlags = packet.TCPSyn, 0, true, true
	refused := fwd.packets <= 2 && rev.packets > 0 && rev.packets <= 2 && rev.bytes <= 60*rev.packets
	switch {
	case state == "new":
		if rev.packets > 0 {
			rev.flags = packet.TCPSyn | packet.TCPAck
		}
	case state == "closed" && refused:
		rev.flags = packet.TCPRst | packet.TCPAck
	default:
		fwd.flags |= packet.TCPAck
		rev.flags = packet.TCPSyn | packet.TCPAck
		if state == "closed" {
			fwd.flags |= packet.TCPFin
			rev.flags |= packet.TCPFin
		}
	}
}

// times are those of the metric itself where it has no others.
func (s *seen) times(metric telegraf.Metric, m *Mapping) error {
	s.start, s.end = metric.Time().UnixNano(), metric.Time().UnixNano()
	if m.Start == "" && m.End == "" {
		return nil
	}
	var got [2]int64
	var ok [2]bool
	for i, names := range []string{m.Start, m.End} {
		v, found := get(metric, names)
		if !found {
			continue
		}
		if got[i], ok[i] = instant(v, m.TimeFormat); !ok[i] {
			return fmt.Errorf("%w: %s = %v", errTime, names, v)
		}
	}
	switch {
	case !ok[0]:
		got[0] = got[1]
	case !ok[1]:
		got[1] = got[0]
	}
	if got[1] < got[0] {
		return fmt.Errorf("%w: the end is before the start", errTime)
	}
	s.start, s.end, s.relative = got[0], got[1], m.TimeFormat == formatUptime
	if v, found := get(metric, m.uptime); s.relative && found {
		if up, good := count(v); good {
			boot := metric.Time().Add(-time.Duration(up) * time.Millisecond).UnixNano()
			s.start, s.end, s.relative = s.start+boot, s.end+boot, false
		}
	}
	return nil
}

// latest keeps times clear of overflow: the year 2200.
const latest = 7258118400 * int64(time.Second)

// instant reads a time, ns.
func instant(v any, format string) (int64, bool) {
	unit, numeric := unixFormats[format]
	if format == formatUptime {
		unit, numeric = time.Millisecond, true
	}
	if numeric {
		f, whole := v.(float64)
		if n, ok := count(v); ok && (!whole || f == math.Trunc(f)) {
			return int64(n) * int64(unit), n <= uint64(latest/int64(unit))
		}
		if whole && f >= 0 && f < float64(latest)/float64(unit) {
			return int64(f * float64(unit)), true
		}
		return 0, false
	}
	text, _ := v.(string)
	for _, layout := range textTimes {
		if t, err := time.Parse(layout, text); err == nil && t.Year() >= 1970 && t.Year() < 2200 {
			return t.UnixNano(), true
		}
	}
	return 0, false
}

// count reads a number that is not negative, also from text.
func count(v any) (uint64, bool) {
	switch n := v.(type) {
	case uint64:
		return n, n <= math.MaxInt64
	case int64:
		return uint64(n), n >= 0
	case float64:
		return uint64(n), n >= 0 && n < 1<<62
	case string:
		u, err := strconv.ParseUint(n, 10, 63)
		return u, err == nil
	}
	return 0, false
}

var protocols = func() map[string]uint8 {
	byName := map[string]uint8{"icmpv6": packet.ProtoICMPv6, "icmp6": packet.ProtoICMPv6}
	for p := range 256 {
		byName[telemetry.ProtocolName(uint8(p))] = uint8(p)
		byName[strconv.Itoa(p)] = uint8(p)
	}
	return byName
}()

func protocolNumber(v any) (uint8, bool) {
	if text, ok := v.(string); ok {
		p, ok := protocols[strings.ToLower(text)]
		return p, ok
	}
	n, ok := count(v)
	return uint8(n & math.MaxUint8), ok && n <= math.MaxUint8
}

// tcpFlags reads a number or a mask as telegraf's netflow input writes it: letters of CEUAPRSF at their
// bits, dots elsewhere, other bits before them.
func tcpFlags(v any) (flags uint8, ok bool) {
	text, isText := v.(string)
	if !isText {
		n, ok := count(v)
		return uint8(n & math.MaxUint8), ok
	}
	if n, err := strconv.ParseUint(text, 0, 16); err == nil {
		return uint8(n & math.MaxUint8), true
	}
	const mask = "CEUAPRSF"
	if len(text) < len(mask) {
		return 0, false
	}
	text = text[len(text)-len(mask):]
	for i := range len(mask) {
		switch text[i] {
		case mask[i]:
			flags |= 1 << (7 - i)
		case '.':
		default:
			return 0, false
		}
	}
	return flags, true
}

// key is the flow's, and whether src is its second end.
func (s *seen) key() (k flow.Key, fromB bool) {
	fromB = k.Set(&s.info, flow.KeyOptions{})
	return k, fromB
}
