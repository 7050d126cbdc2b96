package gpu

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda/abi"
	"github.com/agp-net/telegraf-agp/tests/simt"
)

// queueShape is small, because racecheck reports each byte.
var queueShape = Shape{Rings: 1, PerBlock: 1, Shards: 2, Flows: 20, FrameLen: 60}

// TestPacketsComeThroughTheQueues from the receive warp to the state warps, several times around.
func TestPacketsComeThroughTheQueues(t *testing.T) {
	dev := simt.Device(t)
	for _, sketches := range []bool{false, true} {
		c := Test{Shape: queueShape, Prefill: true, Packets: 256}
		c.Sketches = sketches
		r, err := Measure(dev, c)
		require.NoError(t, err)
		require.EqualValues(t, 256, r.Seen)
	}
}

// hazards are what racecheck has reported of the kernels that serve rings.
type hazards struct {
	queues   int      // between a ring's receive warp and a state warp, in the queue between them
	others   []string // the rest
	unknown  []string // lines of the tool that say nothing known
	reported int      // by its own count; -1: it has not come to the end
}

var (
	hazardAt   = regexp.MustCompile(`hazard detected at __shared__ 0x([0-9a-fA-F]+)`)
	hazardOf   = regexp.MustCompile(`(?:Read|Write) Thread \((\d+), *\d+, *\d+\)`)
	hazardsAll = regexp.MustCompile(`RACECHECK SUMMARY: (\d+) hazard`)
	hazardRest = regexp.MustCompile(`^=+\s*$|COMPUTE-SANITIZER|Current Value|Host Frame|Device Frame|host backtrace`)
)

// readHazards reads the output of racecheck. The shared memory of a launch begins at base.
func readHazards(in io.Reader, s Shape, base int) (h hazards, err error) {
	h.reported = -1
	at, warps, text := -1, []int{}, ""
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if m := hazardAt.FindStringSubmatch(line); m != nil {
			v, err := strconv.ParseInt(m[1], 16, 64)
			if err != nil {
				return h, err
			}
			at, warps, text = int(v)-base, warps[:0], line
			continue
		}
		if m := hazardOf.FindStringSubmatch(line); m != nil && at != -1 {
			thread, _ := strconv.Atoi(m[1])
			warps, text = append(warps, thread/abi.Lanes), text+"\n"+line
			if len(warps) == 2 {
				if inQueue(s, at, warps[0], warps[1]) {
					h.queues++
				} else {
					h.others = append(h.others, text)
				}
				at = -1
			}
			continue
		}
		if m := hazardsAll.FindStringSubmatch(line); m != nil {
			n, _ := strconv.Atoi(m[1])
			h.reported = max(h.reported, 0) + n
			continue
		}
		if strings.HasPrefix(line, "=====") && !hazardRest.MatchString(line) {
			h.unknown = append(h.unknown, line)
		}
	}
	return h, lines.Err()
}

// inQueue says whether a place in a block's shared memory belongs to the queue between two warps.
func inQueue(s Shape, at, a, b int) bool {
	warps, room := 1+s.Shards, abi.ReceiverScratch+s.Shards*abi.ShardScratch
	if at < 0 || a/warps != at/room || b/warps != at/room {
		return false
	}
	in := at%room - abi.ReceiverScratch
	return in >= 0 && in%abi.ShardScratch < abi.Queue && min(a%warps, b%warps) == 0 && max(a%warps, b%warps) == 1+in/abi.ShardScratch
}

// TestHazardsAreOnlyInTheQueues reads what racecheck has said of TestPacketsComeThroughTheQueues.
func TestHazardsAreOnlyInTheQueues(t *testing.T) {
	path := os.Getenv("AGP_RACECHECK")
	if path == "" {
		t.Skip("AGP_RACECHECK does not name the output of racecheck")
	}
	var best hazards
	for i, base := range []int{1024, 0} { // newer GPUs keep the first KiB for themselves
		f, err := os.Open(path)
		require.NoError(t, err)
		h, err := readHazards(f, queueShape, base)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		if i == 0 || len(h.others) < len(best.others) {
			best = h
		}
	}
	some := func(lines []string) string { return strings.Join(lines[:min(len(lines), 20)], "\n") }
	require.Empty(t, some(best.unknown), "racecheck says something else")
	require.GreaterOrEqual(t, best.reported, 0, "racecheck has not come to its end")
	require.Equal(t, best.reported, best.queues+len(best.others), "hazards that were not understood")
	require.Empty(t, some(best.others), "%d hazards that are not of the queues", len(best.others))
	t.Logf("%d hazards, all of bytes in the queues between the receive warp and a state warp", best.queues)
}

// TestRacecheckOutputIsUnderstood in the ways in which versions of the tool write it.
func TestRacecheckOutputIsUnderstood(t *testing.T) {
	second := abi.ReceiverScratch + abi.ShardScratch // the second state warp's
	say := func(at, first, then int) string {
		return fmt.Sprintf("========= Error: Potential RAW hazard detected at __shared__ 0x%x in block (0,0,0) :\n"+
			"=========     Write Thread (%d,0,0) at agp_rings+0x19f80\n=========     Read Thread (%d, 0, 0) at agp_rings+0x3cd0\n"+
			"=========     Current Value : 0, Incoming Value : 181\n=========\n", at, first, then)
	}
	for name, c := range map[string]struct {
		text           string
		queues, others int
	}{
		"queue":                           {say(second, 5, 70), 1, 0},
		"last byte, the other way around": {say(second+abi.Queue-1, 95, 31), 1, 0},
		"behind the queue":                {say(second+abi.Queue, 5, 70), 0, 1},
		"queue of another state warp":     {say(second, 5, 40), 0, 1},
		"two state warps":                 {say(second, 40, 70), 0, 1},
		"within a warp":                   {say(second, 64, 70), 0, 1},
		"memory of the receive warp":      {say(100, 5, 70), 0, 1},
		"several":                         {say(second, 5, 70) + say(100, 5, 70) + say(second+7, 70, 0), 2, 1},
	} {
		for _, base := range []int{0, 1024} {
			text := c.text
			if base > 0 {
				text = regexp.MustCompile(`0x[0-9a-f]+ in`).ReplaceAllStringFunc(text, func(s string) string {
					v, _ := strconv.ParseInt(strings.TrimSuffix(s[2:], " in"), 16, 64)
					return fmt.Sprintf("0x%X in", int(v)+base)
				})
			}
			all := "========= COMPUTE-SANITIZER\nPASS\n" + text + fmt.Sprintf("========= RACECHECK SUMMARY: %d hazards displayed (%d errors, 0 warnings)\n", c.queues+c.others, c.queues+c.others)
			h, err := readHazards(strings.NewReader(all), queueShape, base)
			require.NoError(t, err)
			require.Equal(t, []int{c.queues, c.others}, []int{h.queues, len(h.others)}, name)
			require.Equal(t, c.queues+c.others, h.reported, name)
			require.Empty(t, h.unknown, name)
		}
	}
	h, err := readHazards(strings.NewReader("========= Error: Race reported between Read access at agp_rings+0x3cd0\n"), queueShape, 0)
	require.NoError(t, err)
	require.Equal(t, -1, h.reported)
	require.Len(t, h.unknown, 1)
}
