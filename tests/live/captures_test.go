package live

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/tests/live/rig"
	"github.com/agp-net/telegraf-agp/tests/netns"
	"github.com/agp-net/telegraf-agp/tests/testcap"
)

const (
	jumbo     = 65535 // largest MTU of a veth pair
	jumboSize = jumbo + 14
	plainSize = 1518 // MTU 1500, Ethernet header and a tag

	maxRecords = 6000
)

// recording is one capture on its way through a veth pair.
type recording struct {
	name   string
	path   string
	frames [][]byte
	want   []rig.Record
	err    error
}

func (r *recording) longest() (n int) {
	for _, f := range r.frames {
		n = max(n, len(f))
	}
	return n
}

var prepared struct {
	sync.Once
	list []*recording
}

// recordings reads all captures and replays them, once for all tests.
func recordings(t *testing.T) []*recording {
	t.Helper()
	binary := agpBinary(t)
	prepared.Do(func() {
		work := make(chan *recording)
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				for r := range work {
					r.err = r.prepare(binary)
				}
			})
		}
		for _, path := range testcap.All(t) {
			r := &recording{name: filepath.Base(path), path: path}
			prepared.list = append(prepared.list, r)
			work <- r
		}
		close(work)
		wg.Wait()
	})
	return prepared.list
}

func (r *recording) prepare(binary string) (err error) {
	if r.frames, err = rig.Frames(r.path, jumboSize); err != nil {
		return err
	}
	var packets uint64
	if r.want, packets, err = rig.Replay(binary, r.path); err != nil {
		return err
	}
	if int(packets) != len(r.frames) {
		return fmt.Errorf("%s: %d frames, replay has %d", r.name, len(r.frames), packets)
	}
	return nil
}

// grouped puts captures together that have no pair of addresses in common: their
// flows cannot meet in one engine. A group has no more records than an engine keeps
// for its plugin, unless one capture alone has.
func grouped(list []*recording) [][]*recording {
	type group struct {
		list    []*recording
		pairs   map[string]bool
		records int
	}
	var groups []*group
	for _, r := range list {
		pairs := map[string]bool{}
		for _, rec := range r.want {
			pairs[rec.Pair()] = true
		}
		fits := func(g *group) bool {
			if g.records+len(r.want) > maxRecords {
				return false
			}
			for p := range pairs {
				if g.pairs[p] {
					return false
				}
			}
			return true
		}
		i := slices.IndexFunc(groups, fits)
		if i < 0 {
			i = len(groups)
			groups = append(groups, &group{pairs: map[string]bool{}})
		}
		groups[i].list = append(groups[i].list, r)
		groups[i].records += len(r.want)
		for p := range pairs {
			groups[i].pairs[p] = true
		}
	}
	var out [][]*recording
	for _, g := range groups {
		out = append(out, g.list)
	}
	return out
}

// withKernel are captures that divert leaves to the kernel, as all that its programs
// do not look into.
var withKernel = map[string]string{"discord_mid_flow.pcap": "PPPoE inside two VLAN tags"}

// throughVeth sends every capture through a veth pair and compares the records with
// those of its replay. Records of one flow come from one queue, so a flow whose
// directions reach different queues would show as two records.
func throughVeth(t *testing.T, kind string) {
	netns.NothingLeft(t)
	var plain, big []*recording
	var frames, records int
	for _, r := range recordings(t) {
		switch {
		case errors.Is(r.err, rig.ErrLinkType), errors.Is(r.err, rig.ErrFrame):
			t.Logf("not sent: %s: %v", r.name, r.err)
			continue
		case kind == "divert" && withKernel[r.name] != "":
			t.Logf("not compared: %s: %s", r.name, withKernel[r.name])
			continue
		case r.longest() > plainSize:
			big = append(big, r)
		default:
			plain = append(plain, r)
		}
		require.NoError(t, r.err, r.name)
		frames += len(r.frames)
		records += len(r.want)
	}
	groups, bigGroups := grouped(plain), grouped(big)
	t.Logf("%d captures (%d of them with frames above %d bytes), %d frames, %d records, %d engines",
		len(plain)+len(big), len(big), plainSize, frames, records, len(groups)+len(bigGroups))
	used := map[uint64]int{}
	for i, g := range append(groups, bigGroups...) {
		mtu := 1500
		if i >= len(groups) {
			mtu = jumbo
		}
		t.Run(fmt.Sprintf("%d captures from %s", len(g), g[0].name), func(t *testing.T) { runGroup(t, kind, g, mtu, used) })
	}
	require.Len(t, used, 2, "both queues have flows: %v", used)
}

func runGroup(t *testing.T, kind string, g []*recording, mtu int, used map[uint64]int) {
	w := newWire(t, 2, mtu)
	release, err := netns.Pin(0) // frames of one sender stay in order only on one CPU
	require.NoError(t, err)
	defer release()
	e := start(t, w.host, config(t, kind, "h0"))
	var want []rig.Record
	var frames [][]byte
	for _, r := range g {
		frames = append(frames, r.frames...)
		want = append(want, r.want...)
	}
	w.send(t, e, frames)
	got, s := drain(t, e)
	require.EqualValues(t, len(frames), rig.Accounted(s), e.Words())
	require.Empty(t, lost(s))
	for _, r := range got {
		used[r.Number("queue")]++
	}
	if d := rig.Difference(want, got); d != "" {
		names := make([]string, len(g))
		for i, r := range g {
			names[i] = r.name
		}
		t.Errorf("%s\n%v", d, names)
	}
}

// Every capture replayed through veth gives the same records as replay of the file,
// timestamps aside; both directions of every flow reach the same queue.
func TestEveryCaptureThroughMirrorGivesTheRecordsOfItsReplay(t *testing.T) {
	throughVeth(t, "mirror")
}

func TestEveryCaptureThroughDivertGivesTheRecordsOfItsReplay(t *testing.T) {
	throughVeth(t, "divert")
}
