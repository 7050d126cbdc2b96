package cuda

import (
	"fmt"

	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda/abi"
)

// Mode is how packets are taken from a ring.
type Mode string

// Modes of a Config.
const (
	// ModeFlow has one receive warp per ring: for ports that spread flows over many rings.
	ModeFlow Mode = "flow"
	// ModeSequence has several, which take a ring's packets in turns: for one ring, or traffic that a
	// port cannot spread, as that of a tunnel. Records are those of ModeFlow.
	ModeSequence Mode = "sequence"

	// DefaultReceivers is how many receive warps a ring has in ModeSequence.
	DefaultReceivers = 2
)

func (c *Config) setMode() error {
	if c.Mode == "" {
		c.Mode = ModeFlow
	}
	most := 1
	switch c.Mode {
	case ModeFlow:
	case ModeSequence:
		most = abi.Receivers
	default:
		return fmt.Errorf("%w: mode %q, allowed: %q, %q", ErrConfig, c.Mode, ModeFlow, ModeSequence)
	}
	if c.Receivers == 0 {
		c.Receivers = min(DefaultReceivers, most)
	}
	if c.Receivers < 1 || c.Receivers > most {
		return fmt.Errorf("%w: %d receive warps per ring, mode %q allows 1 to %d", ErrConfig, c.Receivers, c.Mode, most)
	}
	return nil
}
