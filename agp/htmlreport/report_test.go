package htmlreport

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

var start = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC).UnixNano()

// flowRecord is a record of n packets of 100 bytes in one second.
func flowRecord(class string, at int64, n uint64) *telemetry.Record {
	r := &telemetry.Record{IPVersion: 4, Protocol: 6, StartNs: at, EndNs: at + int64(time.Second)}
	r.Dir[telemetry.Fwd].Packets, r.Dir[telemetry.Fwd].WireBytes = n, 100*n
	r.SizeHist[5] = uint32(n)
	r.DelayHist[40] = uint32(n - 1)
	r.Outputs = []telemetry.Output{{Field: "class", Label: class, Score: 0.9}, {Field: "app", Label: "app of " + class}}
	return r
}

func render(t *testing.T, b *Builder, run Run, s *telemetry.Snapshot) (string, *html.Node) {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, b.Write(&out, run, s, 1.5))
	text := out.String()
	root, err := html.Parse(&out)
	require.NoError(t, err)
	return text, root
}

func attribute(n *html.Node, name string) string {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

func find(root *html.Node, f func(*html.Node) bool) (found []*html.Node) {
	for n := range root.Descendants() {
		if n.Type == html.ElementNode && f(n) {
			found = append(found, n)
		}
	}
	return found
}

func byID(t *testing.T, root *html.Node, id string) *html.Node {
	t.Helper()
	found := find(root, func(n *html.Node) bool { return attribute(n, "id") == id })
	require.Len(t, found, 1, id)
	return found[0]
}

// values are the exact numbers with a name, in the order of the page.
func values(t *testing.T, root *html.Node, name string) (list []uint64) {
	t.Helper()
	for _, n := range find(root, func(n *html.Node) bool { return n.Data == "data" && attribute(n, "data-name") == name }) {
		v, err := strconv.ParseUint(attribute(n, "value"), 10, 64)
		require.NoError(t, err)
		list = append(list, v)
	}
	return list
}

func words(n *html.Node) string {
	var b strings.Builder
	for d := range n.Descendants() {
		if d.Type == html.TextNode {
			b.WriteString(d.Data + " ")
		}
	}
	return strings.Join(strings.Fields(b.String()), " ")
}

func TestEveryNumberOfThePageIsThatOfTheRun(t *testing.T) {
	var b Builder
	b.Record(flowRecord("benign", start, 1000))
	b.Record(flowRecord("tunnel", start+int64(3*time.Second), 23))
	b.Record(flowRecord("benign", start-int64(time.Minute), 7))
	b.Alert(&telemetry.Alert{TimeNs: start, Kind: "port_scan", Src: "192.0.2.1", Dst: "192.0.2.2", DstPort: 80, Protocol: 6, Count: 4321})
	s := &telemetry.Snapshot{
		Engine: telemetry.EngineRow{Pipeline: "cpu", PacketsSeen: 1_234_567, PacketsRecorded: 1030, Records: 3, Alerts: 1,
			Drops: map[string]uint64{"not_ip": 1_233_500, "truncated": 37}, Errors: map[string]uint64{"bad_block": 2}},
		Traffic: []telemetry.TrafficRow{{App: "web", Class: "benign", Protocol: 6, Flows: 2, Packets: 1007, Bytes: 100_700}, {Class: "tunnel", Protocol: 6, Flows: 1, Packets: 23, Bytes: 2300}},
		Top:     []telemetry.TopRow{{Metric: "src_bytes", Rank: 1, Src: "192.0.2.1", Value: 99_000}, {Metric: "src_flows", Rank: 1, Src: "192.0.2.9", Value: 3}},
	}
	text, root := render(t, &b, Run{Files: []string{"a.pcap"}, Version: "v1", Note: "2 frames could not be read"}, s)

	for name, want := range map[string][]uint64{
		"packets_seen": {1_234_567}, "packets_recorded": {1030}, "packets_dropped": {1_233_537}, "records": {3}, "alerts": {1},
		"not_ip": {1_233_500}, "truncated": {37}, "bad_block": {2}, "port_scan": {1}, "count": {4321},
		"flows": {2, 1}, "packets": {1007, 23}, "top": {99_000, 3}, "size_total": {1030}, "delay_total": {1027},
	} {
		require.Equal(t, want, values(t, root, name), name)
	}
	require.Equal(t, []uint64{100_700, 2300}, values(t, byID(t, root, "plot-class"), "bytes"))
	require.Equal(t, []uint64{100_700, 2300}, values(t, byID(t, root, "plot-app"), "bytes"))
	require.Equal(t, []uint64{103_000}, values(t, byID(t, root, "plot-protocol"), "bytes"))
	require.Equal(t, []uint64{100_700, 2300}, values(t, byID(t, root, "traffic"), "bytes"))
	require.Contains(t, words(byID(t, root, "plot-class")), "benign 101 kB tunnel 2.3 kB")
	require.Contains(t, words(byID(t, root, "totals")), "packets_seen 1,234,567")
	require.Contains(t, words(byID(t, root, "alerts")), "2026-03-04 05:06:07.000 UTC port_scan 192.0.2.1 192.0.2.2 port 80 tcp 4,321")
	require.Equal(t, "2 frames could not be read", words(byID(t, root, "note")))
	require.Contains(t, text, "2026-03-04 05:05:07.000 UTC to 2026-03-04 05:06:11.000 UTC")

	bars := find(byID(t, root, "hist-size"), func(n *html.Node) bool { return n.Data == "rect" })
	require.Len(t, bars, 1)
	require.Equal(t, []string{"5", "1030"}, []string{attribute(bars[0], "data-bin"), attribute(bars[0], "data-count")})
	require.Equal(t, "from 80: 1,030", words(bars[0]))
}

func TestThePageNeedsNothingFromElsewhere(t *testing.T) {
	var b Builder
	b.Record(flowRecord("benign", start, 10))
	_, root := render(t, &b, Run{}, &telemetry.Snapshot{})
	require.Empty(t, find(root, func(n *html.Node) bool {
		switch n.Data {
		case "script", "img", "iframe", "object", "embed", "video", "audio", "form", "a", "base", "use", "image":
			return true
		case "link":
			return attribute(n, "href") != "data:," // no favicon is asked for
		}
		return attribute(n, "src") != "" || attribute(n, "style") != ""
	}))
	for _, n := range find(root, func(n *html.Node) bool { return n.Data == "style" }) {
		require.NotContains(t, n.FirstChild.Data, "url(")
		require.NotContains(t, n.FirstChild.Data, "@import")
	}
	policy := find(root, func(n *html.Node) bool { return attribute(n, "http-equiv") == "Content-Security-Policy" })
	require.Len(t, policy, 1)
	require.True(t, strings.HasPrefix(attribute(policy[0], "content"), "default-src 'none';"))
}

// Whatever stands in a name, the page has the same elements as with a harmless one.
func TestNamesFromOutsideAreText(t *testing.T) {
	shape := func(name string) (list []string, all string) {
		var b Builder
		b.Record(flowRecord(name, start, 10))
		b.Alert(&telemetry.Alert{Kind: name, Class: name, Src: name, Dst: name, Model: name})
		s := &telemetry.Snapshot{
			Engine: telemetry.EngineRow{Pipeline: name, PipelineReason: name, Models: []string{name},
				Drops: map[string]uint64{name: 1}, Errors: map[string]uint64{name: 1}},
			Traffic: []telemetry.TrafficRow{{App: name, Class: name}},
			Top:     []telemetry.TopRow{{Metric: name, Src: name}, {Metric: name, Dst: name}, {Metric: name, Protocol: name}},
		}
		text, root := render(t, &b, Run{Files: []string{name}, Version: name, Note: name}, s)
		for _, n := range find(root, func(*html.Node) bool { return true }) {
			var names []string
			for _, a := range n.Attr {
				names = append(names, a.Key)
			}
			list = append(list, n.Data+" "+strings.Join(names, " "))
		}
		return list, text
	}
	want, _ := shape("harmless")
	for _, name := range []string{
		`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `' onmouseover='alert(1)`, `</title></style><script>`, `--><b>`, "`${7*7}`",
		`{{.Run}}`, `]]><svg onload=alert(1)>`, `javascript:alert(1)`, `&lt;script&gt;`, "\x00\xff\xfe<b>", `</data></td></table><h1>`,
	} {
		got, text := shape(name)
		require.Equal(t, want, got, name)
		require.NotContains(t, text, "<script")
		require.NotContains(t, text, "<b>")
	}
	_, text := shape("\u202egpj.exe\u202c \x1b[31mred")
	require.NotContains(t, text, "\u202e", "nothing turns the text around")
	require.NotContains(t, text, "\x1b")
	_, text = shape(strings.Repeat("long", 100_000))
	require.Less(t, len(text), 100_000)
}

// However long the input, a page of everything at its limit stays small.
func TestThePageIsBounded(t *testing.T) {
	var b Builder
	s := &telemetry.Snapshot{Engine: telemetry.EngineRow{Drops: map[string]uint64{}, Alerts: 5000}}
	random := rand.New(rand.NewPCG(1, 2))
	var bytes uint64
	for i := range 50_000 {
		at := start + random.Int64N(int64(40*365*24*time.Hour))
		r := flowRecord(fmt.Sprintf("class %d", i%500), at, 1+uint64(i%7))
		r.EndNs += random.Int64N(int64(5 * time.Minute))
		r.Protocol = uint8(i)
		for k := range r.SizeHist {
			r.SizeHist[k] = random.Uint32()
		}
		b.Record(r)
		bytes += r.Dir[0].WireBytes
	}
	for i := range 5000 {
		name := fmt.Sprintf("name %d %s", i, strings.Repeat("x", 300))
		b.Alert(&telemetry.Alert{Kind: name, Class: name, Src: name, Dst: name})
		s.Traffic = append(s.Traffic, telemetry.TrafficRow{App: name, Bytes: 10})
		s.Engine.Drops[name] = 3
		s.Top = append(s.Top, telemetry.TopRow{Metric: "src_bytes", Rank: uint16(i), Src: name})
	}
	text, root := render(t, &b, Run{Files: make([]string, 1000)}, s)
	require.Less(t, len(text), 800_000)
	for _, id := range []string{"plot-class", "plot-app", "plot-protocol"} {
		sum := uint64(0)
		list := values(t, byID(t, root, id), "bytes")
		require.LessOrEqual(t, len(list), colours)
		for _, n := range list {
			sum += n
		}
		require.Equal(t, bytes, sum, "what is joined still counts")
	}
	require.LessOrEqual(t, len(b.class.series), maxSeries+1)
	sum := uint64(0)
	for _, n := range values(t, byID(t, root, "traffic"), "bytes") {
		sum += n
	}
	require.EqualValues(t, 50_000, sum)
	require.Contains(t, words(byID(t, root, "alerts")), "and 4800 more")
	require.Contains(t, text, "and 980 more")
}

func TestBytesOverTimeAddUpExactly(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		var line timeline
		want := map[string]uint64{}
		for range 1 + random.IntN(40) {
			name := strconv.Itoa(random.IntN(3))
			first := start + random.Int64N(1<<(20+random.IntN(40)))
			last := first + random.Int64N(1<<(1+random.IntN(50)))
			n := random.Uint64N(1 << (1 + random.IntN(50)))
			line.add(name, first, last, n)
			want[name] += n
		}
		require.Less(t, line.high-line.low, int64(points))
		for name, sum := range want {
			var got uint64
			for p, n := range line.series[name] {
				require.GreaterOrEqual(t, p, line.low)
				require.LessOrEqual(t, p, line.high)
				got += n
			}
			require.Equal(t, sum, got)
		}
	}
}

func TestBytesAreSpreadOverTheTimeOfAFlow(t *testing.T) {
	var line timeline
	ms := int64(time.Millisecond)
	line.add("a", 10*ms, 14*ms, 400)
	require.Equal(t, map[int64]uint64{10: 100, 11: 100, 12: 100, 13: 100, 14: 0}, line.series["a"])
	line.add("a", 10*ms, 10*ms, 7) // one packet
	require.EqualValues(t, 107, line.series["a"][10])
	line.add("a", 10_000*ms, 10_000*ms, 1)
	require.Equal(t, 100*ms, line.width, "points became wider")
	require.Equal(t, map[int64]uint64{0: 407, 100: 1}, line.series["a"])
}

// Times that a broken capture can have.
func TestAbsurdTimesAreShown(t *testing.T) {
	var b Builder
	for _, at := range []int64{math.MinInt64 + 1, -1, 0, start, math.MaxInt64 - int64(time.Hour)} {
		b.Record(flowRecord("x", at, 10))
	}
	backwards := flowRecord("x", start, 10)
	backwards.EndNs = 0
	b.Record(backwards)
	_, root := render(t, &b, Run{}, &telemetry.Snapshot{})
	require.Equal(t, []uint64{6000}, values(t, byID(t, root, "plot-class"), "bytes"))
}

func TestAnEmptyRunSaysSo(t *testing.T) {
	_, root := render(t, &Builder{}, Run{}, &telemetry.Snapshot{})
	require.Contains(t, words(byID(t, root, "plot-class")), "No flow records.")
	require.Contains(t, words(byID(t, root, "hist-size")), "Nothing counted.")
	require.Equal(t, "Alerts None.", words(byID(t, root, "alerts")))
	require.Equal(t, []uint64{0}, values(t, root, "packets_seen"))
}
