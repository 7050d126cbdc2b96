package detect

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// Any events in any order, with any times: nothing panics, and alerts and what was held back are counted.
func FuzzEvents(f *testing.F) {
	f.Add([]byte{})
	for _, r := range rules {
		var seed []byte
		flows := r.make(min(r.at, 60), r.step)
		for i := range flows {
			fl := &flows[i]
			seed = binary.LittleEndian.AppendUint64(seed, uint64(fl.at))
			seed = append(seed, byte(i), fl.src[3], fl.dst[3], fl.proto, fl.fwdFlags, fl.revFlags, byte(fl.fwd), byte(fl.rev))
			seed = binary.LittleEndian.AppendUint16(seed, fl.sport)
			seed = binary.LittleEndian.AppendUint16(seed, fl.dport)
			seed = binary.LittleEndian.AppendUint32(seed, uint32(fl.fwdBytes))
		}
		f.Add(seed)
	}
	h := newHarness(Config{})
	f.Fuzz(func(t *testing.T, b []byte) {
		h.alerts = h.alerts[:0]
		before := h.Stats()
		for ; len(b) >= 24; b = b[24:] {
			at := int64(binary.LittleEndian.Uint64(b))
			fl := flow{at: at, span: int64(b[8]) << (b[9] & 63), src: ip4(int(b[9])), dst: in4(int(b[10])), proto: b[11], fwdFlags: b[12], revFlags: b[13],
				fwd: uint64(b[14]), rev: uint64(b[15]), sport: binary.LittleEndian.Uint16(b[16:]), dport: binary.LittleEndian.Uint16(b[18:]),
				fwdBytes: uint64(binary.LittleEndian.Uint32(b[20:])), revBytes: uint64(b[20]) << 4}
			fl.edit = func(r *telemetry.Record) {
				r.IPVersion = 4 + b[8]&2
				r.Fragment = b[8]&1 == 1
				r.Dir[0].DelayMaxNs, r.Dir[0].DelayMeanNs, r.Dir[0].DelayStdNs = at, float64(at), float64(b[22])
				r.Dir[0].WireLenMin, r.Dir[0].WireLenMax, r.Dir[0].WireLenMean = uint32(b[21]), uint32(b[22]), float64(b[23])
				r.DelayHist[b[23]&63] = uint32(at)
			}
			switch b[8] % 8 {
			case 0:
				h.Tick(at)
			case 1, 2, 3:
				h.FlowStart(fl.start())
			default:
				h.FlowEnd(fl.record())
			}
		}
		require.Equal(t, uint64(len(h.alerts)), h.Stats().Alerts-before.Alerts)
	})
}
