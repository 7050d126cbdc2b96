package agp

import (
	"math"
	"testing"
	"time"

	"github.com/influxdata/telegraf"
	"github.com/influxdata/telegraf/metric"
	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// reader is a plugin that has only read.
func reader(t *testing.T) *AGP {
	t.Helper()
	a, _ := plugin(t, nil)
	t.Cleanup(a.Stop)
	return a
}

func tcp4(src, dst byte, sp, dp uint16) packet.Info {
	return packet.Info{IPVersion: 4, Protocol: packet.ProtoTCP, Src: [16]byte{10, 0, 0, src}, Dst: [16]byte{10, 0, 0, dst}, SrcPort: sp, DstPort: dp}
}

// One metric of each input, with the names and types that telegraf 1.37 gives it.
func TestMetricsOfTelegrafsInputsAreFlows(t *testing.T) {
	ends := func(more map[string]any) map[string]any {
		fields := map[string]any{"src": "10.0.0.1", "dst": "10.0.0.2", "src_port": uint64(5000), "dst_port": uint64(80), "protocol": "tcp"}
		for k, v := range more {
			fields[k] = v
		}
		return fields
	}
	at := came.Add(-30 * time.Second)
	ms := uint64(at.UnixMilli())
	const synAck = packet.TCPSyn | packet.TCPAck
	tags := func(version string) map[string]string { return map[string]string{"source": "r1", "version": version} }
	for _, c := range []struct {
		name string
		m    telegraf.Metric
		want seen
	}{
		{"IPFIX", metric.New("netflow", tags("IPFIX"), ends(map[string]any{
			"in_total_packets": uint64(2), "in_total_bytes": uint64(104), "tcp_flags": "...........A..S.", "flow_start_ms": ms, "flow_end_ms": ms + 500,
		}), came), seen{
			info: tcp4(1, 2, 5000, 80), dir: [2]half{{2, 104, synAck, true}}, source: "r1", sampling: 1, start: at.UnixNano(), end: at.UnixNano() + 5e8,
		}},
		{"NetFlow v5", metric.New("netflow", tags("NetFlowV5"), ends(map[string]any{
			"in_packets": uint64(2), "in_bytes": uint64(104), "tcp_flags": "...A..S.", "first_switched": uint64(70_000), "last_switched": uint64(70_500),
			"sys_uptime": uint64(100_000), "sampling_interval": uint64(0),
		}), came), seen{
			info: tcp4(1, 2, 5000, 80), dir: [2]half{{2, 104, synAck, true}}, source: "r1", sampling: 1, start: at.UnixNano(), end: at.UnixNano() + 5e8,
		}},
		{"NetFlow v9", metric.New("netflow", tags("NetFlowV9"), ends(map[string]any{
			"in_packets": uint64(2), "in_bytes": uint64(104), "first_switched": uint64(70_000), "last_switched": uint64(70_500),
		}), came), seen{
			info: tcp4(1, 2, 5000, 80), dir: [2]half{{2, 104, 0, false}}, source: "r1", sampling: 1, relative: true, start: came.UnixNano() - 5e8, end: came.UnixNano(),
		}},
		{"sFlow", metric.New("netflow", tags("sFlowV5"), ends(map[string]any{
			"in_total_packets": uint64(687103949), "ipv4_total_len": uint64(1268), "l2_bytes": uint64(1286), "sampling_interval": uint64(200),
		}), came), seen{
			info: tcp4(1, 2, 5000, 80), dir: [2]half{{1, 1268, 0, false}}, source: "r1", sampling: 200, single: true, start: came.UnixNano(), end: came.UnixNano(),
		}},
		{"sflow", metric.New("sflow", map[string]string{
			"agent_address": "r1", "src_ip": "10.0.0.1", "dst_ip": "10.0.0.2", "src_port": "5000", "dst_port": "80", "ip_protocol": "6",
		}, map[string]any{"frame_length": uint64(114), "sampling_rate": uint64(512)}, came), seen{
			info: tcp4(1, 2, 5000, 80), dir: [2]half{{1, 100, 0, false}}, source: "r1", sampling: 512, single: true, start: came.UnixNano(), end: came.UnixNano(),
		}},
		{"Suricata", metric.New("suricata", map[string]string{"event_type": "flow", "proto": "TCP", "in_iface": "r1"}, map[string]any{
			"src_ip": "10.0.0.1", "src_port": int64(5000), "dest_ip": "10.0.0.2", "dest_port": int64(80), "state": "established",
			"pkts_toserver": float64(10), "bytes_toserver": float64(1140), "pkts_toclient": float64(9), "bytes_toclient": float64(5126),
			"start": "2026-03-01T13:59:30.000000+0200", "end": "2026-03-01T13:59:30.500000+0200",
		}, came), seen{
			info: tcp4(1, 2, 5000, 80), dir: [2]half{{10, 1000, synAck, true}, {9, 5000, synAck, true}}, source: "r1", sampling: 1, both: true,
			start: came.UnixNano() - 1830e9, end: came.UnixNano() - 18295e8,
		}},
	} {
		if c.name == "Suricata" { // 13:59:30+0200 is 11:59:30
			c.want.start, c.want.end = at.UnixNano(), at.UnixNano()+5e8
		}
		got, ok, err := reader(t).read(c.m)
		require.NoError(t, err, c.name)
		require.True(t, ok, c.name)
		require.Equal(t, c.want, got, c.name)
	}
}

func TestOtherMetricsAreNoFlows(t *testing.T) {
	for _, m := range []telegraf.Metric{
		metric.New("cpu", nil, map[string]any{"src": "10.0.0.1", "dst": "10.0.0.2"}, came),
		metric.New("netflow_options", nil, map[string]any{"src": "10.0.0.1", "dst": "10.0.0.2"}, came),
		metric.New("netflow", nil, map[string]any{"in_snmp": uint64(3)}, came), // counters of an interface
		metric.New("suricata", map[string]string{"event_type": "dns"}, map[string]any{"src_ip": "10.0.0.1", "dest_ip": "10.0.0.2"}, came),
		metric.New("agp_flow", nil, map[string]any{"src": "10.0.0.1", "dst": "10.0.0.2"}, came),
	} {
		_, ok, err := reader(t).read(m)
		require.NoError(t, err)
		require.False(t, ok, m.Name())
	}
}

func TestFlowsThatMakeNoSenseAreRefusedByReason(t *testing.T) {
	for _, c := range []struct {
		field string
		value any
		want  error
	}{
		{"src", "router", errAddress}, {"src", "::1", errAddress}, {"dst", int64(4), errAddress},
		{"src_port", int64(65536), errPort}, {"dst_port", int64(-1), errPort},
		{"protocol", "nonsense", errProtocol}, {"protocol", int64(256), errProtocol},
		{"in_packets", int64(-1), errCount}, {"in_packets", uint64(0), errCount}, {"in_packets", uint64(math.MaxUint64), errCount}, {"in_bytes", "many", errCount}, {"in_bytes", true, errCount},
		{"flow_start_ms", uint64(came.UnixMilli()), errTime}, {"flow_end_ms", uint64(math.MaxInt64), errTime}, {"flow_end_ms", "yesterday", errTime},
	} {
		m := netflow("10.0.0.1:5000", "10.0.0.2:80", "......S.", 1, 60, came.Add(-time.Minute), time.Second)
		_, _, err := reader(t).read(m)
		require.NoError(t, err)
		m.AddField(c.field, c.value)
		_, _, err = reader(t).read(m)
		require.ErrorIs(t, err, c.want, "%s = %v", c.field, c.value)
	}
}

func TestStatesOfSuricataBecomeFlags(t *testing.T) {
	for _, c := range []struct {
		state          string
		fwd, rev       half
		wantFwd, wantR uint8
	}{
		{"new", half{packets: 2, bytes: 120}, half{}, fSyn, 0},
		{"new", half{packets: 1, bytes: 60}, half{packets: 3, bytes: 180}, fSyn, fSyn | fAck},
		{"closed", half{packets: 1, bytes: 60}, half{packets: 1, bytes: 46}, fSyn, fRst | fAck},
		{"closed", half{packets: 9, bytes: 900}, half{packets: 9, bytes: 9000}, fSyn | fAck | fFin, fSyn | fAck | fFin},
		{"established", half{packets: 9, bytes: 900}, half{packets: 9, bytes: 9000}, fSyn | fAck, fSyn | fAck},
	} {
		s := seen{dir: [2]half{c.fwd, c.rev}}
		s.fromState(c.state)
		require.Equal(t, [2]uint8{c.wantFwd, c.wantR}, [2]uint8{s.dir[0].flags, s.dir[1].flags}, c)
	}
}

// No text makes a flow that contradicts itself.
func FuzzFlow(f *testing.F) {
	f.Add("10.0.0.1", "10.0.0.2", "tcp", "5000", "80", "3", "180", "......S.", "1767226090168", "1767226090168")
	f.Add("2001:db8::1", "2001:db8::2", "17", "1", "65535", "1", "48", "0x12", "0", "1")
	f.Add("::ffff:10.0.0.1", "10.0.0.2", "icmp", "", "", "9223372036854775807", "1", "", "7258118400000", "7258118400000")
	f.Fuzz(func(t *testing.T, src, dst, protocol, sp, dp, packets, bytes, flags, start, end string) {
		m := metric.New("netflow", nil, map[string]any{
			"src": src, "dst": dst, "protocol": protocol, "src_port": sp, "dst_port": dp, "in_packets": packets, "in_bytes": bytes,
			"tcp_flags": flags, "flow_start_ms": start, "flow_end_ms": end,
		}, came)
		var absolute *Mapping
		for i := range known {
			if known[i].fits(m) {
				absolute = &known[i]
				break
			}
		}
		s, err := absolute.read(m)
		if err != nil {
			return
		}
		c := newClocks()
		c.set(&s, came.UnixNano())
		require.LessOrEqual(t, s.start, s.end)
		require.LessOrEqual(t, s.end, came.UnixNano()+ahead)
		b := newBuffer(64)
		require.Equal(t, fresh, b.add(&s))
		require.Equal(t, duplicate, b.add(&s))
		b.turn()
		var r telemetry.Record
		b.turn()[0].record(&r)
		n := r.Dir[0].Packets + r.Dir[1].Packets
		require.Equal(t, s.dir[0].packets, n)
		require.Equal(t, s.dir[0].bytes, r.Dir[0].L3Bytes+r.Dir[1].L3Bytes)
		for d := range r.Dir {
			h := &r.Dir[d]
			require.LessOrEqual(t, h.PayloadBytes, h.L3Bytes)
			require.GreaterOrEqual(t, h.WireBytes, h.L3Bytes)
		}
		_ = begin(&r, 1)
	})
}
