package rig

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"

	"github.com/agp-net/telegraf-agp/agp/telemetry"
	"github.com/agp-net/telegraf-agp/agp/telemetry/agppb"
	"github.com/agp-net/telegraf-agp/agp/telemetry/wire"
)

// timed are the readings of a record that depend on when packets came.
var timed = []string{
	"type", "start_ns", "end_ns", "end_reason", "first_reply_ns", "tcp_handshake_ns", "time_steps", "delay_hist", "queue", "interface", "packets_coalesced",
	"delay_ns_min_fwd", "delay_ns_mean_fwd", "delay_ns_max_fwd", "delay_ns_std_fwd", "delay_ns_min_rev", "delay_ns_mean_rev", "delay_ns_max_rev", "delay_ns_std_rev",
	"tcp_retransmits_fwd", "tcp_out_of_order_fwd", "tcp_retransmits_rev", "tcp_out_of_order_rev", // a segment that comes late enough is not out of order
}

// Record is one flow record by the names of its readings.
type Record map[string]any

// Canonical is the record as text without what depends on time.
func (r Record) Canonical() string {
	c := maps.Clone(r)
	for _, name := range timed {
		delete(c, name)
	}
	text, err := json.Marshal(c)
	if err != nil {
		panic(err) // it was JSON before
	}
	return string(text)
}

// Key names the flow in the direction of the record.
func (r Record) Key() string {
	return fmt.Sprintf("%v %v:%v > %v:%v", r["protocol"], r["src"], r["src_port"], r["dst"], r["dst_port"])
}

// Pair is the unordered pair of addresses.
func (r Record) Pair() string {
	a, b := fmt.Sprint(r["src"]), fmt.Sprint(r["dst"])
	return min(a, b) + " " + max(a, b)
}

// Number is a reading that counts; 0 if the record has none of that name.
func (r Record) Number(name string) uint64 {
	n, ok := r[name].(json.Number)
	if !ok {
		return 0
	}
	v, _ := n.Int64()
	return uint64(v)
}

// FromProto converts what an engine sent.
func FromProto(list []*agppb.FlowRecord) ([]Record, error) {
	out := make([]Record, 0, len(list))
	for _, p := range list {
		var t telemetry.Record
		if err := wire.RecordFromProto(p, &t); err != nil {
			return nil, err
		}
		r, err := parse(telemetry.AppendJSON(nil, &t))
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

func parse(line []byte) (Record, error) {
	d := json.NewDecoder(bytes.NewReader(line))
	d.UseNumber()
	var r Record
	if err := d.Decode(&r); err != nil {
		return nil, fmt.Errorf("%s: %w", line, err)
	}
	return r, nil
}

// cutShort is the exit status of a replay of a capture that ends inside a packet.
const cutShort = 3

// Replay runs the program over a capture and returns its records, none of them cut
// by time, and the number of whole packets.
func Replay(binary, path string) (records []Record, packets uint64, err error) {
	cmd := exec.Command(binary, "replay", "--models", "none", "--output", "json", "--idle-timeout", "2000000h", "--active-timeout", "2000000h", path)
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !(errors.As(err, &exit) && exit.ExitCode() == cutShort) {
		return nil, 0, fmt.Errorf("replay %s: %w", path, err)
	}
	for line := range bytes.Lines(out) {
		r, err := parse(line)
		if err != nil {
			return nil, 0, err
		}
		switch r["type"] {
		case "flow":
			records = append(records, r)
		case "summary":
			packets = r.Number("packets_seen")
			if drops, ok := r["drops"].(map[string]any); ok {
				packets -= Record(drops).Number("truncated_record") // the capture ends in it
			}
		}
	}
	return records, packets, nil
}

// Difference compares two sets of records without what depends on time. It is empty
// if they are equal, else it shows the first few that differ.
func Difference(want, got []Record) string {
	count := map[string]int{}
	for _, r := range want {
		count[r.Canonical()]++
	}
	for _, r := range got {
		count[r.Canonical()]--
	}
	var lines []string
	for text, n := range count {
		switch {
		case n > 0:
			lines = append(lines, fmt.Sprintf("missing  %d x %s", n, text))
		case n < 0:
			lines = append(lines, fmt.Sprintf("too many %d x %s", -n, text))
		}
	}
	slices.SortFunc(lines, func(a, b string) int { return strings.Compare(a[10:], b[10:]) })
	if len(lines) > 6 {
		lines = append(lines[:6], fmt.Sprintf("and %d more", len(lines)-6))
	}
	return strings.Join(lines, "\n")
}
