package runner

import (
	"bytes"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/influxdata/telegraf"
	"github.com/influxdata/telegraf/metric"
)

// maxLine bounds a line including its newline. execd of older telegraf releases
// stops reading for good after one line above 64 KiB.
const maxLine = 32 << 10

// minTime and maxTime are the times that int64 nanoseconds can hold, minus room
// for moving a point.
var (
	minTime = time.Unix(0, math.MinInt64+int64(time.Hour))
	maxTime = time.Unix(0, math.MaxInt64-int64(time.Hour))
)

type tag struct{ key, value string }

type field struct {
	key   string
	value any
}

// encoder turns metrics into line protocol. Its buffers are reused, so that
// encoding does not allocate. It is not safe for concurrent use; the queue's
// lock guards it.
type encoder struct {
	stats  *stats
	unique *unique
	limit  int // longest line, bytes

	tags   []tag
	fields []field
	header []byte // measurement and tags
	footer []byte // time and newline
}

// fromMaps takes over the arguments of AddFields. Keys are sorted: the order of
// a map is random, and equal metrics should give equal lines.
func (e *encoder) fromMaps(tags map[string]string, fields map[string]any) {
	e.tags, e.fields = e.tags[:0], e.fields[:0]
	for k, v := range tags {
		e.tags = append(e.tags, tag{k, v})
	}
	for k, v := range fields {
		e.fields = append(e.fields, field{k, v})
	}
	slices.SortFunc(e.tags, func(a, b tag) int { return strings.Compare(a.key, b.key) })
	slices.SortFunc(e.fields, func(a, b field) int { return strings.Compare(a.key, b.key) })
}

// fromMetric takes over a metric in the order in which it lists its parts.
func (e *encoder) fromMetric(m telegraf.Metric) {
	e.tags, e.fields = e.tags[:0], e.fields[:0]
	for _, t := range m.TagList() {
		e.tags = append(e.tags, tag{t.Key, t.Value})
	}
	for _, f := range m.FieldList() {
		e.fields = append(e.fields, field{f.Key, f.Value})
	}
}

// encode appends the lines of the metric last taken over. One metric gives more
// than one line if its fields do not fit into one; the lines share series and
// time, so InfluxDB joins them again. ok is false if there was nothing to write;
// dst is then unchanged and the reason counted.
func (e *encoder) encode(dst []byte, name string, t time.Time, counter bool) (out []byte, ok bool) {
	if t.Before(minTime) || t.After(maxTime) {
		e.stats.drop(dropTimeRange)
		return dst, false
	}
	e.header = appendName(e.header[:0], name)
	// A line that starts with # is a comment.
	if len(e.header) == 0 || e.header[0] == '#' {
		e.stats.drop(dropInvalidName)
		return dst, false
	}
	for _, t := range e.tags {
		e.header = appendTag(e.header, t)
	}
	// 21 bytes hold a space, the longest time and the newline; a line without
	// room for any field cannot be split.
	if len(e.header)+len(" a=0i")+21 > e.limit {
		e.stats.drop(dropSeriesTooLong)
		return dst, false
	}

	start := len(dst)
	first, claimed := true, false
	lineStart := start
	for _, f := range e.fields {
		mark := len(dst)
		if first {
			dst = append(dst, e.header...)
			dst = append(dst, ' ')
		} else {
			dst = append(dst, ',')
		}
		pair := len(dst)
		var why reason
		var good bool
		if dst, why, good = e.appendField(dst, f, counter); !good {
			e.stats.drop(why)
			dst = dst[:mark]
			continue
		}
		if first {
			// The time is claimed only now that there is something to write.
			if !claimed {
				e.claim(t.UnixNano())
				claimed = true
			}
			if len(dst)-lineStart+len(e.footer) > e.limit {
				e.stats.drop(dropFieldTooLong)
				dst = dst[:mark]
				continue
			}
			first = false
			continue
		}
		if len(dst)-lineStart+len(e.footer) <= e.limit {
			continue
		}
		// Close the line before this field and move the field to a new one.
		n := len(dst) - pair
		if len(e.header)+1+n+len(e.footer) > e.limit {
			e.stats.drop(dropFieldTooLong)
			dst = dst[:mark]
			continue
		}
		gap := len(e.footer) + len(e.header) // ',' makes room for ' '
		dst = slices.Grow(dst, gap)[:len(dst)+gap]
		copy(dst[len(dst)-n:], dst[pair:pair+n])
		at := mark + copy(dst[mark:], e.footer)
		lineStart = at
		at += copy(dst[at:], e.header)
		dst[at] = ' '
	}
	if first {
		e.stats.drop(dropNoFields)
		return dst[:start], false
	}
	return append(dst, e.footer...), true
}

// claim sets the footer to the first free time of the series.
func (e *encoder) claim(ns int64) {
	free := e.unique.claim(xxhash.Sum64(e.header), ns)
	if free != ns {
		e.stats.adjusted.Add(1)
	}
	e.footer = append(e.footer[:0], ' ')
	e.footer = strconv.AppendInt(e.footer, free, 10)
	e.footer = append(e.footer, '\n')
}

func (e *encoder) appendField(dst []byte, f field, counter bool) ([]byte, reason, bool) {
	start := len(dst)
	dst = appendEscaped(dst, f.key, inKey)
	// A key that ends in a backslash would swallow the equals sign.
	if len(dst) == start || dst[len(dst)-1] == '\\' {
		return dst, dropFieldKey, false
	}
	dst = append(dst, '=')
	switch v := f.value.(type) {
	case float64:
		return appendFloat(dst, v)
	case int64:
		return appendInt(dst, v), 0, true
	case uint64:
		return e.appendUint(dst, v, counter), 0, true
	case string:
		return appendString(dst, v), 0, true
	case bool:
		return strconv.AppendBool(dst, v), 0, true
	case int:
		return appendInt(dst, int64(v)), 0, true
	case uint:
		return e.appendUint(dst, uint64(v), counter), 0, true
	case int32:
		return appendInt(dst, int64(v)), 0, true
	case uint32:
		return appendInt(dst, int64(v)), 0, true
	case int16:
		return appendInt(dst, int64(v)), 0, true
	case uint16:
		return appendInt(dst, int64(v)), 0, true
	case int8:
		return appendInt(dst, int64(v)), 0, true
	case uint8:
		return appendInt(dst, int64(v)), 0, true
	case float32:
		return appendFloat(dst, float64(v))
	case []byte:
		return appendString(dst, string(v)), 0, true
	default:
		// Pointers and the like: telegraf's own conversion, which allocates.
		list := metric.New("", nil, map[string]any{"v": v}, time.Time{}).FieldList()
		if len(list) == 0 {
			return dst, dropFieldType, false
		}
		return e.appendField(dst[:start], field{f.key, list[0].Value}, counter)
	}
}

func (e *encoder) appendUint(dst []byte, v uint64, counter bool) []byte {
	if v > math.MaxInt64 {
		e.stats.wrapped.Add(1)
		if counter {
			v &= math.MaxInt64
		} else {
			v = math.MaxInt64
		}
	}
	return appendInt(dst, int64(v))
}

func appendInt(dst []byte, v int64) []byte {
	return append(strconv.AppendInt(dst, v, 10), 'i')
}

func appendFloat(dst []byte, v float64) ([]byte, reason, bool) {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return dst, dropFieldNotFinite, false
	}
	return strconv.AppendFloat(dst, v, 'f', -1, 64), 0, true
}

// What must be escaped where, as bits of classes.
const (
	inName = 1 << iota
	inKey  // also in tag values
	inString
)

var classes = func() (c [256]uint8) {
	for _, special := range "\t\n\v\f\r ," {
		c[special] = inName | inKey
	}
	c['='] = inKey
	c['\\'] = inString
	c['"'] = inString
	return c
}()

func appendName(dst []byte, name string) []byte {
	return trimBackslashes(appendEscaped(dst, name, inName), 0)
}

// appendTag leaves out a tag that line protocol cannot hold: an empty key or
// value, also one that is empty without its trailing backslashes.
func appendTag(dst []byte, t tag) []byte {
	start := len(dst)
	dst = append(dst, ',')
	key := len(dst)
	dst = trimBackslashes(appendEscaped(dst, t.key, inKey), key)
	if len(dst) == key {
		return dst[:start]
	}
	dst = append(dst, '=')
	value := len(dst)
	dst = trimBackslashes(appendEscaped(dst, t.value, inKey), value)
	if len(dst) == value {
		return dst[:start]
	}
	return dst
}

// trimBackslashes removes backslashes from the end of dst, but not before from.
func trimBackslashes(dst []byte, from int) []byte {
	return dst[:from+len(bytes.TrimRight(dst[from:], `\`))]
}

// appendEscaped puts a backslash before each byte of the class; control
// characters become the letters that name them. Where a backslash itself cannot be
// escaped, those in front of a separator are left out: together with the added one they
// would be a pair, and the separator would separate.
func appendEscaped(dst []byte, s string, class uint8) []byte {
	done, start := 0, len(dst)
	for i := 0; i < len(s); i++ {
		c := s[i]
		if classes[c]&class == 0 {
			continue
		}
		dst = append(dst, s[done:i]...)
		done = i + 1
		switch c {
		case ' ', ',', '=':
			dst = trimBackslashes(dst, start)
		case '\t':
			c = 't'
		case '\n':
			c = 'n'
		case '\v':
			c = 'v'
		case '\f':
			c = 'f'
		case '\r':
			c = 'r'
		}
		dst = append(dst, '\\', c)
	}
	return append(dst, s[done:]...)
}

func appendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	dst = appendEscaped(dst, s, inString)
	return append(dst, '"')
}
