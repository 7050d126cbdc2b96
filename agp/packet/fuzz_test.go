package packet

import (
	"testing"

	"github.com/stretchr/testify/require"
)

var decaps = []Decap{{}, {VXLAN: true, GRE: true, Geneve: true, GTPU: true}}

// checkInvariants parses a frame and checks what must hold whatever it contains.
func checkInvariants(t testing.TB, decap Decap, link LinkType, frame []byte, wireLen uint32) Verdict {
	in := Info{TimestampNs: 5}
	p := Parser{Decap: decap}
	v := p.Parse(link, frame, wireLen, &in)
	wire := max(wireLen, uint32(len(frame)))
	if v.String() == "invalid" {
		t.Fatalf("verdict %d", v)
	}
	if in.WireLen != wire || in.TimestampNs != 5 || (in.Flags&FlagTruncated != 0) != (wire > uint32(len(frame))) && v == OK {
		t.Fatalf("%v: wire length %d, time %d, flags %x", v, in.WireLen, in.TimestampNs, in.Flags)
	}
	if v != OK {
		return v
	}
	end := uint64(in.PayloadOff) + uint64(in.PayloadCap)
	if in.PayloadCap > in.PayloadLen || end > uint64(len(frame)) || in.PayloadLen > in.L3Len || in.L3Len > wire {
		t.Fatalf("lengths contradict each other: %+v of %d captured", in, len(frame))
	}
	require.Len(t, in.Payload(frame), int(in.PayloadCap))
	if in.IPVersion != 4 && in.IPVersion != 6 {
		t.Fatalf("IP version %d", in.IPVersion)
	}
	if in.IPVersion == 4 && [12]byte(in.Src[4:]) != [12]byte{} {
		t.Fatalf("IPv4 address of more than 4 bytes: %v", in.Src)
	}
	if in.Flags&FlagFragmentLater != 0 && (in.Flags&FlagFragment == 0 || in.SrcPort != 0 || in.DstPort != 0) {
		t.Fatalf("later fragment with ports: %+v", in)
	}
	if in.TunnelID != 0 && in.Flags&FlagTunnel == 0 || in.Flags&FlagTunnel != 0 && decap == (Decap{}) {
		t.Fatalf("tunnel: %+v", in)
	}
	return v
}

func FuzzParse(f *testing.F) {
	for _, s := range samples() {
		f.Add(uint32(s.link), s.wireLen(), s.frame)
	}
	table := NewFragmentTable(64)
	f.Fuzz(func(t *testing.T, link, wireLen uint32, frame []byte) {
		for _, d := range decaps {
			checkInvariants(t, d, LinkType(link), frame, wireLen)
		}
		var in Info
		p := Parser{Decap: decaps[1]}
		if p.Parse(LinkType(link), frame, wireLen, &in) == OK {
			table.Resolve(&in)
		}
	})
}

func TestFramesCutAtEveryByteAreCountedOrReadable(t *testing.T) {
	for _, s := range samples() {
		for n := range s.frame {
			for _, d := range decaps {
				// Cut by the snap length, and cut on the wire; the copy ends where the frame does.
				cut := append([]byte(nil), s.frame[:n]...)
				checkInvariants(t, d, s.link, cut, s.wireLen())
				v := checkInvariants(t, d, s.link, cut, 0)
				if n == 0 {
					require.Equal(t, EmptyFrame, v)
				}
			}
		}
	}
}

func TestFramesCutInsideAHeaderNameTheLayer(t *testing.T) {
	frame := unhex(macs + "81 00 00 05 08 00" + tcp4)
	for n, want := range map[int]Verdict{0: EmptyFrame, 1: TruncatedL2, 13: TruncatedL2, 17: TruncatedL2, 18: TruncatedL3, 37: TruncatedL3, 38: TruncatedL4, 57: TruncatedL4, 58: OK, 60: OK} {
		require.Equal(t, want.String(), checkInvariants(t, Decap{}, LinkEthernet, frame[:n], uint32(len(frame))).String(), "%d bytes", n)
	}
}

func TestEveryBitFlippedStaysWithinBounds(t *testing.T) {
	for _, s := range samples() {
		for bit := range len(s.frame) * 8 {
			frame := append([]byte(nil), s.frame...)
			frame[bit/8] ^= 1 << (bit % 8)
			for _, d := range decaps {
				checkInvariants(t, d, s.link, frame, s.wireLen())
			}
		}
	}
}
