// Package options holds the names, defaults and limits of options that both sides
// of the process boundary know: the plugin, which refuses a bad configuration
// before it starts anything, and what runs in the engine or under
// telegraf-agp replay. It depends on nothing and has no state; every function may
// be called from any goroutine. Durations are of capture time.
package options

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Limits of a flow's idle and active timeout. Far beyond a day, the sum of a
// packet's time and a timeout would leave the 64 bits.
const (
	MinTimeout = time.Second
	MaxTimeout = 24 * time.Hour
)

// Tunnels that can be opened.
const (
	VXLAN  = "vxlan"
	GRE    = "gre"
	Geneve = "geneve"
	GTPU   = "gtpu"
)

// Tunnels lists them.
func Tunnels() []string { return []string{VXLAN, GRE, Geneve, GTPU} }

// Who processes the packets.
const (
	PipelineAuto = "auto" // a GPU if one suffices, else the CPU
	PipelineCPU  = "cpu"
	PipelineCUDA = "cuda"
)

// Pipelines lists them.
func Pipelines() []string { return []string{PipelineAuto, PipelineCPU, PipelineCUDA} }

// GPUNames says what IsGPU allows.
const GPUNames = `"" or the number or UUID that "telegraf-agp doctor" or "nvidia-smi -L" shows`

var gpuName = regexp.MustCompile(`^([0-9]{1,3}|(GPU|MIG)-[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})?$`)

// IsGPU says whether a GPU can be called that.
func IsGPU(name string) bool { return gpuName.MatchString(name) }

// Which flow records leave the engine.
const (
	EmitNone    = "none"
	EmitAlerts  = "alerts" // of flows with a finding
	EmitSampled = "sampled"
	EmitAll     = "all"
)

// EmitModes lists them.
func EmitModes() []string { return []string{EmitNone, EmitAlerts, EmitSampled, EmitAll} }

// ErrThreshold wraps every complaint about detection thresholds.
var ErrThreshold = errors.New("detection configuration")

// Threshold of a detector. What it counts is said where the detector is.
type Threshold struct {
	Name    string
	Default float64
}

// Thresholds lists all in the order of the documentation.
func Thresholds() []Threshold {
	return []Threshold{
		{"syn_flood", 150},
		{"syn_ack_reflection", 150},
		{"amplification", 100},
		{"amplification_large", 25},
		{"udp_flood", 5000},
		{"icmp_flood", 500},
		{"request_flood", 150},
		{"port_scan", 15},
		{"udp_port_scan", 120},
		{"host_scan", 25},
		{"stealth_scan", 3},
		{"brute_force", 20},
		{"beacon", 30},
		{"beacon_spread", 0.1},
		{"dns_tunnel", 40},
		{"dns_tunnel_bytes", 130},
		{"icmp_tunnel", 20},
		{"icmp_tunnel_std", 16},
		{"covert_timing", 200},
		{"one_way_push", 50},
		{"hold_down", 300},
		{"max_alerts_per_minute", 120},
	}
}

// ThresholdNames lists the names.
func ThresholdNames() []string {
	var names []string
	for _, t := range Thresholds() {
		names = append(names, t.Name)
	}
	return names
}

// CheckThresholds refuses unknown names, with a list of the known ones, and values
// that are no finite numbers. Of several faults it names the first by name.
func CheckThresholds(m map[string]float64) error {
	known := ThresholdNames()
	for _, n := range slices.Sorted(maps.Keys(m)) {
		if !slices.Contains(known, n) {
			return fmt.Errorf("%w: no threshold %q; known are %s", ErrThreshold, n, strings.Join(known, ", "))
		}
		if v := m[n]; math.IsNaN(v) || math.IsInf(v, 0) {
			return fmt.Errorf("%w: %s = %v, allowed are finite numbers", ErrThreshold, n, v)
		}
	}
	return nil
}
