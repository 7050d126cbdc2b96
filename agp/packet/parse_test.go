package packet

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A counted frame is in no flow, for the reason given.
type counted struct {
	want Verdict
	link LinkType
	text string
}

func nonIPFrames() []counted {
	return []counted{
		{NonIPARP, LinkEthernet, macs + "08 06 00 01"},
		{NonIPARP, LinkEthernet, macs + "81 00 00 05 08 06 00 01"},
		{NonIPARP, LinkEthernet, macs + "80 35 00 01"},
		{NonIPLLDP, LinkEthernet, macs + "88 cc 02 07"},
		{NonIPSTP, LinkEthernet, macs + "00 26 42 42 03 00 00"},
		{NonIPSTP, LinkEthernet, macs + "00 32 aa aa 03 00 00 0c 01 0b 00"},
		{NonIPSTP, LinkEthernet, macs + "00 32 aa aa 03 00 80 c2 00 0e 00"},
		{NonIPCDP, LinkEthernet, macs + "00 32 aa aa 03 00 00 0c 20 00 02"},
		{NonIPLLC, LinkEthernet, macs + "00 32 aa aa 03 00 00 0c 20 04 02"},
		{NonIPLLC, LinkEthernet, macs + "00 32 f0 f0 03 00"},
		{NonIPLLC, LinkEthernet, macs + "00 32 aa aa 03 00 00 00 00 11"},
		{NonIPISIS, LinkEthernet, macs + "00 32 fe fe 03 83"},
		{NonIPIPX, LinkEthernet, macs + "00 32 ff ff 00 22"},
		{NonIPIPX, LinkEthernet, macs + "00 32 e0 e0 03 ff"},
		{NonIPIPX, LinkEthernet, macs + "81 37 ff ff"},
		{NonIPEAPOL, LinkEthernet, macs + "88 8e 01 00"},
		{NonIPLACP, LinkEthernet, macs + "88 09 01 01"},
		{NonIPPTP, LinkEthernet, macs + "88 f7 00 02"},
		{NonIPMACsec, LinkEthernet, macs + "88 e5 2c 00"},
		{NonIPCTP, LinkEthernet, macs + "90 00 00 00"},
		{NonIPPPPoE, LinkEthernet, macs + "88 63 11 09 00 00 00 00"},
		{NonIPPPPoE, LinkEthernet, macs + "88 64 11 a7 00 01 00 00"},
		{NonIPPPP, LinkEthernet, macs + "88 64 11 00 00 01 00 0a c0 21 09 01"},
		{NonIPPPP, LinkPPP, "ff 03 c0 21 01 01"},
		{NonIPMPLS, LinkEthernet, macs + "88 47 00 01 01 40 10 00 00 21 20 40"},
		{NonIPMPLS, LinkEthernet, macs + "88 47 00 01 01 40 00 00 00 00 20 40"},
		{NonIPOther, LinkEthernet, macs + "88 92 00 00"},
		{NonIPOther, LinkCiscoHDLC, "8f 00 00 00 00 00"},
		{NonIPOther, LinkNull, "10 00 00 00 00"},
		{NonIPISIS, LinkNull, "07 00 00 00 00"},
		{NonIPOther, LinkLinuxSLL, "00 00 03 38 00 06 02 00 00 00 00 01 00 00 08 00 45"},
		{NonIPOther, LinkLinuxSLL, "00 00 00 01 00 06 02 00 00 00 00 01 00 00 00 0c 45"},
		{NonIPOther, LinkLinuxSLL2, "08 00 00 00 00 00 00 02 03 38 00 06 02 00 00 00 00 01 00 00 45"},
		{NonIPIPX, LinkLinuxSLL, "00 00 00 01 00 06 02 00 00 00 00 01 00 00 00 01 45"},
		{NonIPOther, LinkFDDI, "41" + macs + snap + "08 00"},
		{NonIP80211, LinkIEEE80211, "80 00 00 00 ff ff ff ff ff ff"},
		{NonIP80211, LinkIEEE80211, "d4 00 00 00 02 02 02 02 02 02"},
		{NonIP80211, LinkIEEE80211, "48 01 00 00" + strings.Repeat("02", 20)},
		{NonIP80211, LinkIEEE80211, "08 01 00 00" + strings.Repeat("02", 18) + "01 00" + snap + "08 00"},
		{NonIP80211Encrypted, LinkRadiotap, "00 00 08 00 00 00 00 00 08 41 00 00" + strings.Repeat("02", 20)},
	}
}

func TestNonIPFramesAreCountedByKind(t *testing.T) {
	for _, c := range nonIPFrames() {
		require.Equal(t, c.want.String(), checkInvariants(t, Decap{}, c.link, unhex(c.text), 0).String(), c.text)
		require.True(t, c.want.NonIP())
	}
}

func badFrames() []counted {
	rest4 := " 00 07 00 00 40 11 00 00 0a 00 00 01 0a 00 00 02 14 e9 00 35 00 0b 00 00 61 62 63"
	return []counted{
		{EmptyFrame, LinkEthernet, ""},
		{UnknownLinkType, 147, "45 00"},
		{TruncatedL2, LinkEthernet, "00 00 00"},
		{TruncatedL3, LinkEthernet, macs + "08 00"},
		{BadIPVersion, LinkEthernet, macs + "08 00 65 00 00 1f" + rest4},
		{BadIPVersion, LinkEthernet, macs + "08 00 65"},
		{BadIPVersion, LinkEthernet, macs + "86 dd 45 00 00 1f" + rest4 + strings.Repeat("00", 20)},
		{BadIPVersion, LinkRaw, "50 00 00 00"},
		{BadIPHeader, LinkEthernet, macs + "08 00 44 00 00 1f" + rest4},
		{BadIPHeader, LinkEthernet, macs + "08 00 4f 00 00 3c" + rest4},
		{BadIPLength, LinkEthernet, macs + "08 00 45 00 00 13" + rest4},
		{BadIPLength, LinkEthernet, macs + "08 00 46 00 00 17" + rest4},
		{TruncatedL4, LinkRaw, "45 00 00 1b 00 07 00 00 40 11 00 00 0a 00 00 01 0a 00 00 02 14 e9 00 35 00 0b 00"},
		{TruncatedL4, LinkRaw, "45 00 00 17 00 07 00 00 40 01 00 00 0a 00 00 01 0a 00 00 02 08 00 00"},
		{TruncatedL4, LinkRaw, "45 00 00 19 00 07 00 00 40 01 00 00 0a 00 00 01 0a 00 00 02 08 00 00 00 00"},
		{TruncatedL4, LinkRaw, "45 00 00 1f 00 07 00 00 40 84 00 00 0a 00 00 01 0a 00 00 02 14 e9 00 35 00 0b 00 00 00 00 00"},
		{BadL2Header, LinkPPPoE, "21 00 00 01 00 2c 00 21"},
		{BadL2Header, LinkPFLog, "04 02 00 00 45"},
		{BadL2Header, LinkRadiotap, "00 00 07 00 00 00 00 00"},
		{BadL2Header, LinkRadiotap, "00 00 08 00 00 00 00 80"},
		{BadL2Header, LinkRadiotap, "00 00 08 00 02 00 00 00"},
		{BadL2Header, LinkPrism, "44 00 00 00 10 00 00 00"},
		{BadL2Header, LinkAVS, "80 21 10 01 00 00 00 00"},
		{BadL2Header, LinkPPI, "00 00 08 00 c0 00 00 00"},
		{BadL2Header, LinkIEEE80211, "09 01 00 00"},
		{TruncatedL2, LinkPrism, "44 00 00 00 ff ff ff ff"},
		{TruncatedL2, LinkAVS, "80 21 10 01 ff ff ff ff"},
		{TooManyHeaders, LinkEthernet, macs + strings.Repeat("81 00 00 05", 20) + "08 00" + udp4},
		{TooManyHeaders, LinkEthernet, macs + "88 47" + strings.Repeat("00 01 00 40", 20)},
		{TooManyHeaders, LinkEthernet, macs + "00 32" + strings.Repeat("aa aa 03 00 80 c2 00 07 00 00"+macs+"00 32", 20)},
		{TooManyHeaders, LinkEthernet, macs + "00 32" + strings.Repeat("aa aa 03 00 00 00 81 00 00 00 00 32", 20)},
		{TooManyHeaders, LinkEthernet, macs + "88 47" + strings.Repeat("00 01 01 40"+macs+"88 47", 20)},
	}
}

func TestBadHeadersAreCountedByReason(t *testing.T) {
	for _, c := range badFrames() {
		require.Equal(t, c.want.String(), checkInvariants(t, Decap{}, c.link, unhex(c.text), 0).String(), c.text)
		require.False(t, c.want.NonIP())
	}
}

func TestVerdictNamesAreSnakeCaseAndDistinct(t *testing.T) {
	seen := map[string]bool{}
	for v := range NumVerdicts {
		name := Verdict(v).String()
		require.Regexp(t, `^[a-z0-9]+(_[a-z0-9]+)*$`, name)
		require.False(t, seen[name], name)
		seen[name] = true
		require.Equal(t, strings.HasPrefix(name, "non_ip_"), Verdict(v).NonIP(), name)
	}
	require.Equal(t, "invalid", Verdict(NumVerdicts).String())
}

func TestICMPQueryAndReplyAreOneFlow(t *testing.T) {
	for _, c := range []struct{ protocol, request, reply uint8 }{
		{ProtoICMP, 8, 0}, {ProtoICMP, 13, 14}, {ProtoICMP, 15, 16}, {ProtoICMP, 17, 18}, {ProtoICMP, 37, 38}, {ProtoICMP, 42, 43},
		{ProtoICMPv6, 128, 129}, {ProtoICMPv6, 160, 161},
	} {
		src, dst := ICMPPorts(c.protocol, c.request, 0, 4711)
		require.Equal(t, uint16(4711), src)
		require.Equal(t, uint16(c.request)<<8, dst)
		rsrc, rdst := ICMPPorts(c.protocol, c.reply, 0, 4711)
		require.Equal(t, []uint16{dst, src}, []uint16{rsrc, rdst})
	}
	for _, c := range []struct{ protocol, typ, code uint8 }{
		{ProtoICMP, 3, 1}, {ProtoICMP, 11, 0}, {ProtoICMP, 128, 0}, {ProtoICMPv6, 8, 0}, {ProtoICMPv6, 135, 0},
	} {
		src, dst := ICMPPorts(c.protocol, c.typ, c.code, 4711)
		require.Zero(t, src)
		require.Equal(t, uint16(c.typ)<<8|uint16(c.code), dst)
	}
	// The code of an extended echo reply is a result and must not split the flow.
	_, request := ICMPPorts(ProtoICMP, 42, 0, 1)
	reply, _ := ICMPPorts(ProtoICMP, 43, 3, 1)
	require.Equal(t, request, reply)
}

// nestedGRE is tcp4 in so many GRE tunnels.
func nestedGRE(tunnels int) []byte {
	frame := unhex(tcp4)
	for range tunnels {
		n := len(frame) + 24
		outer := unhex("45 00 00 00 00 01 00 00 40 2f 00 00 c0 00 02 01 c0 00 02 02 00 00 08 00")
		outer[2], outer[3] = byte(n>>8), byte(n)
		frame = append(outer, frame...)
	}
	return frame
}

func TestTunnelsNestNoDeeperThanTheBound(t *testing.T) {
	frame := nestedGRE(maxTunnels + 1)
	var in Info
	p := Parser{Decap: Decap{GRE: true}}
	require.Equal(t, OK, p.Parse(LinkRaw, frame, 0, &in))
	require.Equal(t, uint8(ProtoGRE), in.Protocol, "the innermost tunnel stays closed")
	require.Equal(t, OK, p.Parse(LinkRaw, frame[24:], 0, &in))
	require.Equal(t, uint8(ProtoTCP), in.Protocol)
}

func fragments(version uint8) (first, later Info) {
	first = Info{
		TimestampNs: 1000, Src: ip4(10, 0, 0, 1), Dst: ip4(10, 0, 0, 2), FragmentID: 9, SrcPort: 53, DstPort: 4000,
		IPVersion: version, Protocol: ProtoUDP, Flags: FlagFragment,
	}
	later = first
	later.SrcPort, later.DstPort, later.Flags = 0, 0, FlagFragment|FlagFragmentLater
	return first, later
}

func TestLaterFragmentJoinsTheFlowOfItsFirst(t *testing.T) {
	for _, version := range []uint8{4, 6} {
		table := NewFragmentTable(16)
		first, later := fragments(version)
		in := later
		require.False(t, table.Resolve(&in), "the first fragment has not been seen")
		require.Equal(t, later, in)
		in = first
		require.True(t, table.Resolve(&in))
		require.Equal(t, first, in)
		for range 3 {
			in = later
			require.True(t, table.Resolve(&in))
			require.Equal(t, [2]uint16{53, 4000}, [2]uint16{in.SrcPort, in.DstPort})
			require.Equal(t, FlagFragment|FlagFragmentLater, in.Flags)
		}
		for name, change := range map[string]func(*Info){
			"other id":        func(in *Info) { in.FragmentID++ },
			"other source":    func(in *Info) { in.Src[0]++ },
			"other direction": func(in *Info) { in.Src, in.Dst = in.Dst, in.Src },
			"other tunnel":    func(in *Info) { in.TunnelID++ },
			"other VLAN":      func(in *Info) { in.VLAN++ },
			"other version":   func(in *Info) { in.IPVersion ^= 2 },
		} {
			in = with(later, change)
			require.False(t, table.Resolve(&in), name)
		}
		in = with(later, func(in *Info) { in.Protocol = ProtoDestOpts })
		require.Equal(t, version == 6, table.Resolve(&in), "only in IPv6 may a later fragment name another header")
		if version == 6 {
			require.Equal(t, uint8(ProtoUDP), in.Protocol)
		}
	}
}

func TestFragmentIsForgottenAfter30Seconds(t *testing.T) {
	table := NewFragmentTable(16)
	first, later := fragments(4)
	require.True(t, table.Resolve(&first))
	in := with(later, func(in *Info) { in.TimestampNs += FragmentLifetimeNs })
	require.True(t, table.Resolve(&in))
	in = with(later, func(in *Info) { in.TimestampNs += FragmentLifetimeNs + 1 })
	require.False(t, table.Resolve(&in))
	// The same id again, by another flow: the newest first fragment counts.
	again := with(first, func(in *Info) { in.TimestampNs += FragmentLifetimeNs; in.SrcPort = 54 })
	require.True(t, table.Resolve(&again))
	in = with(later, func(in *Info) { in.TimestampNs += FragmentLifetimeNs + 1 })
	require.True(t, table.Resolve(&in))
	require.Equal(t, uint16(54), in.SrcPort)
}

func TestFullFragmentTableForgetsTheOldest(t *testing.T) {
	table := NewFragmentTable(1) // one bucket
	first, later := fragments(4)
	for i := range fragmentWays + 1 {
		in := with(first, func(in *Info) { in.FragmentID += uint32(i); in.TimestampNs += int64(i) })
		require.True(t, table.Resolve(&in))
	}
	for i := range fragmentWays + 1 {
		in := with(later, func(in *Info) { in.FragmentID += uint32(i); in.TimestampNs += 100 })
		require.Equal(t, i > 0, table.Resolve(&in), i)
	}
}

func TestFragmentTableDoesNotAllocate(t *testing.T) {
	table := NewFragmentTable(1024)
	first, later := fragments(4)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		first.FragmentID++
		later.FragmentID++
		a, b := first, later
		table.Resolve(&a)
		table.Resolve(&b)
	}))
}
