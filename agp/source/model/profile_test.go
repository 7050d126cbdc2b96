package model

import (
	"context"
	"encoding/binary"
	"io"
	"sort"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/mlx5"
	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cpu"
	"github.com/agp-net/telegraf-agp/agp/source"
	"github.com/agp-net/telegraf-agp/agp/source/pcap"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
	"github.com/agp-net/telegraf-agp/tests/testcap"
)

func traffic(t testing.TB, p Profile) *Traffic {
	s, err := NewTraffic(p)
	require.NoError(t, err)
	return s
}

var profiles = map[string]Profile{
	"64 B":       {Packets: 5000, Seed: 1},
	"IMIX":       {Packets: 5000, Seed: 2, Lengths: LengthIMIX, UDP: 0.3, IPv6: 0.3},
	"1500":       {Packets: 2000, Seed: 3, Lengths: Length1500, Flows: 50, UDP: 0.5},
	"Zipf":       {Packets: 5000, Seed: 4, Flows: 10000, Zipf: 1.2},
	"new flows":  {Packets: 5000, Seed: 5, NewFlows: 0.2, UDP: 0.2, IPv6: 0.5, Rate: 100},
	"SYN flood":  {Packets: 5000, Seed: 6, SYNFlood: 0.7},
	"elephants":  {Packets: 5000, Seed: 7, Elephants: 0.8, Lengths: LengthIMIX, Rate: 1e3},
	"everything": {Packets: 5000, Seed: 8, Zipf: 2, NewFlows: 0.1, SYNFlood: 0.1, Elephants: 0.1, UDP: 0.3, IPv6: 0.3, Lengths: LengthIMIX, Rate: 50},
}

func TestSyntheticFramesAreValid(t *testing.T) {
	for name, p := range profiles {
		s := traffic(t, p)
		b := source.Batch{Frames: make([]source.Frame, 100)}
		lengths, total, last := map[int]int{}, 0, int64(0)
		for {
			n, err := s.Next(&b)
			if err == io.EOF {
				break
			}
			require.NoError(t, err)
			for _, f := range b.Frames[:n] {
				var in packet.Info
				require.Equal(t, packet.OK, parser.Parse(f.LinkType, f.Data, f.WireLen, &in), name)
				require.Zero(t, in.Flags&(packet.FlagBadLength|packet.FlagTruncated), name)
				require.GreaterOrEqual(t, f.TimestampNs, last)
				last = f.TimestampNs
				lengths[len(f.Data)]++
				total++
				k := gopacket.NewPacket(f.Data, layers.LayerTypeEthernet, gopacket.NoCopy)
				require.Nil(t, k.ErrorLayer(), name)
				if err, bad := k.VerifyChecksums(); len(bad) > 0 || err != nil {
					require.Empty(t, bad, name)
				}
			}
		}
		require.EqualValues(t, p.Packets, total)
		if name == "IMIX" {
			require.InDelta(t, 7.0/12, float64(lengths[60]+lengths[62]+lengths[74])/5000, 0.05)
			require.InDelta(t, 4.0/12, float64(lengths[590])/5000, 0.05)
			require.InDelta(t, 1.0/12, float64(lengths[1514])/5000, 0.03)
		}
	}
}

func TestProfilesAreWhatTheySay(t *testing.T) {
	count := func(p Profile) (flows map[[2]uint64]int, syn, v6, udp int, span int64) {
		s := traffic(t, p)
		flows = map[[2]uint64]int{}
		buf := make([]byte, maxLength)
		var first, ns int64
		for i := 0; ; i++ {
			n, at, ok := s.Frame(buf)
			if !ok {
				return flows, syn, v6, udp, ns - first
			}
			if ns = at; i == 0 {
				first = at
			}
			var in packet.Info
			parser.Parse(packet.LinkEthernet, buf[:n], uint32(n), &in)
			a, b := binary.BigEndian.Uint64(in.Src[8:])^binary.BigEndian.Uint64(in.Src[:])^uint64(in.SrcPort), binary.BigEndian.Uint64(in.Dst[8:])^binary.BigEndian.Uint64(in.Dst[:])^uint64(in.DstPort)
			flows[[2]uint64{min(a, b), max(a, b)}]++
			if in.Protocol == packet.ProtoTCP && in.TCPFlags == packet.TCPSyn {
				syn++
			}
			if in.IPVersion == 6 {
				v6++
			}
			if in.Protocol == packet.ProtoUDP {
				udp++
			}
		}
	}
	flows, _, _, _, span := count(Profile{Packets: 20000, Flows: 100, Rate: 1000})
	require.Len(t, flows, 100)
	require.InDelta(t, 20e9, span, 2e6)
	flows, _, _, _, _ = count(Profile{Packets: 20000, Flows: 100, NewFlows: 0.1})
	require.InDelta(t, 2100, len(flows), 200)
	flows, syn, _, _, _ := count(Profile{Packets: 20000, Flows: 100, SYNFlood: 0.5})
	require.InDelta(t, 10100, len(flows), 400)
	require.InDelta(t, 10100, syn, 400)
	_, _, v6, udp, _ := count(Profile{Packets: 20000, Flows: 5000, IPv6: 0.25, UDP: 0.75})
	require.InDelta(t, 5000, v6, 700)
	require.InDelta(t, 15000, udp, 700)
	top := func(m map[[2]uint64]int) (n int) {
		var all []int
		for _, v := range m {
			all = append(all, v)
		}
		sort.Sort(sort.Reverse(sort.IntSlice(all)))
		for _, v := range all[:4] {
			n += v
		}
		return n
	}
	flows, _, _, _, _ = count(Profile{Packets: 20000, Elephants: 0.9})
	require.InDelta(t, 18000, top(flows), 500)
	flows, _, _, _, _ = count(Profile{Packets: 20000, Zipf: 1.5})
	require.Greater(t, top(flows), 8000)
}

func TestBadProfilesAreRefused(t *testing.T) {
	nan := 0.0
	nan /= nan
	for name, p := range map[string]Profile{
		"flows": {Flows: -1}, "many flows": {Flows: maxFlows + 1}, "rate": {Rate: -1}, "rate is no number": {Rate: nan},
		"zipf": {Zipf: 1}, "share": {UDP: 1.1}, "share is no number": {IPv6: nan}, "negative share": {SYNFlood: -0.1},
		"short frames": {Lengths: []Share{{63, 1}}}, "long frames": {Lengths: []Share{{maxLength + 1, 1}}}, "weight": {Lengths: []Share{{64, 0}}},
	} {
		_, err := NewTraffic(p)
		require.ErrorIs(t, err, ErrConfig, name)
	}
}

func TestTrafficDoesNotAllocate(t *testing.T) {
	s := traffic(t, profiles["everything"])
	buf := make([]byte, maxLength)
	require.Zero(t, testing.AllocsPerRun(1000, func() { s.Frame(buf) }))
}

// records runs the CPU pipeline and returns its records, sorted.
func records(t testing.TB, s source.Source) (list []string, dropped map[string]uint64) {
	c := collect{}
	p, err := cpu.New(cpu.Config{Source: s, Sink: &c, Queues: 2})
	require.NoError(t, err)
	require.NoError(t, p.Run(context.Background()))
	dropped = s.Stats().Dropped
	require.NoError(t, s.Close())
	sort.Strings(c.list)
	return c.list, dropped
}

type collect struct{ list []string }

func (c *collect) Record(r *telemetry.Record) {
	k := *r
	k.Queue = 0
	c.list = append(c.list, string(telemetry.AppendJSON(nil, &k)))
}
func (*collect) Alert(*telemetry.Alert) {}

func through(t testing.TB, in source.Source, cfg Config, faults map[Fault]float64) *Source {
	cfg.Layout = mlx5.Layout{LogCQ: 6, LogRQ: 5, Pitch: 9216}
	p, err := New(cfg)
	require.NoError(t, err)
	for f, v := range faults {
		p.SetFault(f, v)
	}
	s, err := NewSource(p, in)
	require.NoError(t, err)
	return s
}

func TestRecordsThroughTheModelAreThoseWithoutIt(t *testing.T) {
	for name, p := range profiles {
		want, _ := records(t, traffic(t, p))
		for _, queues := range []int{1, 3} {
			// Faults that lose nothing change nothing.
			got, dropped := records(t, through(t, traffic(t, p), Config{Queues: queues, Seed: 5, StripVLAN: true, EndPadding: true}, map[Fault]float64{
				FaultLatePayload: 0.1, FaultLateLower: 0.1, FaultStaleDoorbell: 0.5,
			}))
			require.Equal(t, want, got, "%s, %d queues", name, queues)
			require.Empty(t, dropped)
		}
	}
}

func TestRecordsOfCapturesThroughTheModel(t *testing.T) {
	for i, path := range testcap.All(t) {
		if i%10 != 0 {
			continue // the parser's own tests take them all
		}
		open := func() source.Source {
			s, err := pcap.Open([]string{path}, pcap.Options{})
			require.NoError(t, err)
			return ethernet{s}
		}
		want, _ := records(t, open())
		got, dropped := records(t, through(t, open(), Config{Clock: mlx5.Clock{Format: mlx5.TimeReal}, StripVLAN: true}, map[Fault]float64{FaultLateUpper: 0.1}))
		require.Equal(t, want, got, path)
		require.Empty(t, dropped, path)
	}
}

// ethernet leaves out what a port cannot receive as it is: other links, cut frames, times before the epoch.
type ethernet struct{ *pcap.Reader }

func (e ethernet) Next(b *source.Batch) (int, error) {
	n, err := e.Reader.Next(b)
	kept := 0
	for _, f := range b.Frames[:n] {
		if f.LinkType == packet.LinkEthernet && int(f.WireLen) == len(f.Data) && len(f.Data) <= 9000 && f.TimestampNs >= 0 {
			b.Frames[kept] = f
			kept++
		}
	}
	return kept, err
}

func (e ethernet) Stats() source.Stats { return source.Stats{} }

func TestLostFramesAreCounted(t *testing.T) {
	p := profiles["everything"]
	s := through(t, traffic(t, p), Config{Seed: 3, Queues: 2}, map[Fault]float64{
		FaultLocalLength: 0.01, FaultMinor: 0.02, FaultLocalProt: 0.002, FaultWRFlush: 0.001, FaultLateUpper: 0.05,
	})
	b := source.Batch{Frames: make([]source.Frame, 64)}
	got := 0
	for {
		n, err := s.Next(&b)
		got += n
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
	}
	dropped := s.Stats().Dropped
	require.NotZero(t, dropped["rx_local_length"])
	require.NotZero(t, dropped["rx_local_prot"])
	require.NotZero(t, dropped["rx_discarded"])
	var lost uint64
	for i := range s.port.Queues() {
		c := s.port.Counters(i)
		lost += c.ErrorFrames + c.Discarded + c.OutOfBuffer
	}
	require.EqualValues(t, p.Packets, uint64(got)+lost+dropped["rx_reset"])
}

func TestFramesOfOtherLinksAreDroppedAndCounted(t *testing.T) {
	s := through(t, &one{frame: source.Frame{Data: make([]byte, 60), LinkType: packet.LinkRaw}}, Config{}, nil)
	_, err := s.Next(&source.Batch{Frames: make([]source.Frame, 4)})
	require.ErrorIs(t, err, io.EOF)
	require.EqualValues(t, 1, s.Stats().Dropped["not_ethernet"])
	s.Interrupt()
	require.NoError(t, s.Close())
}

// one is a source of one frame.
type one struct {
	frame source.Frame
	done  bool
}

func (o *one) Next(b *source.Batch) (int, error) {
	if o.done {
		return 0, io.EOF
	}
	o.done = true
	b.Frames[0] = o.frame
	return 1, nil
}
func (o *one) Stats() source.Stats { return source.Stats{} }
func (o *one) Interrupt()          {}
func (o *one) Close() error        { return nil }

func BenchmarkTraffic(b *testing.B) {
	s := traffic(b, Profile{Flows: 100_000, UDP: 0.3})
	buf := make([]byte, maxLength)
	for b.Loop() {
		s.Frame(buf)
	}
}

func BenchmarkReceiveAndPoll(b *testing.B) {
	r := newRig(b, Config{Layout: mlx5.Layout{LogCQ: 12, LogRQ: 12, Pitch: 2048}})
	f := udp(60, 1, 0)
	for i := 0; b.Loop(); i++ {
		r.port.Inject(f, Meta{})
		if i%32 == 31 {
			if _, err := r.poll[0].Poll(r.list); err != nil {
				b.Fatal(err)
			}
			r.poll[0].Release()
		}
	}
}
