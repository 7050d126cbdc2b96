package dashboards

import (
	"fmt"
	"regexp"
	"strings"
	"time"
)

// Window is a time range and the length of an interval in it.
type Window struct {
	From, To time.Time
	Interval time.Duration
}

var reference = regexp.MustCompile(`\$\{(\w+)(?::\w+)?\}`)

// Expand puts values in place of variables, as Grafana does before it sends a query.
// Bucket is for Flux only; values gives the text of a dashboard's variable.
func Expand(l Language, query, bucket string, w Window, values func(name string) string) string {
	query = reference.ReplaceAllStringFunc(query, func(s string) string { return values(reference.FindStringSubmatch(s)[1]) })
	if l == Flux {
		return strings.NewReplacer(
			"v.defaultBucket", fmt.Sprintf("%q", bucket),
			"v.timeRangeStart", w.From.UTC().Format(time.RFC3339Nano),
			"v.timeRangeStop", w.To.UTC().Format(time.RFC3339Nano),
			"v.windowPeriod", fmt.Sprintf("%dms", w.Interval.Milliseconds()),
		).Replace(query)
	}
	return strings.NewReplacer(
		"$timeFilter", fmt.Sprintf("time >= %dms AND time <= %dms", w.From.UnixMilli(), w.To.UnixMilli()),
		"$__interval", fmt.Sprintf("%dms", w.Interval.Milliseconds()),
	).Replace(query)
}
