package detect_test

import (
	"context"
	"fmt"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/detect"
	"github.com/agp-net/telegraf-agp/agp/internal/testcap"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cpu"
	"github.com/agp-net/telegraf-agp/agp/source/pcap"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

type sink struct {
	alerts []telemetry.Alert
}

func (s *sink) Record(*telemetry.Record) {}
func (s *sink) Alert(a *telemetry.Alert) { s.alerts = append(s.alerts, *a) }

// replay runs a capture through the pipeline with default settings and no models.
func replay(t *testing.T, path string, queues int) []telemetry.Alert {
	src, err := pcap.Open([]string{path}, pcap.Options{})
	require.NoError(t, err)
	s := &sink{}
	p, err := cpu.New(cpu.Config{Source: src, Sink: s, Queues: queues})
	require.NoError(t, err)
	_ = p.Run(context.Background()) // damaged captures end with an error after all that is readable
	return s.alerts
}

func kinds(alerts []telemetry.Alert) string {
	n := map[string]int{}
	for i := range alerts {
		n[alerts[i].Kind]++
	}
	var out []string
	for k, c := range n {
		out = append(out, fmt.Sprintf("%s x%d", k, c))
	}
	sort.Strings(out)
	return strings.Join(out, ", ")
}

func TestCaptures(t *testing.T) {
	for _, path := range testcap.All(t) {
		alerts := replay(t, path, 1)
		if len(alerts) > 0 || !strings.Contains(path, "/ndpi/") {
			t.Logf("%-60s %s", filepath.Base(path), kinds(alerts))
		}
		if len(alerts) > 20 {
			for i := range 4 {
				t.Logf("%+v", alerts[i])
			}
		}
		_ = detect.Beacon
	}
}
