package oracle

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"
)

// ErrFormat says that a line of an nDPI report looks like a flow but cannot be read.
var ErrFormat = errors.New("nDPI flow line")

// Stats are minimum, average, maximum and standard deviation as nDPI prints them.
//
// Inter-arrival times are whole milliseconds, cut off (not rounded) packet by
// packet before they are added up; lengths are bytes of the frame on the wire.
// Average and standard deviation (population) are computed in 32-bit floats and
// rounded to integers when printed.
type Stats struct {
	Min, Avg, Max, Std uint64
}

// NDPIFlow is one flow line of an ndpiReader report. Index 0 is from A to B.
type NDPIFlow struct {
	Line     int // in the file, from 1
	Protocol uint8
	A, B     netip.AddrPort // ports are 0 for protocols without
	VLAN     uint16
	Tunnel   string // GTP, VXLAN, ...: the flow was inside
	Packets  [2]uint64
	Bytes    [2]uint64 // frames on the wire
	HasStats bool      // nDPI prints statistics only for some flows
	IAT, Len [2]Stats
	Master   string // protocol name, without what runs on it
	App      string // what runs on it, empty if nothing was told
	Category string
	How      string   // "DPI", "Match by port", ...
	Risks    []string // empty if none
}

var (
	flowLine  = regexp.MustCompile(`^\t\d+\t(\S+) (\S+) (<->|->) (\S+) (\[.*)$`)
	vlanTag   = regexp.MustCompile(`^\[VLAN: (\d+)\]`)
	protoTag  = regexp.MustCompile(`\[proto: (?:([A-Za-z0-9]+):)?[0-9.]+/([^\]]*)\]`)
	countsTag = regexp.MustCompile(`\[(\d+) pkts/(\d+) bytes (?:<->|->) (\d+) pkts/(\d+) bytes\]`)
	iatTag    = regexp.MustCompile(`\[IAT c2s/s2c min/avg/max/stddev: ([^\]]*)\]`)
	lenTag    = regexp.MustCompile(`\[Pkt Len c2s/s2c min/avg/max/stddev: ([^\]]*)\]`)
	catTag    = regexp.MustCompile(`\[cat: ([^/\]]*)/`)
	howTag    = regexp.MustCompile(`\[Confidence: ([^\]]*)\]`)
	riskTag   = regexp.MustCompile(`\[Risk: ([^\]]*)\]`)
	riskName  = regexp.MustCompile(`\*\* ([^*]+) \*\*`)
)

// protocolNumbers are the protocols that nDPI prints by name.
var protocolNumbers = map[string]uint8{
	"TCP": 6, "UDP": 17, "ICMP": 1, "ICMPV6": 58, "IGMP": 2, "ESP": 50, "AH": 51, "GRE": 47,
	"OSPF": 89, "PIM": 103, "VRRP": 112, "PGM": 113, "SCTP": 132, "IPIP": 4, "EGP": 8,
}

// ReadNDPI reads all flow lines of a report; other lines are skipped.
func ReadNDPI(path string) ([]NDPIFlow, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	flows, err := ParseNDPI(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return flows, nil
}

// ParseNDPI reads all flow lines from r.
func ParseNDPI(r io.Reader) ([]NDPIFlow, error) {
	var flows []NDPIFlow
	lines := bufio.NewReaderSize(r, 1<<16)
	for number := 1; ; number++ {
		line, err := lines.ReadBytes('\n')
		if m := flowLine.FindSubmatch(bytes.TrimRight(line, "\r\n")); m != nil {
			flow, err := parseFlow(m)
			if err != nil {
				return nil, fmt.Errorf("%w %d: %w", ErrFormat, number, err)
			}
			flow.Line = number
			flows = append(flows, flow)
		}
		if errors.Is(err, io.EOF) {
			return flows, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

func parseFlow(m [][]byte) (f NDPIFlow, err error) {
	if f.Protocol, err = protocolNumber(string(m[1])); err != nil {
		return f, err
	}
	if f.A, err = parseEndpoint(string(m[2])); err != nil {
		return f, err
	}
	if f.B, err = parseEndpoint(string(m[4])); err != nil {
		return f, err
	}
	rest := m[5]
	if v := vlanTag.FindSubmatch(rest); v != nil {
		id, err := strconv.ParseUint(string(v[1]), 10, 16)
		if err != nil {
			return f, err
		}
		f.VLAN = uint16(id)
	}
	c := countsTag.FindSubmatch(rest)
	if c == nil {
		return f, errors.New("no packet counts")
	}
	if err := parseNumbers(c[1:], &f.Packets[0], &f.Bytes[0], &f.Packets[1], &f.Bytes[1]); err != nil {
		return f, err
	}
	if p := protoTag.FindSubmatch(rest); p != nil {
		f.Tunnel = string(p[1])
		f.Master, f.App, _ = strings.Cut(string(p[2]), ".")
	}
	f.Category, f.How = text(catTag, rest), text(howTag, rest)
	if t := riskTag.FindSubmatch(rest); t != nil {
		for _, name := range riskName.FindAllSubmatch(t[1], -1) {
			f.Risks = append(f.Risks, string(name[1]))
		}
	}
	iat, length := iatTag.FindSubmatch(rest), lenTag.FindSubmatch(rest)
	if iat == nil || length == nil {
		return f, nil
	}
	f.HasStats = true
	if f.IAT, err = parseStats(string(iat[1])); err != nil {
		return f, err
	}
	f.Len, err = parseStats(string(length[1]))
	return f, err
}

func protocolNumber(name string) (uint8, error) {
	if n, ok := protocolNumbers[name]; ok {
		return n, nil
	}
	n, err := strconv.ParseUint(name, 10, 8)
	return uint8(n), err
}

// parseEndpoint reads 192.0.2.1:80 and [2001:db8::1]:80. nDPI prints ":0:" in
// IPv6 addresses as "::", so that several can occur; the address is then one
// that is printed like this, and AddressText decides whether two are the same.
func parseEndpoint(s string) (netip.AddrPort, error) {
	host, port, ok := cutLast(s, ":")
	if !ok {
		return netip.AddrPort{}, fmt.Errorf("endpoint %q", s)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return netip.AddrPort{}, err
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	parts := strings.Split(host, "::")
	for long := range max(1, len(parts)-1) {
		var full strings.Builder
		for i, p := range parts {
			full.WriteString(p)
			switch {
			case i == len(parts)-1:
			case i == long:
				full.WriteString("::")
			default:
				full.WriteString(":0:")
			}
		}
		if a, err := netip.ParseAddr(full.String()); err == nil && AddressText(a) == host {
			return netip.AddrPortFrom(a, uint16(n)), nil
		}
	}
	return netip.AddrPort{}, fmt.Errorf("address %q", host)
}

func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// AddressText prints an address as nDPI does.
func AddressText(a netip.Addr) string {
	s := a.String()
	if a.Is4() {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		if strings.HasPrefix(s[i:], ":0:") {
			b.WriteString("::")
			i += 3
			continue
		}
		b.WriteByte(s[i])
		i++
	}
	return b.String()
}

func parseNumbers(texts [][]byte, into ...*uint64) (err error) {
	for i, p := range into {
		if *p, err = strconv.ParseUint(string(texts[i]), 10, 64); err != nil {
			return err
		}
	}
	return nil
}

// parseStats reads "min/min avg/avg max/max std/std".
func parseStats(s string) (st [2]Stats, err error) {
	words := strings.Fields(s)
	if len(words) != 4 {
		return st, fmt.Errorf("statistics %q", s)
	}
	for i, w := range words {
		a, b, ok := strings.Cut(w, "/")
		if !ok {
			return st, fmt.Errorf("statistics %q", s)
		}
		for d, t := range [2]string{a, b} {
			n, err := strconv.ParseUint(t, 10, 64)
			if err != nil {
				return st, err
			}
			switch i {
			case 0:
				st[d].Min = n
			case 1:
				st[d].Avg = n
			case 2:
				st[d].Max = n
			case 3:
				st[d].Std = n
			}
		}
	}
	return st, nil
}

func text(re *regexp.Regexp, b []byte) string {
	if m := re.FindSubmatch(b); m != nil {
		return string(m[1])
	}
	return ""
}
