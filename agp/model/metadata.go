package model

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// Metadata is what a file says of itself, in ONNX metadata_props:
//
//	agp.name         required  letters, digits, . _ -
//	agp.version      required  likewise
//	agp.feature_set  required  histogram, head or summary
//	agp.field        required  app or class: the record field that is filled
//	agp.classes      required  JSON list of names, one per output (two for a single sigmoid output:
//	                           the first is its complement)
//	agp.benign       []        JSON list of the classes that raise no alert
//	agp.triggers     [8,16,32,64,128]  JSON list of packet counts at which a flow is scored
//	agp.min_packets  first trigger     a flow that ends with fewer packets is not scored
//	agp.threshold    0.5       below it the answer is "unknown"
//	agp.note.*                 free text
//
// Another key that starts with "agp." is refused, because it is most likely a slip.
type Metadata struct {
	Name, Version string
	Features      FeatureSet
	Field         string
	Classes       []string
	Benign        []string
	Triggers      []uint64 // ascending
	MinPackets    uint64
	Threshold     float32
	Notes         map[string]string // without the prefix agp.note.
}

// Unknown is the label of a flow whose best class scores below the threshold.
const Unknown = "unknown"

// DefaultTriggers are the packet counts at which a flow is scored.
var DefaultTriggers = []uint64{8, 16, 32, 64, 128}

const (
	maxClasses  = 1024
	maxTriggers = 64
)

func parseMetadata(props map[string]string) (Metadata, error) {
	m := Metadata{Triggers: DefaultTriggers, Threshold: 0.5, Notes: map[string]string{}}
	// In a fixed order, so that the same file always gives the same error.
	keys := make([]string, 0, len(props))
	for k := range props {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	seen := map[string]bool{}
	for _, k := range keys {
		name, ours := strings.CutPrefix(k, "agp.")
		if !ours {
			continue
		}
		if note, ok := strings.CutPrefix(name, "note."); ok {
			m.Notes[note] = props[k]
			continue
		}
		seen[name] = true
		if err := m.set(name, props[k]); err != nil {
			return m, fmt.Errorf("%w: %s: %w", ErrMetadata, clip(k), err)
		}
	}
	for _, k := range []string{"name", "version", "feature_set", "field", "classes"} {
		if !seen[k] {
			return m, fmt.Errorf("%w: agp.%s is missing", ErrMetadata, k)
		}
	}
	if !seen["min_packets"] {
		m.MinPackets = m.Triggers[0]
	}
	for _, b := range m.Benign {
		if !slices.Contains(m.Classes, b) {
			return m, fmt.Errorf("%w: agp.benign: %q is not a class", ErrMetadata, clip(b))
		}
	}
	return m, nil
}

func (m *Metadata) set(key, v string) (err error) {
	switch key {
	case "name":
		m.Name = v
		return checkName(v)
	case "version":
		m.Version = v
		return checkName(v)
	case "feature_set":
		m.Features, err = ParseFeatureSet(v)
		return err
	case "field":
		m.Field = v
		if v != "app" && v != "class" {
			return fmt.Errorf("%q, want app or class", clip(v))
		}
	case "classes":
		m.Classes, err = names(v)
		if err == nil && len(m.Classes) < 2 {
			err = fmt.Errorf("%d classes, want at least 2", len(m.Classes))
		}
		return err
	case "benign":
		m.Benign, err = names(v)
		return err
	case "triggers":
		m.Triggers = nil
		if err := strictJSON(v, &m.Triggers); err != nil {
			return err
		}
		if n := len(m.Triggers); n == 0 || n > maxTriggers {
			return fmt.Errorf("%d entries, want 1 to %d", n, maxTriggers)
		}
		last := uint64(0)
		for _, t := range m.Triggers {
			if t <= last {
				return fmt.Errorf("%v does not ascend from 1", m.Triggers)
			}
			last = t
		}
	case "min_packets":
		m.MinPackets, err = strconv.ParseUint(v, 10, 32)
		if err == nil && m.MinPackets == 0 {
			err = fmt.Errorf("0, want at least 1")
		}
		return err
	case "threshold":
		f, err := strconv.ParseFloat(v, 32)
		if err != nil {
			return err
		}
		if !(f >= 0 && f <= 1) {
			return fmt.Errorf("%v, want 0 to 1", f)
		}
		m.Threshold = float32(f)
	default:
		return fmt.Errorf("unknown key")
	}
	return nil
}

// checkName keeps names safe for tags, file names and log lines.
func checkName(s string) error {
	if len(s) == 0 || len(s) > 64 {
		return fmt.Errorf("length %d, want 1 to 64", len(s))
	}
	for _, c := range s {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("._-", c)) {
			return fmt.Errorf("character %q in %q", c, clip(s))
		}
	}
	return nil
}

// names reads a JSON list of class names: distinct, printable, without surrounding space.
func names(v string) ([]string, error) {
	var list []string
	if err := strictJSON(v, &list); err != nil {
		return nil, err
	}
	if len(list) > maxClasses {
		return nil, fmt.Errorf("%d names, at most %d", len(list), maxClasses)
	}
	seen := make(map[string]bool, len(list))
	for _, s := range list {
		if s == "" || len(s) > 64 || s != strings.TrimSpace(s) || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
			return nil, fmt.Errorf("bad name %q", clip(s))
		}
		if seen[s] {
			return nil, fmt.Errorf("%q is named twice", s)
		}
		seen[s] = true
	}
	return list, nil
}

func strictJSON(v string, into any) error {
	d := json.NewDecoder(bytes.NewReader([]byte(v)))
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("not a JSON list of the right type: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return fmt.Errorf("text after the JSON list")
	}
	return nil
}
