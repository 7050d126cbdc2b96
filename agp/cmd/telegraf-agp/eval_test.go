package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

func TestReadLabels(t *testing.T) {
	l, err := readLabels(strings.NewReader("# truth\na.pcap\tbenign\n\nb.pcap\t10.0.0.2\t80\t10.0.0.1\t4000\ttcp\tHTTP\n"))
	require.NoError(t, err)
	require.Equal(t, "benign", l["a.pcap"][""])
	require.Equal(t, "HTTP", l["b.pcap"][flowID("10.0.0.1", "4000", "10.0.0.2", "80", "tcp")])
	_, err = readLabels(strings.NewReader("a\tb\tc\n"))
	require.ErrorContains(t, err, "line 1: 3 columns")
}

func TestTally(t *testing.T) {
	y := newTally("app")
	y.capture = "x"
	y.truth = labels{"x": {"": "DNS"}}
	rec := func(label string) *telemetry.Record {
		return &telemetry.Record{IPVersion: 4, Protocol: 17, Outputs: []telemetry.Output{{Field: "app", Label: label}}}
	}
	for _, l := range []string{"DNS", "DNS", "TLS", "unknown"} {
		y.Record(rec(l))
	}
	y.Record(&telemetry.Record{IPVersion: 4}) // not scored
	var b strings.Builder
	y.print(&b)
	require.Equal(t, 4, y.flows)
	require.Equal(t, 3, y.answered)
	require.Equal(t, 2, y.right)
	require.Contains(t, b.String(), "answered 0.750\tright of answered 0.667\tmacro F1 0.667")
}
