package packet

// Verdict is what Parse says of a frame: OK, or why it is not part of a flow.
type Verdict uint8

// Verdicts. Their names (String) are the drop reasons in metrics.
const (
	OK Verdict = iota

	EmptyFrame      // no byte was captured
	UnknownLinkType // no decoder for this link type
	TruncatedL2     // the frame ends inside the link layer or a header before IP
	TruncatedL3     // the frame ends inside the IP header or an IPv6 extension header
	TruncatedL4     // the transport header's ports (TCP: its 20 bytes) are not all there
	BadL2Header     // a link-layer header contradicts itself
	TooManyHeaders  // more nested tags, labels or extension headers than any network uses
	BadIPVersion    // IP was announced, but the version is another
	BadIPHeader     // header length or extension headers contradict the packet's length
	BadIPLength     // the total length is shorter than the header

	NonIPARP            // ARP, RARP
	NonIPLLDP           // LLDP
	NonIPSTP            // spanning tree, also Cisco's per VLAN
	NonIPCDP            // Cisco discovery
	NonIPLLC            // other 802.2
	NonIPISIS           // IS-IS and other OSI
	NonIPIPX            // IPX in any framing
	NonIPPPP            // LCP, IPCP, authentication and other PPP control
	NonIPPPPoE          // PPPoE discovery
	NonIPEAPOL          // 802.1X
	NonIPLACP           // slow protocols: LACP, OAM
	NonIPPTP            // precision time over Ethernet
	NonIPMACsec         // encrypted Ethernet
	NonIPMPLS           // MPLS with a payload that is neither IP nor Ethernet
	NonIPCTP            // configuration test (loop back) frames
	NonIP80211          // 802.11 frames without data
	NonIP80211Encrypted // 802.11 data that the capture holds encrypted
	NonIPOther          // anything else

	NumVerdicts int = iota
)

var verdictNames = [NumVerdicts]string{
	OK:                  "ok",
	EmptyFrame:          "empty_frame",
	UnknownLinkType:     "unknown_link_type",
	TruncatedL2:         "truncated_l2",
	TruncatedL3:         "truncated_l3",
	TruncatedL4:         "truncated_l4",
	BadL2Header:         "bad_l2_header",
	TooManyHeaders:      "too_many_headers",
	BadIPVersion:        "bad_ip_version",
	BadIPHeader:         "bad_ip_header",
	BadIPLength:         "bad_ip_length",
	NonIPARP:            "non_ip_arp",
	NonIPLLDP:           "non_ip_lldp",
	NonIPSTP:            "non_ip_stp",
	NonIPCDP:            "non_ip_cdp",
	NonIPLLC:            "non_ip_llc",
	NonIPISIS:           "non_ip_isis",
	NonIPIPX:            "non_ip_ipx",
	NonIPPPP:            "non_ip_ppp",
	NonIPPPPoE:          "non_ip_pppoe",
	NonIPEAPOL:          "non_ip_eapol",
	NonIPLACP:           "non_ip_lacp",
	NonIPPTP:            "non_ip_ptp",
	NonIPMACsec:         "non_ip_macsec",
	NonIPMPLS:           "non_ip_mpls",
	NonIPCTP:            "non_ip_ctp",
	NonIP80211:          "non_ip_80211",
	NonIP80211Encrypted: "non_ip_80211_encrypted",
	NonIPOther:          "non_ip_other",
}

// String returns the drop reason as it is named in metrics.
func (v Verdict) String() string {
	if int(v) < NumVerdicts {
		return verdictNames[v]
	}
	return "invalid"
}

// NonIP reports whether the frame was understood and is simply not IP.
func (v Verdict) NonIP() bool { return v >= NonIPARP && int(v) < NumVerdicts }
