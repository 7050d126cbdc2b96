package oracle

// ndpiExceptions are the captures in which flows differ from nDPI's report: why, and
// each of these flows (reported by either side) with what differs. A capture that is
// not listed must agree in every flow; a listed one must differ in exactly these
// and in nothing else, so that the list stays true.
var ndpiExceptions = map[string]struct {
	reason string
	flows  []string
}{
	"4in4tunnel.pcap": {
		"nDPI opens IP-in-IP; here it stays the outer flow",
		[]string{
			"17 10.10.100.25:62367 10.10.101.2:17000: packets [0 0], nDPI [5 0]; bytes [0 0], nDPI [850 0]",
			"4 41.202.46.110:0 69.67.35.146:0: packets [0 5], nDPI [0 0]; bytes [0 850], nDPI [0 0]",
		},
	},
	"6in4tunnel.pcap": {
		"nDPI opens IPv6 in IPv4; here it stays the outer flow",
		[]string{
			"17 2001:470:1f16:13f::2:53959 2a03:2880:fffe:b:face:b00c::99:53: packets [0 0], nDPI [1 1]; bytes [0 0], nDPI [133 273]",
			"17 2001:470:1f16:13f::2:6404 2a03:2880:fffe:b:face:b00c::99:53: packets [0 0], nDPI [1 1]; bytes [0 0], nDPI [133 261]",
			"41 174.3.73.24:0 184.105.255.26:0: packets [66 61], nDPI [0 0]; bytes [13844 26449], nDPI [0 0]",
			"58 2001:470:1f16:13f::2:0 2604:a880:1:20::224:b001:0: packets [0 0], nDPI [1 0]; bytes [0 0], nDPI [200 0]",
			"58 2001:470:1f17:13f:3e97:eff:fe73:4dec:0 2604:a880:1:20::224:b001:0: packets [0 0], nDPI [23 23]; bytes [0 0], nDPI [3174 3174]",
			"58 2001:470:1f17:13f:3e97:eff:fe73:4dec:0 2a03:2880:1010:6f03:face:b00c::2:0: packets [0 0], nDPI [0 1]; bytes [0 0], nDPI [0 1314]",
			"6 2001:470:1f17:13f:3e97:eff:fe73:4dec:41538 2604:a880:1:20::224:b001:80: packets [0 0], nDPI [6 4]; bytes [0 0], nDPI [786 1006]",
			"6 2001:470:1f17:13f:3e97:eff:fe73:4dec:53234 2a03:2880:1010:6f03:face:b00c::2:443: packets [0 0], nDPI [18 15]; bytes [0 0], nDPI [6894 7032]",
			"6 2001:470:1f17:13f:3e97:eff:fe73:4dec:60205 2604:a880:1:20::224:b001:443: packets [0 0], nDPI [14 14]; bytes [0 0], nDPI [2312 13085]",
			"6 2001:470:1f17:13f:6d69:c72:7313:616f:35610 2604:a880:1:20::224:b001:993: packets [0 0], nDPI [1 1]; bytes [0 0], nDPI [106 152]",
			"6 2001:470:1f17:13f:6d69:c72:7313:616f:56381 2604:a880:1:20::224:b001:993: packets [0 0], nDPI [1 1]; bytes [0 0], nDPI [106 152]",
		},
	},
	"6in6tunnel.pcap": {
		"nDPI opens IPv6 in IPv6; here it stays the outer flow",
		[]string{
			"17 cafe::babe:13000 dead::beef:30000: packets [0 0], nDPI [0 2]; bytes [0 0], nDPI [0 212]",
			"41 2001:4f8:4:7:2e0:81ff:fe52:9a6b:0 2001:4f8:4:7:2e0:81ff:fe52:ffff:0: packets [0 1], nDPI [0 0]; bytes [0 106], nDPI [0 0]",
			"41 feed::beef:0 feed::cafe:0: packets [1 0], nDPI [0 0]; bytes [106 0], nDPI [0 0]",
		},
	},
	"capwap.pcap": {
		"nDPI opens CAPWAP; here it stays the outer UDP flow",
		[]string{
			"17 0.0.0.0:68 255.255.255.255:67: packets [0 0], nDPI [5 0]; bytes [0 0], nDPI [2090 0]",
			"17 192.168.10.10:12380 192.168.10.9:5247: packets [170 3], nDPI [156 1]; bytes [33465 437], nDPI [29830 168]",
			"2 169.254.87.121:0 224.0.0.251:0: packets [0 0], nDPI [1 0]; bytes [0 0], nDPI [122 0]",
			"58 :::0 ff02::1:ff72:7710:0: packets [0 0], nDPI [1 0]; bytes [0 0], nDPI [154 0]",
			"58 fe80::fd:7a4c:8d72:7710:0 ff02::16:0: packets [0 0], nDPI [2 0]; bytes [0 0], nDPI [352 0]",
			"58 fe80::fd:7a4c:8d72:7710:0 ff02::2:0: packets [0 0], nDPI [2 0]; bytes [0 0], nDPI [284 0]",
		},
	},
	"ip_fragmented_garbage.pcap": {
		"nDPI ignores fragments after the first and reads no ports from its short first ones; here they join the flow",
		[]string{
			"6 10.0.0.2:0 10.128.0.2:0: packets [0 0], nDPI [4 0]; bytes [0 0], nDPI [216 0]",
			"6 10.0.0.2:16417 10.128.0.2:16419: packets [313 0], nDPI [0 0]; bytes [15646 0], nDPI [0 0]",
			"6 10.0.0.2:18730 10.128.0.2:20304: packets [313 0], nDPI [0 0]; bytes [15646 0], nDPI [0 0]",
			"6 10.0.0.2:24102 10.128.0.2:10792: packets [313 0], nDPI [0 0]; bytes [15646 0], nDPI [0 0]",
			"6 10.0.0.2:9253 10.128.0.2:24102: packets [313 0], nDPI [0 0]; bytes [15646 0], nDPI [0 0]",
		},
	},
	"fuzz-2006-09-29-28586.pcap": {
		"damaged on purpose: nDPI ignores fragments after the first; here they join the flow or form one without ports",
		[]string{
			"170 170.170.170.170:0 170.170.170.170:0: packets [3 0], nDPI [0 0]; bytes [1628 0], nDPI [0 0]",
			"6 172.20.3.13:0 172.20.3.5:0: packets [1 1], nDPI [1 0]; bytes [54 479], nDPI [54 0]",
			"6 172.20.3.13:80 172.20.3.5:2605: packets [1 5], nDPI [1 4]; bytes [58 1754], nDPI [58 240]",
		},
	},
	"fuzz-2020-02-16-11740.pcap": {
		"damaged on purpose: nDPI ignores fragments after the first and datagrams whose lengths contradict each other; here they count",
		[]string{
			"17 10.12.64.30:0 194.226.25.56:0: packets [1 0], nDPI [0 0]; bytes [745 0], nDPI [0 0]",
			"17 10.12.64.30:0 198.150.25.53:0: packets [1 0], nDPI [0 0]; bytes [745 0], nDPI [0 0]",
			"17 10.12.64.30:0 198.226.25.53:0: packets [3 8], nDPI [0 0]; bytes [2195 2050], nDPI [0 0]",
			"17 10.12.64.30:0 198.226.25.62:0: packets [1 1], nDPI [0 0]; bytes [725 206], nDPI [0 0]",
			"17 10.12.64.30:0 198.226.25.69:0: packets [0 1], nDPI [0 0]; bytes [0 206], nDPI [0 0]",
			"17 10.12.64.30:0 198.230.25.53:0: packets [1 0], nDPI [0 0]; bytes [745 0], nDPI [0 0]",
			"17 10.12.64.30:0 53.226.25.53:0: packets [0 1], nDPI [0 0]; bytes [0 318], nDPI [0 0]",
			"17 10.12.64.30:29200 111.226.25.53:1812: packets [0 1], nDPI [0 0]; bytes [0 239], nDPI [0 0]",
			"17 10.12.64.30:29200 198.226.25.53:1812: packets [107 99], nDPI [104 96]; bytes [77727 23315], nDPI [75532 22500]",
			"17 10.12.64.62:0 198.226.25.53:0: packets [1 0], nDPI [0 0]; bytes [725 0], nDPI [0 0]",
			"17 10.44.64.30:0 198.226.25.62:0: packets [1 0], nDPI [0 0]; bytes [697 0], nDPI [0 0]",
			"170 170.170.170.170:0 170.170.170.170:0: packets [3 0], nDPI [1 0]; bytes [1302 0], nDPI [239 0]",
		},
	},
	"ja3_lots_of_cipher_suites_2_anon.pcap": {
		"13 frames were captured 4 bytes short; inside GRE nDPI counts captured bytes, records the bytes on the wire",
		[]string{
			"6 151.121.193.160:443 192.168.147.177:58496: packets [14 13], nDPI [14 13]; bytes [3446 3572], nDPI [3446 3520]",
		},
	},
	"rsh-syslog-false-positive.pcap": {
		"nDPI ignores two frames that the snap length cut; here they count with their length on the wire",
		[]string{
			"6 172.29.43.201:514 172.31.78.129:9039: packets [0 8], nDPI [0 6]; bytes [0 5819], nDPI [0 3335]",
		},
	},
}
