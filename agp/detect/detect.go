package detect

import (
	"math"

	"github.com/agp-net/telegraf-agp/agp/sketch"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

const second = int64(1e9)

// Windows and table sizes.
const (
	floodWindow = 10 * second
	flowWindow  = 60 * second // scans, guessing, DNS: at least the default idle timeout
	floodSlots  = 8192
	scanSlots   = 16384
	loginSlots  = 8192
	beaconSlots = 16384
	dnsSlots    = 4096
	holdSlots   = 4096
)

// FlowStart is the first packet of a flow. Src is the initiator: with SYN+ACK as
// first packet (TCPFlags says so) that is the receiver of the packet.
type FlowStart struct {
	Seq                           uint64 // packet number
	TimeNs                        int64
	Src, Dst                      [16]byte // as packet.Info
	SrcPort, DstPort              uint16
	IPVersion, Protocol, TCPFlags uint8
	WireLen                       uint32
}

// Stats are counters since New.
type Stats struct {
	Starts, Ends uint64
	Alerts       uint64
	Suppressed   uint64 // held back by hold-down or by the rate limit
	Evicted      uint64 // entries that gave way to others
}

// Detector applies the rules; see the package comment.
type Detector struct {
	cfg      Config
	alert    func(*telemetry.Alert)
	holdDown int64
	h        sketch.Hasher
	now      int64
	stats    Stats
	// Hashes of the addresses of the event at hand.
	src, dst uint64

	floods  table[flood]
	scans   table[scan]
	logins  table[login]
	beacons table[beacon]
	dns     table[dnsClient]
	held    table[int64] // until when a kind and subject are silent

	minute      int64 // start of the rate limit's minute
	minuteCount float64
}

// New makes a detector that calls alert for every finding; the alert is only valid during the call.
func New(cfg Config, alert func(*telemetry.Alert)) *Detector {
	cfg = cfg.withDefaults()
	holdDown := int64(math.MaxInt64 / 4)
	if cfg.HoldDown < 1e9 {
		holdDown = int64(cfg.HoldDown * float64(second))
	}
	return &Detector{
		cfg: cfg, alert: alert, holdDown: holdDown, h: sketch.NewHasher(cfg.Key), now: math.MinInt64, minute: math.MinInt64,
		floods:  newTable[flood](floodSlots, floodMemory, floodMemory),
		scans:   newTable[scan](scanSlots, flowWindow, 2*flowWindow),
		logins:  newTable[login](loginSlots, flowWindow, 2*flowWindow),
		beacons: newTable[beacon](beaconSlots, beaconMemory, second),
		dns:     newTable[dnsClient](dnsSlots, flowWindow, 2*flowWindow),
		held:    newTable[int64](holdSlots, math.MaxInt64, second),
	}
}

// Stats returns the counters.
func (d *Detector) Stats() Stats {
	s := d.stats
	s.Evicted = d.floods.evicted + d.scans.evicted + d.logins.evicted + d.beacons.evicted + d.dns.evicted + d.held.evicted
	return s
}

// Tick says that capture time has come to nowNs. Windows close by the events
// that follow; a tick only bounds how old the clock of the hold-down can be.
func (d *Detector) Tick(nowNs int64) { d.now = nowNs }

// Flush says that the input has ended. Rules fire when their count is reached, so nothing
// is left to judge.
func (d *Detector) Flush(nowNs int64) { d.now = nowNs }

// FlowStart takes the first packet of a flow.
func (d *Detector) FlowStart(s *FlowStart) {
	d.now = s.TimeNs
	d.begin(s)
}

// FlowStarted takes the first packet of a flow where that becomes known when the flow has ended:
// the detector's clock does not go back for it.
func (d *Detector) FlowStarted(s *FlowStart) {
	d.now = max(d.now, s.TimeNs)
	d.begin(s)
}

func (d *Detector) begin(s *FlowStart) {
	d.stats.Starts++
	d.src, d.dst = d.h.Addr(&s.Src), d.h.Addr(&s.Dst)
	d.floodStart(s)
	d.beaconStart(s)
}

// FlowEnd takes a finished flow.
func (d *Detector) FlowEnd(r *telemetry.Record) {
	d.stats.Ends++
	d.now = max(d.now, r.EndNs)
	d.src, d.dst = d.h.Addr(&r.Src), d.h.Addr(&r.Dst)
	d.floodEnd(r)
	d.scanEnd(r)
	d.loginEnd(r)
	d.beaconEnd(r)
	d.dnsEnd(r)
	d.icmpEnd(r)
	if !d.covertEnd(r) { // the better explanation of the same flow
		d.pushEnd(r)
	}
}

// subject gives what a rule watches its id: one or two address hashes (0 for
// none) and a port. The salt keeps rules apart.
func (d *Detector) subject(salt, a, b uint64, port uint16) uint64 {
	return d.h.Pair(a^salt<<16^uint64(port), b) | 1 // 0 marks a free place
}

// armed says whether an alert for a subject may go out now. It may not within the
// hold-down of the last one or when too many went out within the minute. What goes on
// stays silent: every finding held back renews the hold-down, which is at least twice what
// the rule looked at.
func (d *Detector) armed(id uint64, windowNs int64) bool {
	until := d.now + max(d.holdDown, 2*windowNs)
	if b, i, ok := d.held.find(id); ok && d.now < b.v[i] && b.start[i]-d.now <= d.held.late {
		b.v[i] = max(b.v[i], until)
		d.stats.Suppressed++
		return false
	}
	if d.now-d.minute >= 60*second || d.now < d.minute {
		d.minute, d.minuteCount = d.now, 0
	}
	if d.minuteCount++; d.minuteCount > d.cfg.MaxAlertsPerMinute {
		d.stats.Suppressed++
		return false
	}
	b, i := d.held.at(id, d.now)
	b.v[i] = until
	return true
}

// due is armed for what may be confirmed later than it was found: a confirmed finding goes
// out although the same one was reported before without, and silences both.
func (d *Detector) due(id uint64, windowNs int64, confirmed bool) bool {
	if !confirmed {
		return d.armed(id, windowNs)
	}
	due := d.armed(d.subject(saltConfirmed, id, 0, 0), windowNs)
	b, i := d.held.at(id, d.now)
	b.v[i] = max(b.v[i], d.now+max(d.holdDown, 2*windowNs))
	return due
}

func (d *Detector) emit(a *telemetry.Alert) {
	a.TimeNs = d.now
	d.stats.Alerts++
	d.alert(a)
}

// client is an alert about what r's initiator does at r's service.
func client(kind string, r *telemetry.Record, count, limit float64, windowNs int64) *telemetry.Alert {
	return &telemetry.Alert{
		Kind: kind, Src: telemetry.Addr(r.IPVersion, &r.Src).String(), Dst: telemetry.Addr(r.IPVersion, &r.Dst).String(), DstPort: r.DstPort, Protocol: r.Protocol,
		Count: uint64(count + 0.5), Threshold: limit, WindowNs: windowNs,
	}
}

// single is client for what one connection shows: confirmed if that is.
func single(kind string, r *telemetry.Record, count, limit float64, windowNs int64) *telemetry.Alert {
	a := client(kind, r, count, limit, windowNs)
	a.Confirmed = r.Confirmed
	return a
}
