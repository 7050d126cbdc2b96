package runner

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/influxdata/telegraf"
	"github.com/influxdata/telegraf/metric"
	"github.com/influxdata/telegraf/plugins/serializers/influx"
)

func newTestEncoder() *encoder {
	return &encoder{stats: &stats{}, unique: newUnique(uniqueWindow), limit: maxLine}
}

func encodeMetric(e *encoder, m telegraf.Metric) (string, bool) {
	e.fromMetric(m)
	out, ok := e.encode(nil, m.Name(), m.Time(), m.Type() == telegraf.Counter)
	return string(out), ok
}

func reference(t testing.TB, m telegraf.Metric) (string, bool) {
	t.Helper()
	s := &influx.Serializer{}
	require.NoError(t, s.Init())
	out, err := s.Serialize(m)
	return string(out), err == nil
}

// Byte for byte the lines of telegraf's serializer.
func TestEncodeEqualsTelegrafSerializer(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	alphabet := []string{"a", "b", "é", "世", " ", ",", "=", "\\", "\"", "\t", "\n", "\r", "\f", "'", "#", "\x00", "\xff", "0"}
	text := func(max int) string {
		var b strings.Builder
		for range rng.IntN(max + 1) {
			b.WriteString(alphabet[rng.IntN(len(alphabet))])
		}
		return b.String()
	}
	values := []any{int64(0), int64(math.MinInt64), int64(math.MaxInt64), uint64(5), uint64(math.MaxUint64), 0.0, math.Copysign(0, -1),
		1.5, math.MaxFloat64, math.SmallestNonzeroFloat64, 1e21, math.NaN(), math.Inf(1), math.Inf(-1), true, false, "", int8(-1), int16(-2),
		int32(-3), int(-4), uint8(1), uint16(2), uint32(3), uint(4), float32(0.1), []byte("bytes"), nil, struct{}{}}
	e := newTestEncoder()
	compared := 0
	for i := range 50_000 {
		tags := map[string]string{}
		for range rng.IntN(5) {
			tags[text(4)] = text(6)
		}
		fields := map[string]any{}
		for range rng.IntN(6) {
			if v := values[rng.IntN(len(values))]; rng.IntN(3) > 0 {
				fields[text(4)] = v
			} else {
				fields[text(4)] = text(8)
			}
		}
		m := metric.New(text(5), tags, fields, time.Unix(0, int64(i)))
		if !representable(m) {
			continue
		}
		want, wantOK := reference(t, m)
		got, ok := encodeMetric(e, m)
		require.Equal(t, wantOK, ok, "%v", m)
		require.Equal(t, want, got)
		compared++
	}
	require.Greater(t, compared, 10_000)
}

// representable leaves out the metrics that telegraf's serializer writes in a
// form that telegraf's parser does not read back.
func representable(m telegraf.Metric) bool {
	pairs := func(s string) bool { // a backslash and the one that escapes what follows
		return strings.Contains(s, `\ `) || strings.Contains(s, `\,`) || strings.Contains(s, `\=`)
	}
	if strings.HasSuffix(m.Name(), `\`) || strings.HasPrefix(m.Name(), "#") || pairs(m.Name()) {
		return false
	}
	for _, t := range m.TagList() {
		if pairs(t.Key) || pairs(t.Value) {
			return false
		}
	}
	for _, f := range m.FieldList() {
		if strings.HasSuffix(f.Key, `\`) || pairs(f.Key) {
			return false
		}
	}
	return true
}

func TestEncodeMapsEqualMetric(t *testing.T) {
	text, number := "pointed", int64(7)
	fields := map[string]any{
		"i": 1, "u": uint8(2), "f": float32(0.5), "s": "x", "b": true, "bytes": []byte("y"), "p": &text, "n": &number,
		"nil": (*int64)(nil), "none": nil,
	}
	tags := map[string]string{"b": "2", "a": "1", "empty": ""}
	e := newTestEncoder()
	e.fromMaps(tags, fields)
	out, ok := e.encode(nil, "m", time.Unix(0, 1), false)
	require.True(t, ok)
	require.Equal(t, "m,a=1,b=2 b=true,bytes=\"y\",f=0.5,i=1i,n=7i,p=\"pointed\",s=\"x\",u=2i 1\n", string(out))
	require.EqualValues(t, 2, e.stats.drops[dropFieldType].Load())
}

// What telegraf writes but nobody can read is repaired or dropped, and counted.
func TestEncodeUnreadableNames(t *testing.T) {
	at := time.Unix(0, 1)
	for _, c := range []struct {
		name string
		m    telegraf.Metric
		want string
		why  reason
	}{
		{"empty name", metric.New("", nil, value(1), at), "", dropInvalidName},
		{"only backslashes", metric.New(`\\`, nil, value(1), at), "", dropInvalidName},
		{"comment", metric.New("#m", nil, value(1), at), "", dropInvalidName},
		{"name ends in backslash", metric.New(`m\`, map[string]string{"a": "b"}, value(1), at), "m,a=b value=1i 1\n", -1},
		{"field key ends in backslash", metric.New("m", nil, map[string]any{`k\`: 1}, at), "", dropFieldKey},
		{"empty field key", metric.New("m", nil, map[string]any{"": 1}, at), "", dropFieldKey},
		{"tag of backslashes", metric.New("m", map[string]string{"a": `\\`, `\`: "x"}, value(1), at), "m value=1i 1\n", -1},
		{"vertical tab", metric.New("\v", map[string]string{"\v": "\v"}, map[string]any{"\v": "\v"}, at), "\\v,\\v=\\v \\v=\"\v\" 1\n", -1},
		{"no fields", metric.New("m", nil, nil, at), "", dropNoFields},
		{"not a number", metric.New("m", nil, value(math.NaN()), at), "", dropFieldNotFinite},
		{"year 1", metric.New("m", nil, value(1), time.Time{}), "", dropTimeRange},
		{"year 3000", metric.New("m", nil, value(1), time.Date(3000, 1, 1, 0, 0, 0, 0, time.UTC)), "", dropTimeRange},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newTestEncoder()
			got, ok := encodeMetric(e, c.m)
			require.Equal(t, c.want, got)
			require.Equal(t, c.want != "", ok)
			if c.why >= 0 {
				require.EqualValues(t, 1, e.stats.drops[c.why].Load())
			}
		})
	}
}

func TestChecklist03_LongLinesAreSplit(t *testing.T) {
	e := newTestEncoder()
	fields := map[string]any{"z_too_long": strings.Repeat("x", maxLine), "a_too_long": strings.Repeat("\"", maxLine)}
	for i := range 200 {
		fields[fmt.Sprintf("f%03d", i)] = strings.Repeat("v", 1000+i)
	}
	e.fromMaps(map[string]string{"t": strings.Repeat("w", 1000)}, fields)
	out, ok := e.encode([]byte("before\n"), "m", time.Unix(0, 5), false)
	require.True(t, ok)
	rest, found := strings.CutPrefix(string(out), "before\n")
	require.True(t, found)
	lines := strings.SplitAfter(rest, "\n")
	require.Empty(t, lines[len(lines)-1])
	lines = lines[:len(lines)-1]
	require.Greater(t, len(lines), 6)
	for _, line := range lines {
		require.LessOrEqual(t, len(line), maxLine)
	}
	got := map[string]any{}
	for _, m := range parseLines(t, rest) {
		require.EqualValues(t, 5, m.Time().UnixNano())
		require.Equal(t, map[string]string{"t": strings.Repeat("w", 1000)}, m.Tags())
		for _, f := range m.FieldList() {
			require.NotContains(t, got, f.Key)
			got[f.Key] = f.Value
		}
	}
	delete(fields, "z_too_long")
	delete(fields, "a_too_long")
	require.Equal(t, fields, got)
	require.EqualValues(t, 2, e.stats.drops[dropFieldTooLong].Load())
	require.Zero(t, e.stats.adjusted.Load())
}

// Around the limit every length gives lines that fit and lose nothing.
func TestEncodeEveryLengthAroundTheLimit(t *testing.T) {
	for extra := range 80 {
		e := newTestEncoder()
		e.limit = 120
		e.fromMaps(map[string]string{"t": "tag"}, map[string]any{"a": 1, "b": strings.Repeat("x", extra), "c": 2.5, "d": true})
		out, ok := e.encode(nil, "m", time.Unix(0, math.MaxInt64/2), false)
		require.True(t, ok)
		n := 0
		for _, m := range parseLines(t, string(out)) {
			n += len(m.FieldList())
		}
		require.EqualValues(t, 4, n+int(e.stats.drops[dropFieldTooLong].Load()))
		for _, line := range strings.SplitAfter(string(out), "\n") {
			require.LessOrEqual(t, len(line), 120)
		}
	}
}

func TestEncodeSeriesTooLong(t *testing.T) {
	e := newTestEncoder()
	e.fromMaps(map[string]string{"t": strings.Repeat("x", maxLine)}, map[string]any{"v": 1})
	_, ok := e.encode(nil, "m", time.Unix(0, 1), false)
	require.False(t, ok)
	require.EqualValues(t, 1, e.stats.drops[dropSeriesTooLong].Load())
}

func TestChecklist03_SeriesAndTimeAreUnique(t *testing.T) {
	e := newTestEncoder()
	var out []byte
	add := func(tag string, ns int64) {
		e.fromMaps(map[string]string{"t": tag}, map[string]any{"v": 1})
		var ok bool
		out, ok = e.encode(out, "m", time.Unix(0, ns), false)
		require.True(t, ok)
	}
	add("a", 10)
	add("a", 20)
	add("a", 10) // not adjacent
	add("b", 10) // another series
	add("a", 11) // the place that the third point took
	add("a", 10)
	var times []string
	for _, m := range parseLines(t, string(out)) {
		times = append(times, fmt.Sprint(m.Tags()["t"], m.Time().UnixNano()))
	}
	require.Equal(t, []string{"a10", "a20", "a11", "b10", "a12", "a13"}, times)
	require.EqualValues(t, 3, e.stats.adjusted.Load())
}

// No pair of series and time comes twice, however the input repeats itself.
func TestUniqueProperty(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	u := newUnique(1 << 16)
	type point struct {
		series uint64
		ns     int64
	}
	seen := map[point]bool{}
	for range 60_000 {
		p := point{rng.Uint64N(3), rng.Int64N(5_000)}
		got := u.claim(p.series, p.ns)
		require.GreaterOrEqual(t, got, p.ns)
		p.ns = got
		require.False(t, seen[p], "%v twice", p)
		seen[p] = true
	}
}

// Many equal points take linear time, and memory stays bounded.
func TestUniqueManyEqualPoints(t *testing.T) {
	const window = 1 << 10
	u := newUnique(window)
	for i := range int64(100_000) {
		require.Equal(t, i, u.claim(1, 0))
	}
	require.LessOrEqual(t, len(u.current), window)
	require.LessOrEqual(t, len(u.previous), window)
}

func benchmarkMaps() (map[string]string, map[string]any) {
	return map[string]string{"interface": "eth0", "app": "dns", "class": "benign", "protocol": "udp"},
		map[string]any{"flows": 12, "packets_fwd": 1234567, "packets_rev": 7654321, "bytes_fwd": uint64(123456789012),
			"bytes_rev": uint64(987654321098), "retransmits": 0, "first_reply_ns": 1234567.25, "note": "some text"}
}

func TestEncodeDoesNotAllocate(t *testing.T) {
	e := newTestEncoder()
	e.unique = newUnique(64) // reaches its steady state at once
	tags, fields := benchmarkMaps()
	buf := make([]byte, 0, 4096)
	ns := int64(0)
	encode := func() {
		ns++
		e.fromMaps(tags, fields)
		buf, _ = e.encode(buf[:0], "agp_traffic", time.Unix(0, ns), false)
	}
	for range 1000 {
		encode()
	}
	require.Zero(t, testing.AllocsPerRun(1000, encode))
}

func BenchmarkEncode(b *testing.B) {
	e := newTestEncoder()
	tags, fields := benchmarkMaps()
	buf := make([]byte, 0, 4096)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		e.fromMaps(tags, fields)
		buf, _ = e.encode(buf[:0], "agp_traffic", time.Unix(0, int64(i)), false)
	}
}

func BenchmarkTelegrafSerializer(b *testing.B) {
	s := &influx.Serializer{}
	require.NoError(b, s.Init())
	tags, fields := benchmarkMaps()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		_, _ = s.Serialize(metric.New("agp_traffic", tags, fields, time.Unix(0, int64(i))))
	}
}

// Every line that is written reads back as the metric that was added.
func FuzzEncodeReadsBack(f *testing.F) {
	f.Add("m", "tag", "value", "field", "text", 1.5, int64(7), int64(0))
	f.Add(`m\`, `t\`, `v\`, `f\`, `"\`, math.NaN(), int64(-1), int64(math.MaxInt64))
	f.Add(`\ `, `\,`, `\=`, `\ \`, `\`, 1.5, int64(24), int64(0))
	f.Add("#,= ", "\n", "\r\n", "=", "a\nb", math.Inf(1), int64(0), int64(math.MinInt64))
	f.Fuzz(func(t *testing.T, name, tagKey, tagValue, key, text string, float float64, integer, ns int64) {
		e := newTestEncoder()
		e.fromMaps(map[string]string{tagKey: tagValue}, map[string]any{key: text, key + "f": float, key + "i": integer})
		out, ok := e.encode(nil, name, time.Unix(0, ns), false)
		if !ok {
			require.Empty(t, out)
			return
		}
		metrics := parseLines(t, string(out))
		require.NotEmpty(t, metrics)
		n := 0
		for _, m := range metrics {
			n += len(m.FieldList())
			require.LessOrEqual(t, len(m.TagList()), 1)
		}
		dropped := 0
		for r := dropFieldNotFinite; r < reasons; r++ {
			dropped += int(e.stats.drops[r].Load())
		}
		require.Equal(t, 3, n+dropped)
		if i := slices.IndexFunc(metrics[0].FieldList(), func(f *telegraf.Field) bool { return f.Value == integer }); dropped == 0 {
			require.GreaterOrEqual(t, i, 0)
		}
	})
}
