package oracle

import (
	"bytes"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const sampleLines = "Guessed flow protos:\t3\n" +
	"\t1\t 192.168.2.16             \t 8      \n" +
	"\t1\tTCP 192.0.2.16:32996 <-> 198.51.100.120:443 [proto: 91.126/TLS.Google][IP: 126/Google][Encrypted][Confidence: DPI][DPI packets: 7][cat: Web/5]" +
	"[17 pkts/1949 bytes <-> 15 pkts/11826 bytes][Goodput ratio: 42/92][0.75 sec][Hostname/SNI: www.google.com][bytes ratio: -0.717 (Download)]" +
	"[IAT c2s/s2c min/avg/max/stddev: 0/1 56/27 386/221 108/60][Pkt Len c2s/s2c min/avg/max/stddev: 66/67 115/788 578/1484 125/627]" +
	"[Risk: ** Self-signed Cert **** TLS (probably) Not Carrying HTTPS **][Risk Score: 100]\n" +
	"\t2\tUDP [2001:db8::1]:30000 -> [2001:db8::2]:13000 [VLAN: 505][proto: GTP:0/Unknown][IP: 0/Unknown][ClearText][Confidence: Unknown]" +
	"[2 pkts/172 bytes -> 0 pkts/0 bytes][Goodput ratio: 5/0][< 1 sec]\n" +
	"\t3\t115 10.0.0.3:0 -> 10.0.0.5:0 [proto: 0/Unknown][1 pkts/541 bytes -> 0 pkts/0 bytes]\n"

func TestParseNDPI(t *testing.T) {
	flows, err := ParseNDPI(strings.NewReader(sampleLines))
	require.NoError(t, err)
	require.Equal(t, []NDPIFlow{
		{
			Line: 3, Protocol: 6, A: netip.MustParseAddrPort("192.0.2.16:32996"), B: netip.MustParseAddrPort("198.51.100.120:443"),
			Packets: [2]uint64{17, 15}, Bytes: [2]uint64{1949, 11826}, HasStats: true,
			IAT:    [2]Stats{{0, 56, 386, 108}, {1, 27, 221, 60}},
			Len:    [2]Stats{{66, 115, 578, 125}, {67, 788, 1484, 627}},
			Master: "TLS", App: "Google", Category: "Web", How: "DPI",
			Risks: []string{"Self-signed Cert", "TLS (probably) Not Carrying HTTPS"},
		},
		{
			Line: 4, Protocol: 17, A: netip.MustParseAddrPort("[2001:db8::1]:30000"), B: netip.MustParseAddrPort("[2001:db8::2]:13000"),
			VLAN: 505, Tunnel: "GTP", Packets: [2]uint64{2, 0}, Bytes: [2]uint64{172, 0}, Master: "Unknown", How: "Unknown",
		},
		{
			Line: 5, Protocol: 115, A: netip.MustParseAddrPort("10.0.0.3:0"), B: netip.MustParseAddrPort("10.0.0.5:0"),
			Packets: [2]uint64{1, 0}, Bytes: [2]uint64{541, 0}, Master: "Unknown",
		},
	}, flows)
}

func TestParseNDPIRefusesFlowLinesItCannotRead(t *testing.T) {
	for name, line := range map[string]string{
		"protocol": "\t1\tXYZ 10.0.0.1:1 -> 10.0.0.2:2 [1 pkts/5 bytes -> 0 pkts/0 bytes]",
		"address":  "\t1\tTCP host:1 -> 10.0.0.2:2 [1 pkts/5 bytes -> 0 pkts/0 bytes]",
		"counts":   "\t1\tTCP 10.0.0.1:1 -> 10.0.0.2:2 [proto: 7/HTTP]",
		"stats": "\t1\tTCP 10.0.0.1:1 -> 10.0.0.2:2 [1 pkts/5 bytes -> 0 pkts/0 bytes]" +
			"[IAT c2s/s2c min/avg/max/stddev: 1/1 2/2 3/3][Pkt Len c2s/s2c min/avg/max/stddev: 66/67 115/788 578/1484 125/627]",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseNDPI(strings.NewReader(line))
			require.ErrorIs(t, err, ErrFormat)
		})
	}
}

// Every line of every report that starts like a flow is read, and the packets add up to no more than the report's own number of packets.
func TestParseNDPIReadsEveryReport(t *testing.T) {
	reports, paths := oracles(t)
	start := regexp.MustCompile(`(?m)^\t\d+\t\S+ \S+ (<->|->) `)
	flows := 0
	for _, capture := range paths {
		b, err := os.ReadFile(reports[capture])
		require.NoError(t, err)
		got, err := ParseNDPI(bytes.NewReader(b))
		require.NoError(t, err)
		require.Len(t, got, len(start.FindAll(b, -1)), capture)
		for _, f := range got {
			require.NotZero(t, f.Packets[0]+f.Packets[1], capture)
			require.NotEmpty(t, f.Master, capture)
		}
		flows += len(got)
	}
	t.Logf("%d reports, %d flows", len(paths), flows)
}

func TestAddressText(t *testing.T) {
	for in, want := range map[string]string{
		"192.0.2.1":                  "192.0.2.1",
		"2001:db8:0:1:2:3:4:5":       "2001:db8::1:2:3:4:5",
		"2600:1900:4160:5999:0:19::": "2600:1900:4160:5999::19::",
		"fe80::1":                    "fe80::1",
	} {
		require.Equal(t, want, AddressText(netip.MustParseAddr(in)))
		e, err := parseEndpoint("[" + want + "]:53")
		require.NoError(t, err)
		require.Equal(t, want, AddressText(e.Addr()))
		require.EqualValues(t, 53, e.Port())
	}
}
