package options

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrKind wraps every complaint about kinds of alerts that shall block.
var ErrKind = errors.New("kind of alert")

// Classified is the kind of alerts that models raise.
const Classified = "classified"

// AlertKind is a kind of alerts.
type AlertKind struct {
	Name string
	// NoSource says why the source of such a finding is never blocked, "" if it can be.
	NoSource string
	// Forgeable says that no alert of the kind can be confirmed: nothing proves that its
	// source sent what was found.
	Forgeable bool
}

const (
	forged    = "its packets carry forged source addresses, blocking them would cut off strangers"
	reflected = "its packets come from innocent hosts that answer forged requests"
)

// AlertKinds lists all kinds of alerts in the order of the documentation.
func AlertKinds() []AlertKind {
	return []AlertKind{
		{"syn_flood", forged, false},
		{"syn_ack_reflection", reflected, false},
		{"amplification", reflected, false},
		{"udp_flood", forged, false},
		{"icmp_flood", forged, false},
		{"request_flood", forged, false},
		{"port_scan", "", true},
		{"host_scan", "", true},
		{"stealth_scan", "", true},
		{"brute_force", "", false},
		{"beacon", "", false},
		{"dns_tunnel", "", true},
		{"icmp_tunnel", "", true},
		{"covert_timing", "", false},
		{"covert_size", "", false},
		{"one_way_push", "", true},
		{Classified, "", false},
	}
}

// BlockingKinds lists the kinds that have a source to block.
func BlockingKinds() []string {
	var names []string
	for _, k := range AlertKinds() {
		if k.NoSource == "" {
			names = append(names, k.Name)
		}
	}
	return names
}

// CheckConfirmableKinds refuses kinds of which no alert can be confirmed.
func CheckConfirmableKinds(kinds []string) error {
	for _, k := range AlertKinds() {
		if k.Forgeable && slices.Contains(kinds, k.Name) {
			return fmt.Errorf("%w: %q: whoever forges addresses chooses who is blocked", ErrKind, k.Name)
		}
	}
	return nil
}

// CheckBlockingKinds refuses kinds that do not exist or whose source is never
// blocked, and says why. "classified/NAME" is that kind with one class.
func CheckBlockingKinds(kinds []string) error {
	for _, name := range kinds {
		if class, ok := strings.CutPrefix(name, Classified+"/"); ok && class != "" {
			continue
		}
		i := slices.IndexFunc(AlertKinds(), func(k AlertKind) bool { return k.Name == name })
		if i < 0 {
			return fmt.Errorf("%w: %q does not exist; those that can block are %s", ErrKind, name, strings.Join(BlockingKinds(), ", "))
		}
		if why := AlertKinds()[i].NoSource; why != "" {
			return fmt.Errorf("%w: %q never blocks: %s", ErrKind, name, why)
		}
	}
	return nil
}
