package main

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/influxdata/telegraf"
	"github.com/influxdata/telegraf/metric"
	serializer "github.com/influxdata/telegraf/plugins/serializers/influx"

	"github.com/agp-net/telegraf-agp/agp/model"
	"github.com/agp-net/telegraf-agp/agp/supervise"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
	"github.com/agp-net/telegraf-agp/plugins/inputs/agp"
)

// influxSink prints the points that the plugin would emit, as line protocol.
// Their time is the capture's: that of the cut for a record, of the finding for
// an alert, of the last packet for everything else.
type influxSink struct {
	lines     lines
	converter *agp.Converter
	records   bool
}

func newInfluxSink(w *bufio.Writer, records bool, iface string) (replaySink, error) {
	s := &serializer.Serializer{SortFields: true}
	if err := s.Init(); err != nil {
		return nil, fmt.Errorf("line protocol: %w", err)
	}
	return &influxSink{
		lines: lines{w: w, serializer: s}, records: records,
		converter: agp.NewConverter(agp.ConverterOptions{Interface: iface, Source: "pcap", Pipeline: "cpu"}),
	}, nil
}

func (s *influxSink) Record(r *telemetry.Record) {
	if s.records {
		s.converter.Record(r, time.Unix(0, r.EndNs), &s.lines)
	}
}

func (s *influxSink) Alert(a *telemetry.Alert) {
	s.converter.Alert(a, time.Unix(0, a.TimeNs), &s.lines)
}

func (s *influxSink) finish(snap *telemetry.Snapshot, _ float64) error {
	s.converter.Metrics(snap, supervise.Status{State: supervise.StateFinished}, time.Unix(0, snap.TimeNs), &s.lines)
	return s.lines.err
}

// lines is the part of an accumulator that the converter uses.
type lines struct {
	telegraf.Accumulator
	w          *bufio.Writer
	serializer *serializer.Serializer
	err        error
}

func (l *lines) AddFields(name string, fields map[string]any, tags map[string]string, t ...time.Time) {
	b, err := l.serializer.Serialize(metric.New(name, tags, fields, t[0]))
	if err == nil {
		_, err = l.w.Write(b)
	}
	if l.err == nil {
		l.err = err
	}
}

func (l *lines) AddGauge(name string, fields map[string]any, tags map[string]string, t ...time.Time) {
	l.AddFields(name, fields, tags, t...)
}

func (l *lines) AddCounter(name string, fields map[string]any, tags map[string]string, t ...time.Time) {
	l.AddFields(name, fields, tags, t...)
}

// loadModels loads model files, and all that are in folders; without a list those
// that come with the program.
func loadModels(paths []string) (*model.Set, error) {
	if len(paths) == 0 {
		paths = agp.ShippedModels()
	}
	var list []*model.Model
	for _, p := range paths {
		files := []string{p}
		if info, err := os.Stat(p); err == nil && info.IsDir() {
			if files, err = filepath.Glob(filepath.Join(p, "*.onnx")); err != nil || len(files) == 0 {
				return nil, fmt.Errorf("no models in folder %s", p)
			}
		}
		for _, f := range files {
			m, err := model.Load(f)
			if err != nil {
				return nil, err
			}
			list = append(list, m)
		}
	}
	return model.NewSet(list...)
}
