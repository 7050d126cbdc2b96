package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/agp-net/telegraf-agp/agp/htmlreport"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// reportFile is the page of a replay. Methods of nil do nothing: none is wanted.
type reportFile struct {
	path    string
	temp    *os.File // has the page until it is whole
	builder htmlreport.Builder
}

// openReport finds out before the work whether the page can be written.
func openReport(path string) (*reportFile, error) {
	if path == "" {
		return nil, nil
	}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("report = %q, allowed: the name of a file that is made or replaced", path)
	}
	temp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return nil, fmt.Errorf("report = %q, allowed: a file in a folder that can be written: %w", path, err)
	}
	return &reportFile{path: path, temp: temp}, nil
}

// beside returns a sink for both.
func (f *reportFile) beside(s replaySink) replaySink {
	if f == nil {
		return s
	}
	return &reportSink{s, &f.builder}
}

type reportSink struct {
	replaySink
	builder *htmlreport.Builder
}

func (s *reportSink) Record(r *telemetry.Record) {
	s.builder.Record(r)
	s.replaySink.Record(r)
}

func (s *reportSink) Alert(a *telemetry.Alert) {
	s.builder.Alert(a)
	s.replaySink.Alert(a)
}

// write puts the page in its place.
func (f *reportFile) write(run htmlreport.Run, s *telemetry.Snapshot, seconds float64) error {
	if f == nil {
		return nil
	}
	w := bufio.NewWriter(f.temp)
	err := f.builder.Write(w, run, s, seconds)
	if err = errors.Join(err, w.Flush(), f.temp.Chmod(0o644), f.temp.Close()); err == nil {
		err = os.Rename(f.temp.Name(), f.path)
	}
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// discard removes a page that was not written.
func (f *reportFile) discard() {
	if f != nil {
		_ = f.temp.Close()
		_ = os.Remove(f.temp.Name())
	}
}
