package ethtool

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	cmdSRXCLSRLDel = 0x31
	cmdSRXCLSRLIns = 0x32

	ruleCountAt = 184 // offsets of rule_cnt and rule_locs in struct ethtool_rxnfc
	ruleLocsAt  = 188
	specialLoc  = 0x80000000 // RX_CLS_LOC_SPECIAL: the driver can choose a place
	maxRules    = 1 << 20

	flowExt = 0x80000000 // FLOW_EXT: h_ext and m_ext are valid
	flowMAC = 0x40000000
	flowRSS = 0x20000000
	discard = 0xffffffffffffffff // RX_CLS_FLOW_DISC
	ipv4Ver = 1                  // ETH_RX_NFC_IP4
)

// Drop as the queue of a rule discards the packets.
const Drop = -1

// Spec is one rule in the kernel's form, struct ethtool_rx_flow_spec. Rules of
// others may hold what Rule cannot say, so they are kept in this form.
type Spec struct {
	flowType uint32
	match    [52]byte // union ethtool_flow_union
	matchExt [20]byte // struct ethtool_flow_ext
	mask     [52]byte // bits of match that must agree
	maskExt  [20]byte
	cookie   uint64 // queue
	location uint32
	_        uint32
}

// rxnfc is struct ethtool_rxnfc without the variable list of locations.
type rxnfc struct {
	cmd      uint32
	flowType uint32
	data     uint64
	fs       Spec
	count    uint32 // rule_cnt or rss_context
	_        uint32
}

// Location is the place of the rule in the table; lower ones match first.
func (s Spec) Location() uint32 { return s.location }

// At returns the rule at another place.
func (s Spec) At(location uint32) Spec { s.location = location; return s }

// Queue returns the receive queue of the rule, Drop if it has none. ok is false if
// the rule has an RSS context or a virtual function as its target.
func (s Spec) Queue() (queue int, ok bool) {
	switch {
	case s.cookie == discard:
		return Drop, true
	case s.flowType&flowRSS != 0, s.cookie >= 1<<32:
		return 0, false
	}
	return int(s.cookie), true
}

// MarshalText writes the kernel's bytes in hexadecimal.
func (s Spec) MarshalText() ([]byte, error) {
	b := unsafe.Slice((*byte)(unsafe.Pointer(&s)), unsafe.Sizeof(s))
	return hex.AppendEncode(nil, b), nil
}

// UnmarshalText reads what MarshalText wrote.
func (s *Spec) UnmarshalText(text []byte) error {
	b := unsafe.Slice((*byte)(unsafe.Pointer(s)), unsafe.Sizeof(*s))
	if hex.DecodedLen(len(text)) != len(b) {
		return fmt.Errorf("%w: %d characters instead of %d", ErrRule, len(text), hex.EncodedLen(len(b)))
	}
	if _, err := hex.Decode(b, text); err != nil {
		return fmt.Errorf("%w: %w", ErrRule, err)
	}
	return nil
}

// Canonical returns the rule without the bits that do not count: fields whose mask
// is 0 and, unless the flow type says that they are used, the additional fields.
// Drivers differ in what they give back there.
func (s Spec) Canonical() Spec {
	for i := range s.match {
		s.match[i] &= s.mask[i]
	}
	if t := FlowType(s.flowType &^ (flowExt | flowMAC | flowRSS)); t == IPv4 {
		s.match[13], s.mask[13] = ipv4Ver, 0 // ip_ver, whose mask is always 0
	}
	if s.flowType&(flowExt|flowMAC) == 0 {
		s.matchExt, s.maskExt = [20]byte{}, [20]byte{}
	}
	for i := range s.matchExt {
		s.matchExt[i] &= s.maskExt[i]
	}
	return s
}

// Rule is one classification rule: what matches goes to Queue. Fields that are zero
// are not compared.
type Rule struct {
	Flow     FlowType // TCP4, UDP4, SCTP4, TCP6, UDP6, SCTP6, IPv4 or IPv6
	Src, Dst netip.Prefix
	SrcPort  uint16 // only for flow types with ports
	DstPort  uint16
	Protocol uint8  // only for IPv4 and IPv6
	VLAN     uint16 // VLAN id, 1 to 4094
	Queue    int    // receive queue or Drop
}

// Spec returns the rule in the kernel's form, at location 0.
func (r Rule) Spec() (Spec, error) {
	var (
		s     = Spec{flowType: uint32(r.Flow)}
		alen  = 4
		l4    = 8 // offset of the ports or of the first four bytes of the transport header
		proto = 14
		ports = true
	)
	switch r.Flow {
	case TCP4, UDP4, SCTP4:
	case IPv4:
		ports = false
		s.match[13] = ipv4Ver
	case TCP6, UDP6, SCTP6:
		alen, l4 = 16, 32
	case IPv6:
		alen, l4, proto, ports = 16, 32, 37, false
	default:
		return s, fmt.Errorf("%w: flow type %#x", ErrRule, uint32(r.Flow))
	}
	for i, p := range []netip.Prefix{r.Src, r.Dst} {
		if p == (netip.Prefix{}) {
			continue
		}
		if !p.IsValid() || p.Addr().BitLen() != 8*alen {
			return s, fmt.Errorf("%w: address %s for flow type %#x", ErrRule, p, uint32(r.Flow))
		}
		copy(s.match[i*alen:], p.Masked().Addr().AsSlice())
		for b := range p.Bits() {
			s.mask[i*alen+b/8] |= 0x80 >> (b % 8)
		}
	}
	switch {
	case !ports && (r.SrcPort != 0 || r.DstPort != 0):
		return s, fmt.Errorf("%w: ports for flow type %#x", ErrRule, uint32(r.Flow))
	case ports && r.Protocol != 0:
		return s, fmt.Errorf("%w: a protocol number for flow type %#x", ErrRule, uint32(r.Flow))
	case r.VLAN > 4094:
		return s, fmt.Errorf("%w: VLAN %d", ErrRule, r.VLAN)
	case r.Queue < Drop || int64(r.Queue) >= 1<<32:
		return s, fmt.Errorf("%w: queue %d", ErrRule, r.Queue)
	}
	for i, p := range []uint16{r.SrcPort, r.DstPort} {
		if p != 0 {
			binary.BigEndian.PutUint16(s.match[l4+2*i:], p)
			binary.BigEndian.PutUint16(s.mask[l4+2*i:], 0xffff)
		}
	}
	if r.Protocol != 0 {
		s.match[proto] = r.Protocol
		s.mask[proto] = 0xff
	}
	if r.VLAN != 0 {
		s.flowType |= flowExt
		binary.BigEndian.PutUint16(s.matchExt[10:], r.VLAN)
		binary.BigEndian.PutUint16(s.maskExt[10:], 0x0fff)
	}
	s.cookie = uint64(int64(r.Queue)) // Drop becomes RX_CLS_FLOW_DISC
	return s, nil
}

// Rules returns all classification rules and the number of places in the table,
// 0 if the driver does not say.
func (d *Device) Rules() (rules []Spec, places int, err error) {
	// EMSGSIZE: a rule came between the count and the list.
	for range 3 {
		if rules, places, err = d.rules(); !errors.Is(err, unix.EMSGSIZE) {
			break
		}
	}
	return rules, places, err
}

func (d *Device) rules() (rules []Spec, places int, err error) {
	n := rxnfc{cmd: unix.ETHTOOL_GRXCLSRLCNT}
	if _, err := d.ioctl("count rules", unsafe.Pointer(&n)); err != nil {
		return nil, 0, err
	}
	if n.count > maxRules {
		return nil, 0, fmt.Errorf("count rules: the driver claims %d", n.count)
	}
	b := make([]byte, max(int(unsafe.Sizeof(n)), ruleLocsAt+4*int(n.count)))
	binary.NativeEndian.PutUint32(b, unix.ETHTOOL_GRXCLSRLALL)
	binary.NativeEndian.PutUint32(b[ruleCountAt:], n.count)
	if _, err := d.ioctl("list rules", unsafe.Pointer(&b[0])); err != nil {
		return nil, 0, err
	}
	places = int(binary.NativeEndian.Uint64(b[8:]) &^ specialLoc)
	for i := range min(n.count, binary.NativeEndian.Uint32(b[ruleCountAt:])) {
		r := rxnfc{cmd: unix.ETHTOOL_GRXCLSRULE}
		r.fs.location = binary.NativeEndian.Uint32(b[ruleLocsAt+4*i:])
		_, err := d.ioctl(fmt.Sprintf("read rule %d", r.fs.location), unsafe.Pointer(&r))
		if errors.Is(err, unix.ENOENT) {
			continue // removed in between
		}
		if err != nil {
			return nil, 0, err
		}
		rules = append(rules, r.fs)
	}
	return rules, places, nil
}

// InsertRule adds a rule at its location, where it replaces another one.
func (d *Device) InsertRule(s Spec) error {
	r := rxnfc{cmd: cmdSRXCLSRLIns, fs: s}
	_, err := d.ioctl(fmt.Sprintf("insert rule %d", s.location), unsafe.Pointer(&r))
	return err
}

// DeleteRule removes the rule at a location.
func (d *Device) DeleteRule(location uint32) error {
	r := rxnfc{cmd: cmdSRXCLSRLDel, fs: Spec{location: location}}
	_, err := d.ioctl(fmt.Sprintf("delete rule %d", location), unsafe.Pointer(&r))
	return err
}
