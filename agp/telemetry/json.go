package telemetry

import (
	"math"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"unicode/utf8"
)

// jsonWriter is the Visitor behind the JSON lines. The opening brace and the
// type are written before the first reading, so every reading starts with a comma.
type jsonWriter struct{ buf []byte }

var jsonWriters = sync.Pool{New: func() any { return new(jsonWriter) }}

// startJSON returns a writer that appends to dst.
func startJSON(dst []byte, kind string) *jsonWriter {
	w := jsonWriters.Get().(*jsonWriter)
	w.buf = dst
	w.buf = append(w.buf, `{"type":"`...)
	w.buf = append(w.buf, kind...)
	w.buf = append(w.buf, '"')
	return w
}

// AppendJSON appends r as one JSON object without a newline. It does not
// allocate if dst has room.
func AppendJSON(dst []byte, r *Record) []byte {
	w := startJSON(dst, "flow")
	Visit(r, w)
	return w.done()
}

// AppendAlertJSON appends a as one JSON object without a newline.
func AppendAlertJSON(dst []byte, a *Alert) []byte {
	w := startJSON(dst, "alert")
	VisitAlert(a, w)
	return w.done()
}

// AppendSummaryJSON appends s as one JSON object without a newline.
func AppendSummaryJSON(dst []byte, s *Summary) []byte {
	w := startJSON(dst, "summary")
	w.Uint("packets_seen", s.PacketsSeen)
	w.Uint("packets_recorded", s.PacketsRecorded)
	w.counts("drops", s.Drops)
	w.counts("errors", s.Errors)
	w.Uint("records", s.Records)
	w.Uint("alerts", s.Alerts)
	float(w, "seconds", s.Seconds)
	return w.done()
}

func (w *jsonWriter) done() []byte {
	w.buf = append(w.buf, '}')
	out := w.buf
	w.buf = nil
	jsonWriters.Put(w)
	return out
}

func (w *jsonWriter) name(s string) {
	w.buf = append(w.buf, ',')
	w.buf = appendJSONString(w.buf, s)
	w.buf = append(w.buf, ':')
}

func (w *jsonWriter) Uint(name string, v uint64) {
	w.name(name)
	w.buf = strconv.AppendUint(w.buf, v, 10)
}

func (w *jsonWriter) Int(name string, v int64) {
	w.name(name)
	w.buf = strconv.AppendInt(w.buf, v, 10)
}

func (w *jsonWriter) Float(name string, v float64) {
	w.name(name)
	if math.Abs(v) < 1e15 && v == math.Trunc(v) {
		w.buf = strconv.AppendInt(w.buf, int64(v), 10) // a JSON number has no integer type; this is faster
		return
	}
	w.buf = strconv.AppendFloat(w.buf, v, 'g', -1, 64)
}

func (w *jsonWriter) Bool(name string, v bool) {
	w.name(name)
	w.buf = strconv.AppendBool(w.buf, v)
}

func (w *jsonWriter) String(name, v string) {
	w.name(name)
	w.buf = appendJSONString(w.buf, v)
}

func (w *jsonWriter) Addr(name string, v netip.Addr) {
	w.name(name)
	w.buf = append(w.buf, '"')
	w.buf = v.AppendTo(w.buf)
	w.buf = append(w.buf, '"')
}

func (w *jsonWriter) Hist(name string, bins []uint32) {
	w.name(name)
	w.buf = append(w.buf, '[')
	for _, n := range bins {
		if n < 10 { // nearly all bins of nearly all flows
			w.buf = append(w.buf, '0'+byte(n), ',')
			continue
		}
		w.buf = strconv.AppendUint(w.buf, uint64(n), 10)
		w.buf = append(w.buf, ',')
	}
	if len(bins) > 0 {
		w.buf = w.buf[:len(w.buf)-1]
	}
	w.buf = append(w.buf, ']')
}

// counts writes a map in the order of its keys, so that equal runs print equal lines.
func (w *jsonWriter) counts(name string, m map[string]uint64) {
	w.name(name)
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	w.buf = append(w.buf, '{')
	for i, k := range keys {
		if i > 0 {
			w.buf = append(w.buf, ',')
		}
		w.buf = appendJSONString(w.buf, k)
		w.buf = append(w.buf, ':')
		w.buf = strconv.AppendUint(w.buf, m[k], 10)
	}
	w.buf = append(w.buf, '}')
}

const hexDigits = "0123456789abcdef"

// appendJSONString quotes s. Bytes that are not UTF-8 become U+FFFD.
func appendJSONString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= ' ' && c < utf8.RuneSelf && c != '"' && c != '\\' {
			i++
			continue
		}
		if c >= utf8.RuneSelf {
			r, n := utf8.DecodeRuneInString(s[i:])
			if r != utf8.RuneError || n > 1 {
				i += n
				continue
			}
		}
		dst = append(dst, s[start:i]...)
		switch {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c < ' ':
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		default:
			dst = append(dst, "\ufffd"...)
		}
		i++
		start = i
	}
	dst = append(dst, s[start:]...)
	return append(dst, '"')
}
