package wire

import (
	"errors"
	"fmt"
	"maps"
	"math"

	"github.com/agp-net/telegraf-agp/agp/telemetry"
	"github.com/agp-net/telegraf-agp/agp/telemetry/agppb"
)

// ErrRange is returned for a value that does not fit its record field.
var ErrRange = errors.New("value out of range")

// RecordToProto returns r as a message. Outputs that fill app and class get their
// own fields; with two outputs for one field the last stands.
func RecordToProto(r *telemetry.Record) *agppb.FlowRecord {
	fwd, rev := &r.Dir[telemetry.Fwd], &r.Dir[telemetry.Rev]
	size := 16
	if r.IPVersion == 4 {
		size = 4
	}
	addrs := make([]byte, 32)
	copy(addrs, r.Src[:size])
	copy(addrs[16:], r.Dst[:size])
	p := &agppb.FlowRecord{
		IpVersion: uint32(r.IPVersion), Protocol: uint32(r.Protocol),
		Src: addrs[:size:size], Dst: addrs[16 : 16+size : 16+size],
		SrcPort: uint32(r.SrcPort), DstPort: uint32(r.DstPort), VlanId: uint32(r.VLANID), TunnelId: r.TunnelID,
		StartNs: r.StartNs, EndNs: r.EndNs, EndReason: agppb.EndReason(r.EndReason), Fragment: r.Fragment,

		PacketsFwd: fwd.Packets, WireBytesFwd: fwd.WireBytes, L3BytesFwd: fwd.L3Bytes, PayloadBytesFwd: fwd.PayloadBytes,
		TcpFlagsFwd: uint32(fwd.TCPFlags), WireLenMinFwd: fwd.WireLenMin, WireLenMeanFwd: fwd.WireLenMean,
		WireLenMaxFwd: fwd.WireLenMax, WireLenStdFwd: fwd.WireLenStd, DelayNsMinFwd: fwd.DelayMinNs,
		DelayNsMeanFwd: fwd.DelayMeanNs, DelayNsMaxFwd: fwd.DelayMaxNs, DelayNsStdFwd: fwd.DelayStdNs,
		TcpRetransmitsFwd: fwd.Retransmits, TcpOutOfOrderFwd: fwd.OutOfOrder, TcpZeroWindowsFwd: fwd.ZeroWindows,

		PacketsRev: rev.Packets, WireBytesRev: rev.WireBytes, L3BytesRev: rev.L3Bytes, PayloadBytesRev: rev.PayloadBytes,
		TcpFlagsRev: uint32(rev.TCPFlags), WireLenMinRev: rev.WireLenMin, WireLenMeanRev: rev.WireLenMean,
		WireLenMaxRev: rev.WireLenMax, WireLenStdRev: rev.WireLenStd, DelayNsMinRev: rev.DelayMinNs,
		DelayNsMeanRev: rev.DelayMeanNs, DelayNsMaxRev: rev.DelayMaxNs, DelayNsStdRev: rev.DelayStdNs,
		TcpRetransmitsRev: rev.Retransmits, TcpOutOfOrderRev: rev.OutOfOrder, TcpZeroWindowsRev: rev.ZeroWindows,

		SizeHist: trimZeros(r.SizeHist[:]), DelayHist: trimZeros(r.DelayHist[:]),
		TcpSynRetransmits: r.TCPSynRetransmits, TimeSteps: r.TimeSteps, PacketsCoalesced: r.Coalesced, Queue: uint32(r.Queue), Interface: r.Interface,
	}
	if r.FirstReplyNs >= 0 {
		v := r.FirstReplyNs
		p.FirstReplyNs = &v
	}
	if r.TCPHandshakeNs >= 0 {
		v := r.TCPHandshakeNs
		p.TcpHandshakeNs = &v
	}
	for i := range r.Outputs {
		o := &r.Outputs[i]
		switch o.Field {
		case "app":
			p.App, p.AppScore, p.AppModel = o.Label, o.Score, o.Model
		case "class":
			p.Class, p.ClassScore, p.ClassModel = o.Label, o.Score, o.Model
		}
	}
	return p
}

// trimZeros copies bins without the zeros at its end.
func trimZeros(bins []uint32) []uint32 {
	n := len(bins)
	for n > 0 && bins[n-1] == 0 {
		n--
	}
	return append([]uint32(nil), bins[:n]...)
}

// RecordFromProto copies p into r. What cannot be a record is refused with ErrRange.
func RecordFromProto(p *agppb.FlowRecord, r *telemetry.Record) error {
	*r = telemetry.Record{
		TunnelID: p.GetTunnelId(), StartNs: p.GetStartNs(), EndNs: p.GetEndNs(), Fragment: p.GetFragment(),
		FirstReplyNs: -1, TCPHandshakeNs: -1, TCPSynRetransmits: p.GetTcpSynRetransmits(), TimeSteps: p.GetTimeSteps(), Coalesced: p.GetPacketsCoalesced(),
		Interface: p.GetInterface(),
	}
	version := p.GetIpVersion()
	size := map[uint32]int{4: 4, 6: 16}[version]
	if size == 0 || len(p.GetSrc()) != size || len(p.GetDst()) != size {
		return fmt.Errorf("%w: ip_version %d with addresses of %d and %d bytes", ErrRange, version, len(p.GetSrc()), len(p.GetDst()))
	}
	if len(p.GetSizeHist()) > telemetry.SizeBins || len(p.GetDelayHist()) > telemetry.DelayBins {
		return fmt.Errorf("%w: histograms of %d and %d bins", ErrRange, len(p.GetSizeHist()), len(p.GetDelayHist()))
	}
	if e := p.GetEndReason(); e < 0 || e > math.MaxUint8 {
		return fmt.Errorf("%w: end_reason %d", ErrRange, e)
	}
	n := narrower{}
	r.IPVersion, r.Protocol = uint8(version), n.u8("protocol", p.GetProtocol())
	r.EndReason = telemetry.EndReason(p.GetEndReason())
	r.SrcPort, r.DstPort = n.u16("src_port", p.GetSrcPort()), n.u16("dst_port", p.GetDstPort())
	r.VLANID, r.Queue = n.u16("vlan_id", p.GetVlanId()), n.u16("queue", p.GetQueue())
	copy(r.Src[:], p.GetSrc())
	copy(r.Dst[:], p.GetDst())
	r.Dir[telemetry.Fwd] = telemetry.Half{
		Packets: p.GetPacketsFwd(), WireBytes: p.GetWireBytesFwd(), L3Bytes: p.GetL3BytesFwd(), PayloadBytes: p.GetPayloadBytesFwd(),
		TCPFlags: n.u8("tcp_flags_fwd", p.GetTcpFlagsFwd()), WireLenMin: p.GetWireLenMinFwd(), WireLenMax: p.GetWireLenMaxFwd(),
		WireLenMean: p.GetWireLenMeanFwd(), WireLenStd: p.GetWireLenStdFwd(), DelayMinNs: p.GetDelayNsMinFwd(),
		DelayMaxNs: p.GetDelayNsMaxFwd(), DelayMeanNs: p.GetDelayNsMeanFwd(), DelayStdNs: p.GetDelayNsStdFwd(),
		Retransmits: p.GetTcpRetransmitsFwd(), OutOfOrder: p.GetTcpOutOfOrderFwd(), ZeroWindows: p.GetTcpZeroWindowsFwd(),
	}
	r.Dir[telemetry.Rev] = telemetry.Half{
		Packets: p.GetPacketsRev(), WireBytes: p.GetWireBytesRev(), L3Bytes: p.GetL3BytesRev(), PayloadBytes: p.GetPayloadBytesRev(),
		TCPFlags: n.u8("tcp_flags_rev", p.GetTcpFlagsRev()), WireLenMin: p.GetWireLenMinRev(), WireLenMax: p.GetWireLenMaxRev(),
		WireLenMean: p.GetWireLenMeanRev(), WireLenStd: p.GetWireLenStdRev(), DelayMinNs: p.GetDelayNsMinRev(),
		DelayMaxNs: p.GetDelayNsMaxRev(), DelayMeanNs: p.GetDelayNsMeanRev(), DelayStdNs: p.GetDelayNsStdRev(),
		Retransmits: p.GetTcpRetransmitsRev(), OutOfOrder: p.GetTcpOutOfOrderRev(), ZeroWindows: p.GetTcpZeroWindowsRev(),
	}
	copy(r.SizeHist[:], p.GetSizeHist())
	copy(r.DelayHist[:], p.GetDelayHist())
	if p.FirstReplyNs != nil {
		r.FirstReplyNs = *p.FirstReplyNs
	}
	if p.TcpHandshakeNs != nil {
		r.TCPHandshakeNs = *p.TcpHandshakeNs
	}
	if p.GetAppModel() != "" || p.GetApp() != "" {
		r.Outputs = append(r.Outputs, telemetry.Output{Field: "app", Label: p.GetApp(), Score: p.GetAppScore(), Model: p.GetAppModel()})
	}
	if p.GetClassModel() != "" || p.GetClass() != "" {
		r.Outputs = append(r.Outputs, telemetry.Output{Field: "class", Label: p.GetClass(), Score: p.GetClassScore(), Model: p.GetClassModel()})
	}
	return n.err
}

// narrower remembers the first value that did not fit.
type narrower struct{ err error }

func (n *narrower) check(name string, v, limit uint32) {
	if v > limit && n.err == nil {
		n.err = fmt.Errorf("%w: %s %d", ErrRange, name, v)
	}
}

func (n *narrower) u8(name string, v uint32) uint8 {
	n.check(name, v, math.MaxUint8)
	return uint8(v)
}

func (n *narrower) u16(name string, v uint32) uint16 {
	n.check(name, v, math.MaxUint16)
	return uint16(v)
}

// AlertToProto returns a as a message.
func AlertToProto(a *telemetry.Alert) *agppb.Alert {
	return &agppb.Alert{
		TimeNs: a.TimeNs, Interface: a.Interface, Kind: a.Kind, Class: a.Class, Src: a.Src, Dst: a.Dst,
		SrcPort: uint32(a.SrcPort), DstPort: uint32(a.DstPort), Protocol: uint32(a.Protocol),
		Count: a.Count, Threshold: a.Threshold, Score: a.Score, WindowNs: a.WindowNs, Model: a.Model,
		Confirmed: a.Confirmed,
	}
}

// AlertFromProto copies p into a.
func AlertFromProto(p *agppb.Alert, a *telemetry.Alert) error {
	n := narrower{}
	*a = telemetry.Alert{
		TimeNs: p.GetTimeNs(), Interface: p.GetInterface(), Kind: p.GetKind(), Class: p.GetClass(), Src: p.GetSrc(), Dst: p.GetDst(),
		SrcPort: n.u16("src_port", p.GetSrcPort()), DstPort: n.u16("dst_port", p.GetDstPort()), Protocol: n.u8("protocol", p.GetProtocol()),
		Count: p.GetCount(), Threshold: p.GetThreshold(), Score: p.GetScore(), WindowNs: p.GetWindowNs(), Model: p.GetModel(),
		Confirmed: p.GetConfirmed(),
	}
	return n.err
}

// SummaryToProto returns s as a message.
func SummaryToProto(s *telemetry.Summary) *agppb.Summary {
	return &agppb.Summary{
		PacketsSeen: s.PacketsSeen, PacketsRecorded: s.PacketsRecorded, Drops: s.Drops, Errors: s.Errors,
		Records: s.Records, Alerts: s.Alerts, Seconds: s.Seconds,
	}
}

// SummaryFromProto returns p as a summary.
func SummaryFromProto(p *agppb.Summary) telemetry.Summary {
	return telemetry.Summary{
		PacketsSeen: p.GetPacketsSeen(), PacketsRecorded: p.GetPacketsRecorded(), Drops: p.GetDrops(), Errors: p.GetErrors(),
		Records: p.GetRecords(), Alerts: p.GetAlerts(), Seconds: p.GetSeconds(),
	}
}

// SnapshotToProto returns s as a message that shares nothing with s but byte slices.
func SnapshotToProto(s *telemetry.Snapshot) *agppb.Snapshot {
	e := &s.Engine
	p := &agppb.Snapshot{
		TimeNs: s.TimeNs,
		Engine: &agppb.EngineRow{
			Source: e.Source, Pipeline: e.Pipeline, Models: append([]string(nil), e.Models...),
			PacketsSeen: e.PacketsSeen, PacketsRecorded: e.PacketsRecorded, PacketsActive: e.PacketsActive,
			Drops: maps.Clone(e.Drops), Errors: maps.Clone(e.Errors), Records: e.Records, Alerts: e.Alerts,
			FlowsActive: e.FlowsActive, Evictions: e.Evictions, Inferences: e.Inferences, TimeSteps: e.TimeSteps,
			StateBytes: e.StateBytes, PacketToScoreCount: e.PacketToScoreCount, PacketToScoreP50Ns: e.PacketToScoreP50Ns,
			PacketToScoreP90Ns: e.PacketToScoreP90Ns, PacketToScoreP99Ns: e.PacketToScoreP99Ns, Suppressed: e.Suppressed,
			CpuSeconds: e.CPUSeconds, RssBytes: e.RSSBytes, UptimeNs: e.UptimeNs, SkippedFields: e.SkippedFields,
			QueueSkew: e.QueueSkew, MovedBuckets: e.MovedBuckets, PipelineReason: e.PipelineReason,
		},
	}
	for i := range s.Traffic {
		t := &s.Traffic[i]
		p.Traffic = append(p.Traffic, &agppb.TrafficRow{
			App: t.App, Class: t.Class, Protocol: uint32(t.Protocol), Flows: t.Flows, Packets: t.Packets, Bytes: t.Bytes,
			Retransmits: t.Retransmits, OutOfOrder: t.OutOfOrder, ZeroWindows: t.ZeroWindows,
			ConnectionsOpen: t.ConnectionsOpen, ConnectionsFailed: t.ConnectionsFailed,
			FirstReplySumNs: t.FirstReplySumNs, FirstReplyCount: t.FirstReplyCount,
			HandshakeSumNs: t.HandshakeSumNs, HandshakeCount: t.HandshakeCount,
		})
	}
	for i := range s.Top {
		t := &s.Top[i]
		p.Top = append(p.Top, &agppb.TopRow{
			Metric: t.Metric, Rank: uint32(t.Rank), Src: t.Src, Dst: t.Dst, SrcPort: uint32(t.SrcPort), DstPort: uint32(t.DstPort),
			Protocol: t.Protocol, Value: t.Value, Error: t.Error,
		})
	}
	for i := range s.Sketches {
		k := &s.Sketches[i]
		p.Sketches = append(p.Sketches, &agppb.SketchRow{
			Name: k.Name, Kind: uint32(k.Kind), Count: k.Count, Estimate: k.Estimate, ErrorBound: k.ErrorBound,
			P50: k.P50, P90: k.P90, P99: k.P99, WindowNs: k.WindowNs, State: k.State, Encoding: k.Encoding,
		})
	}
	for i := range s.Queues {
		q := &s.Queues[i]
		p.Queues = append(p.Queues, &agppb.QueueRow{
			Queue: uint32(q.Queue), Packets: q.Packets, Bytes: q.Bytes, Drops: maps.Clone(q.Drops), Depth: q.Depth,
		})
	}
	for i := range s.Steering {
		r := &s.Steering[i]
		p.Steering = append(p.Steering, &agppb.SteeringRow{
			Interface: r.Interface, Target: r.Target, Packets: r.Packets, Bytes: r.Bytes, Rules: r.Rules,
		})
	}
	for i := range s.GPUs {
		g := &s.GPUs[i]
		p.Gpus = append(p.Gpus, &agppb.GpuRow{
			Index: g.Index, Uuid: g.UUID, Name: g.Name, Lost: g.Lost, PowerMilliwatts: g.PowerMilliwatts,
			EnergyMillijoules: g.EnergyMillijoules, SmClockMhz: g.SMClockMHz, MemoryClockMhz: g.MemoryClockMHz,
			MemoryUsedBytes: g.MemoryUsedBytes, MemoryTotalBytes: g.MemoryTotalBytes,
			PcieRxBytesPerSecond: g.PCIeRXBytesPerSecond, PcieTxBytesPerSecond: g.PCIeTXBytesPerSecond,
			UtilizationPercent: g.UtilizationPercent, TemperatureCelsius: g.TemperatureCelsius,
			EccCorrected: g.EccCorrected, EccUncorrected: g.EccUncorrected, XidErrors: g.XidErrors, LastXid: g.LastXid,
			Processes: g.Processes, EngineMemoryBytes: g.EngineMemoryBytes, EngineWarps: g.EngineWarps, EngineSms: g.EngineSMs,
			JoulesPerMillionPackets: g.JoulesPerMillionPackets,
		})
	}
	return p
}

// SnapshotFromProto fills s, which then shares strings, maps and byte slices with p.
func SnapshotFromProto(p *agppb.Snapshot, s *telemetry.Snapshot) error {
	n := narrower{}
	e := p.GetEngine()
	s.Reset()
	s.TimeNs = p.GetTimeNs()
	s.Engine = telemetry.EngineRow{
		Source: e.GetSource(), Pipeline: e.GetPipeline(), Models: e.GetModels(),
		PacketsSeen: e.GetPacketsSeen(), PacketsRecorded: e.GetPacketsRecorded(), PacketsActive: e.GetPacketsActive(),
		Drops: e.GetDrops(), Errors: e.GetErrors(), Records: e.GetRecords(), Alerts: e.GetAlerts(),
		FlowsActive: e.GetFlowsActive(), Evictions: e.GetEvictions(), Inferences: e.GetInferences(), TimeSteps: e.GetTimeSteps(),
		StateBytes: e.GetStateBytes(), PacketToScoreCount: e.GetPacketToScoreCount(), PacketToScoreP50Ns: e.GetPacketToScoreP50Ns(),
		PacketToScoreP90Ns: e.GetPacketToScoreP90Ns(), PacketToScoreP99Ns: e.GetPacketToScoreP99Ns(), Suppressed: e.GetSuppressed(),
		CPUSeconds: e.GetCpuSeconds(), RSSBytes: e.GetRssBytes(), UptimeNs: e.GetUptimeNs(), SkippedFields: e.GetSkippedFields(),
		QueueSkew: e.GetQueueSkew(), MovedBuckets: e.GetMovedBuckets(), PipelineReason: e.GetPipelineReason(),
	}
	for _, t := range p.GetTraffic() {
		s.Traffic = append(s.Traffic, telemetry.TrafficRow{
			App: t.GetApp(), Class: t.GetClass(), Protocol: n.u8("protocol", t.GetProtocol()),
			Flows: t.GetFlows(), Packets: t.GetPackets(), Bytes: t.GetBytes(),
			Retransmits: t.GetRetransmits(), OutOfOrder: t.GetOutOfOrder(), ZeroWindows: t.GetZeroWindows(),
			ConnectionsOpen: t.GetConnectionsOpen(), ConnectionsFailed: t.GetConnectionsFailed(),
			FirstReplySumNs: t.GetFirstReplySumNs(), FirstReplyCount: t.GetFirstReplyCount(),
			HandshakeSumNs: t.GetHandshakeSumNs(), HandshakeCount: t.GetHandshakeCount(),
		})
	}
	for _, t := range p.GetTop() {
		s.Top = append(s.Top, telemetry.TopRow{
			Metric: t.GetMetric(), Rank: n.u16("rank", t.GetRank()), Src: t.GetSrc(), Dst: t.GetDst(),
			SrcPort: n.u16("src_port", t.GetSrcPort()), DstPort: n.u16("dst_port", t.GetDstPort()),
			Protocol: t.GetProtocol(), Value: t.GetValue(), Error: t.GetError(),
		})
	}
	for _, k := range p.GetSketches() {
		n.check("kind", k.GetKind(), math.MaxUint8)
		s.Sketches = append(s.Sketches, telemetry.SketchRow{
			Name: k.GetName(), Kind: telemetry.SketchKind(k.GetKind()), Count: k.GetCount(), Estimate: k.GetEstimate(),
			ErrorBound: k.GetErrorBound(), P50: k.GetP50(), P90: k.GetP90(), P99: k.GetP99(), WindowNs: k.GetWindowNs(),
			State: k.GetState(), Encoding: k.GetEncoding(),
		})
	}
	for _, q := range p.GetQueues() {
		s.Queues = append(s.Queues, telemetry.QueueRow{
			Queue: n.u16("queue", q.GetQueue()), Packets: q.GetPackets(), Bytes: q.GetBytes(), Drops: q.GetDrops(), Depth: q.GetDepth(),
		})
	}
	for _, r := range p.GetSteering() {
		s.Steering = append(s.Steering, telemetry.SteeringRow{
			Interface: r.GetInterface(), Target: r.GetTarget(), Packets: r.GetPackets(), Bytes: r.GetBytes(), Rules: r.GetRules(),
		})
	}
	for _, g := range p.GetGpus() {
		s.GPUs = append(s.GPUs, telemetry.GPURow{
			Index: g.GetIndex(), UUID: g.GetUuid(), Name: g.GetName(), Lost: g.GetLost(), PowerMilliwatts: g.PowerMilliwatts,
			EnergyMillijoules: g.EnergyMillijoules, SMClockMHz: g.SmClockMhz, MemoryClockMHz: g.MemoryClockMhz,
			MemoryUsedBytes: g.MemoryUsedBytes, MemoryTotalBytes: g.MemoryTotalBytes,
			PCIeRXBytesPerSecond: g.PcieRxBytesPerSecond, PCIeTXBytesPerSecond: g.PcieTxBytesPerSecond,
			UtilizationPercent: g.UtilizationPercent, TemperatureCelsius: g.TemperatureCelsius,
			EccCorrected: g.EccCorrected, EccUncorrected: g.EccUncorrected, XidErrors: g.XidErrors, LastXid: g.LastXid,
			Processes: g.Processes, EngineMemoryBytes: g.EngineMemoryBytes, EngineWarps: g.EngineWarps, EngineSMs: g.EngineSms,
			JoulesPerMillionPackets: g.JoulesPerMillionPackets,
		})
	}
	return n.err
}
