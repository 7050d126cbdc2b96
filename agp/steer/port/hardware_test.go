package port

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/steer/ethtool"
)

// AGP_TEST_PORT names interfaces, separated by commas, whose settings may be changed for a moment: all that
// the driver has is changed, and has to be as before after a stop and after a crash.
func TestHardware(t *testing.T) {
	names := os.Getenv("AGP_TEST_PORT")
	if names == "" {
		t.Skip("AGP_TEST_PORT names no interface")
	}
	for name := range strings.SplitSeq(names, ",") {
		t.Run(name, func(t *testing.T) { testHardware(t, name) })
	}
}

func testHardware(t *testing.T, name string) {
	o := options(t)
	p, err := Open(name, o)
	require.NoError(t, err)
	before, err := p.Info()
	require.NoError(t, err)
	t.Logf("driver %s at %q: %d of %+v receive queues, rings %+v of %+v, RSS function %d, key %d bytes, table %v, hash fields %v, %d of %d rules",
		before.Driver, before.Bus, before.Channels.Receive(), before.MaxChannels, before.Rings, before.MaxRings,
		before.RSS.Function, len(before.RSS.Key), before.RSS.Indirection, before.HashFields, before.Rules, before.RulePlaces)

	type trial struct {
		what string
		s    Settings
	}
	var all []trial
	queues := before.Channels.Receive()
	if most := int(max(before.MaxChannels.Combined, before.MaxChannels.RX)); most > 1 {
		queues = 1 + queues%most
		all = append(all, trial{"channels", Settings{Channels: queues}})
	}
	if before.MaxRings.RX > 0 {
		rx := int(before.MaxRings.RX)
		if before.Rings.RX == before.MaxRings.RX {
			rx /= 2
		}
		all = append(all, trial{"rings", Settings{RXRing: rx}})
	}
	if len(before.RSS.Key) > 0 {
		all = append(all, trial{"rss key", Settings{RSSKey: []byte{0x6d, 0x5a}}})
	}
	if n := len(before.RSS.Indirection); n > 0 {
		all = append(all, trial{"indirection", Settings{Indirection: []uint32{uint32(max(queues, 1) - 1)}}})
		// A table that differs from the driver's own in its last entry only.
		last := make([]uint32, n)
		for i := range last {
			last[i] = uint32(i % max(queues, 1))
		}
		last[n-1] = (last[n-1] + 1) % uint32(max(queues, 1))
		all = append(all, trial{"last entry", Settings{Indirection: last}})
	}
	if f, ok := before.HashFields[ethtool.UDP4]; ok {
		ports := ethtool.HashSrcPort | ethtool.HashDstPort
		all = append(all, trial{"hash fields", Settings{HashFields: map[ethtool.FlowType]uint64{ethtool.UDP4: f ^ ports}}})
	}
	if f, ok := before.Features["rx-gro"]; ok && !f.Fixed {
		all = append(all, trial{"feature", Settings{Features: map[string]bool{"rx-gro": !f.Wanted}}})
	}
	if before.RulePlaces > 0 {
		all = append(all, trial{"rule", Settings{Rules: []ethtool.Rule{{Flow: ethtool.TCP4, DstPort: 4433}}}})
	}

	works := 0
	for _, c := range all {
		err := p.Apply(c.s)
		now, ierr := p.Info()
		require.NoError(t, ierr)
		if err != nil {
			t.Logf("%s: refused: %v", c.what, err)
			continue
		}
		works++
		t.Logf("%s: taken", c.what)
		if c.s.Channels > 0 {
			require.Equal(t, c.s.Channels, now.Channels.Receive())
		}
		if n := len(c.s.Indirection); n > 0 {
			for i, q := range now.RSS.Indirection {
				require.Equal(t, c.s.Indirection[i%n], q)
			}
		}
	}
	require.NotZero(t, works)
	rep, err := p.Restore()
	require.NoError(t, err)
	require.Empty(t, rep.Left)
	t.Log(rep)
	after, err := p.Info()
	require.NoError(t, err)
	require.Equal(t, before, after)

	for _, c := range all {
		if p.Apply(c.s) == nil {
			t.Logf("%s: again", c.what)
		}
	}
	vanish(p)
	reps, err := RestoreAll(o.StateDir)
	require.NoError(t, err)
	require.Len(t, reps, 1)
	p, err = Open(name, o)
	require.NoError(t, err)
	after, err = p.Info()
	require.NoError(t, err)
	require.Equal(t, before, after)
	_, err = p.Close()
	require.NoError(t, err)
}
