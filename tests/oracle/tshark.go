package oracle

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"
)

// ErrTshark says that tshark failed or printed something unexpected.
var ErrTshark = errors.New("tshark")

// TsharkPacket is what tshark says of one TCP segment or DNS message. ICMP
// errors that quote such a packet are left out.
type TsharkPacket struct {
	TimeNs      int64
	Src, Dst    netip.AddrPort
	Protocol    uint8
	Stream      int // tcp.stream, -1 for UDP
	TCPFlags    uint8
	Retransmit  bool  // tcp.analysis.retransmission, which includes fast and spurious ones
	OutOfOrder  bool  // tcp.analysis.out_of_order
	ZeroWindow  bool  // tcp.analysis.zero_window
	InitialRTT  int64 // tcp.analysis.initial_rtt in ns, -1 if not known at this packet
	DNSResponse bool
	DNSTimeNs   int64 // dns.time, -1 if absent
}

var tsharkFields = []string{
	"frame.time_epoch", "ip.src", "ip.dst", "ipv6.src", "ipv6.dst", "tcp.srcport", "tcp.dstport", "udp.srcport", "udp.dstport",
	"tcp.stream", "tcp.flags", "tcp.analysis.retransmission", "tcp.analysis.out_of_order", "tcp.analysis.zero_window",
	"tcp.analysis.initial_rtt", "dns.flags.response", "dns.time",
}

// RunTshark reads a capture with tshark and default preferences.
func RunTshark(ctx context.Context, capture string) ([]TsharkPacket, error) {
	args := []string{"-n", "-r", capture, "-Y", "(tcp || (udp && dns && !mdns)) && !icmp && !icmpv6", "-T", "fields", "-E", "occurrence=f"}
	for _, f := range tsharkFields {
		args = append(args, "-e", f)
	}
	cmd := exec.CommandContext(ctx, "tshark", args...)
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	// Captures that end in the middle of a packet make it exit with 2 after it has printed all it could read.
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 2) {
		return nil, fmt.Errorf("%w: %w: %s", ErrTshark, err, complaint.String())
	}
	return parseTshark(&out)
}

func parseTshark(out *bytes.Buffer) ([]TsharkPacket, error) {
	var list []TsharkPacket
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		v := strings.Split(lines.Text(), "\t")
		if len(v) != len(tsharkFields) {
			return nil, fmt.Errorf("%w: %d fields in %q", ErrTshark, len(v), lines.Text())
		}
		p, ok, err := parseTsharkLine(v)
		if err != nil {
			return nil, fmt.Errorf("%w: %w in %q", ErrTshark, err, lines.Text())
		}
		if ok {
			list = append(list, p)
		}
	}
	return list, lines.Err()
}

func parseTsharkLine(v []string) (p TsharkPacket, ok bool, err error) {
	src, dst, srcPort, dstPort := v[1], v[2], v[5], v[6]
	if src == "" {
		src, dst = v[3], v[4]
	}
	p.Protocol, p.Stream, p.InitialRTT, p.DNSTimeNs = 6, -1, -1, -1
	if srcPort == "" {
		p.Protocol, srcPort, dstPort = 17, v[7], v[8]
	}
	if src == "" || srcPort == "" { // a TCP header of which not even the ports were captured
		return p, false, nil
	}
	if p.Src, err = endpoint(src, srcPort); err != nil {
		return p, false, err
	}
	if p.Dst, err = endpoint(dst, dstPort); err != nil {
		return p, false, err
	}
	if p.TimeNs, err = parseSeconds(v[0]); err != nil {
		return p, false, err
	}
	if v[9] != "" && p.Protocol == 6 {
		if p.Stream, err = strconv.Atoi(v[9]); err != nil {
			return p, false, err
		}
	}
	if v[10] != "" {
		flags, err := strconv.ParseUint(v[10], 0, 16)
		if err != nil {
			return p, false, err
		}
		p.TCPFlags = uint8(flags)
	}
	p.Retransmit, p.OutOfOrder, p.ZeroWindow = v[11] != "", v[12] != "", v[13] != ""
	if v[14] != "" {
		if p.InitialRTT, err = parseSeconds(v[14]); err != nil {
			return p, false, err
		}
	}
	p.DNSResponse = v[15] == "1" || v[15] == "True"
	if v[16] != "" {
		if p.DNSTimeNs, err = parseSeconds(v[16]); err != nil {
			return p, false, err
		}
	}
	return p, true, nil
}

func endpoint(host, port string) (netip.AddrPort, error) {
	a, err := netip.ParseAddr(host)
	if err != nil {
		return netip.AddrPort{}, err
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return netip.AddrPortFrom(a, uint16(n)), err
}

// parseSeconds reads a decimal number of seconds exactly.
func parseSeconds(s string) (ns int64, err error) {
	whole, fraction, _ := strings.Cut(s, ".")
	sec, err := strconv.ParseInt(whole, 10, 64)
	if err != nil {
		return 0, err
	}
	frac, err := strconv.ParseInt((fraction + "000000000")[:9], 10, 64)
	if strings.HasPrefix(whole, "-") {
		frac = -frac
	}
	return sec*1e9 + frac, err
}
