package detect

import (
	"math"

	"github.com/agp-net/telegraf-agp/agp/options"
)

// Kinds of alerts.
const (
	SYNFlood         = "syn_flood"
	SYNACKReflection = "syn_ack_reflection"
	Amplification    = "amplification"
	UDPFlood         = "udp_flood"
	ICMPFlood        = "icmp_flood"
	RequestFlood     = "request_flood"
	PortScan         = "port_scan"
	HostScan         = "host_scan"
	StealthScan      = "stealth_scan"
	BruteForce       = "brute_force"
	Beacon           = "beacon"
	DNSTunnel        = "dns_tunnel"
	ICMPTunnel       = "icmp_tunnel"
	CovertTiming     = "covert_timing"
	CovertSize       = "covert_size"
	OneWayPush       = "one_way_push"
)

// Config holds the thresholds. A count threshold of 0 means the default, a
// negative one switches the rule off. Config's zero value is the default.
type Config struct {
	Key [16]byte // of the hashes; random for live traffic

	// Floods, per victim and 10 s.
	SYNFlood         float64 // unanswered SYN flows to one address and port; 150
	SYNACKReflection float64 // SYN+ACK flows to an address that sent no SYN; 150
	Amplification    float64 // senders of unasked answers from one amplifying service; 100
	AmpLarge         float64 // the same where first packets average 400 bytes or more; 25
	UDPFlood         float64 // unanswered UDP flows to one address from many; 5000
	ICMPFlood        float64 // unanswered ICMP flows to one address; 500
	RequestFlood     float64 // flows to one address and port that begin with data, without handshake or answer; 150

	// Scans, per source and 60 s.
	PortScan    float64 // ports of one address that gave no data; 15
	UDPPortScan float64 // unanswered UDP ports of one address; 120, above what a traceroute touches
	HostScan    float64 // addresses that gave no data on one port; 25
	StealthScan float64 // flows opened with flags that no TCP stack sends; 3

	// Password guessing, per source, destination and port and 60 s.
	BruteForce float64 // short complete connections; 20

	// Beacon: connections at equal intervals between two hosts.
	Beacon       float64 // intervals seen; 30
	BeaconSpread float64 // standard deviation / mean of the intervals, at most; 0.1

	// Tunnels.
	DNSTunnel      float64 // queries of one client to one server in 60 s; 40
	DNSTunnelBytes float64 // mean payload of these queries; 130
	ICMPTunnel     float64 // echo packets of one flow; 20
	ICMPTunnelStd  float64 // standard deviation of their size in bytes; 16

	CovertTiming float64 // packets in one direction whose gaps or sizes take two values; 200
	OneWayPush   float64 // packets of a client that an outside server only acknowledges; 50

	HoldDown           float64 // s of capture time before the same alert may come again; 300
	MaxAlertsPerMinute float64 // of capture time, all kinds together; 120
}

// fields are the places of the thresholds that package options names.
var fields = map[string]func(*Config) *float64{
	"syn_flood":             func(c *Config) *float64 { return &c.SYNFlood },
	"syn_ack_reflection":    func(c *Config) *float64 { return &c.SYNACKReflection },
	"amplification":         func(c *Config) *float64 { return &c.Amplification },
	"amplification_large":   func(c *Config) *float64 { return &c.AmpLarge },
	"udp_flood":             func(c *Config) *float64 { return &c.UDPFlood },
	"icmp_flood":            func(c *Config) *float64 { return &c.ICMPFlood },
	"request_flood":         func(c *Config) *float64 { return &c.RequestFlood },
	"port_scan":             func(c *Config) *float64 { return &c.PortScan },
	"udp_port_scan":         func(c *Config) *float64 { return &c.UDPPortScan },
	"host_scan":             func(c *Config) *float64 { return &c.HostScan },
	"stealth_scan":          func(c *Config) *float64 { return &c.StealthScan },
	"brute_force":           func(c *Config) *float64 { return &c.BruteForce },
	"beacon":                func(c *Config) *float64 { return &c.Beacon },
	"beacon_spread":         func(c *Config) *float64 { return &c.BeaconSpread },
	"dns_tunnel":            func(c *Config) *float64 { return &c.DNSTunnel },
	"dns_tunnel_bytes":      func(c *Config) *float64 { return &c.DNSTunnelBytes },
	"icmp_tunnel":           func(c *Config) *float64 { return &c.ICMPTunnel },
	"icmp_tunnel_std":       func(c *Config) *float64 { return &c.ICMPTunnelStd },
	"covert_timing":         func(c *Config) *float64 { return &c.CovertTiming },
	"one_way_push":          func(c *Config) *float64 { return &c.OneWayPush },
	"hold_down":             func(c *Config) *float64 { return &c.HoldDown },
	"max_alerts_per_minute": func(c *Config) *float64 { return &c.MaxAlertsPerMinute },
}

// ParseConfig fills a Config from thresholds by name; an unknown name is an error that
// lists the known ones.
func ParseConfig(m map[string]float64) (Config, error) {
	var c Config
	if err := options.CheckThresholds(m); err != nil {
		return c, err
	}
	for n, v := range m {
		*fields[n](&c) = v
	}
	return c, nil
}

// withDefaults replaces zeros by the defaults and negative values by what nothing reaches.
func (c Config) withDefaults() Config {
	for _, t := range options.Thresholds() {
		p := fields[t.Name](&c)
		switch {
		case *p == 0:
			*p = t.Default
		case *p < 0:
			*p = math.Inf(1)
		}
	}
	return c
}
