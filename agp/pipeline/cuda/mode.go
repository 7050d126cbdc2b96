package cuda

import (
	"errors"
	"fmt"
	"slices"

	"github.com/agp-net/telegraf-agp/agp/model"
	"github.com/agp-net/telegraf-agp/agp/options"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda/abi"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// Mode is how packets are taken from a ring, and what is kept of them: one of options.Modes.
type Mode string

// Modes of a Config.
const (
	// ModeFlow has one receive warp per ring: for ports that spread flows over many rings.
	ModeFlow Mode = options.ModeFlow
	// ModeSequence has several, which take a ring's packets in turns: for one ring, or traffic that a
	// port cannot spread, as that of a tunnel. Records are those of ModeFlow.
	ModeSequence Mode = options.ModeSequence
	// ModeStateless counts packets and forgets them: there are no flows, records, scores or alerts.
	// Sketches take the sender of each packet for its source.
	ModeStateless Mode = options.ModeStateless

	// DefaultReceivers is how many receive warps a ring has in ModeSequence.
	DefaultReceivers = 2
)

// receivers is how many receive warps a ring has: by default, and at most.
func (m Mode) receivers() (usual, most int) {
	if m == ModeSequence {
		return DefaultReceivers, abi.Receivers
	}
	return 1, 1
}

func (c *Config) setMode() error {
	if c.Mode == "" {
		c.Mode = ModeFlow
	}
	if !slices.Contains(options.Modes(), string(c.Mode)) {
		return fmt.Errorf("%w: mode %q, allowed: %q", ErrConfig, c.Mode, options.Modes())
	}
	usual, most := c.Mode.receivers()
	if c.Receivers == 0 {
		c.Receivers = usual
	}
	if c.Receivers < 1 || c.Receivers > most {
		return fmt.Errorf("%w: %d receive warps per ring, mode %q allows 1 to %d", ErrConfig, c.Receivers, c.Mode, most)
	}
	if c.Mode != ModeStateless {
		return nil
	}
	switch {
	case c.Detect != nil:
		return fmt.Errorf("%w: detectors look at flows, of which mode %q has none", ErrConfig, c.Mode)
	case c.Sketch != nil && c.Sketch.Feature != "":
		return fmt.Errorf("%w: sketch feature %q has histograms of flows, of which mode %q has none", ErrConfig, c.Sketch.Feature, c.Mode)
	}
	return c.Mode.scores(c.Models)
}

// scores says whether models can.
func (m Mode) scores(set *model.Set) error {
	if m == ModeStateless && len(set.Models()) > 0 {
		return fmt.Errorf("%w: models score flows, of which mode %q has none", ErrConfig, m)
	}
	return nil
}

// Counts are frames on the wire and their lengths, of IPv4 and of IPv6, by IP protocol.
type Counts struct {
	Packets, Bytes [2][abi.Protocols]uint64
}

// Counts reads what ModeStateless has counted so far: frames of the latest batches may be missing
// while Run works. Safe from any goroutine.
func (p *Pipeline) Counts() (Counts, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts()
}

func (p *Pipeline) counts() (c Counts, err error) {
	if p.mem.held == nil {
		return c, errFreed
	}
	var part abi.Counts
	for _, r := range p.rings {
		for _, d := range r.shards {
			err = errors.Join(err, p.cfg.Device.Read(bytesOf(&part), d.abi.Counts))
			for i, n := range part.Packets {
				c.Packets[i/abi.Protocols][i%abi.Protocols] += n
				c.Bytes[i/abi.Protocols][i%abi.Protocols] += part.Bytes[i]
			}
		}
	}
	return c, err
}

// counted adds what ModeStateless knows to a snapshot: a frame that was counted is as good as one in a
// record. p.mu is held.
func (p *Pipeline) counted(s *telemetry.Snapshot) {
	for _, r := range p.rings {
		for _, d := range r.shards {
			s.Engine.PacketsRecorded += d.seen.Recorded
		}
	}
	c, err := p.counts()
	if err != nil { // a snapshot without rows rather than none
		s.Engine.Errors["counts_read"]++
		return
	}
	for i := range abi.Protocols {
		if n := c.Packets[0][i] + c.Packets[1][i]; n > 0 {
			s.Traffic = append(s.Traffic, telemetry.TrafficRow{Protocol: uint8(i), Packets: n, Bytes: c.Bytes[0][i] + c.Bytes[1][i]})
		}
	}
}
