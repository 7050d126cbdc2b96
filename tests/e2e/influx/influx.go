// Package influx runs a real InfluxDB 1.x server (Debian package influxdb) on
// loopback for tests, with a data folder and ports of its own. Debian's knows no
// Flux; StartFlux runs the last release that is Go alone and does.
//
// A Server belongs to the test's goroutine; the goroutine that waits for the child
// ends with it. Times in answers are ns since the Unix epoch; deadlines are wall clock.
package influx

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/agp-net/telegraf-agp/tests/testcap"
)

const patience = 30 * time.Second

// Server is a running influxd. Its methods belong to the test's goroutine.
type Server struct {
	URL string // such as http://127.0.0.1:41234

	t      testing.TB
	binary string
	config string
	log    *logFile
	cmd    *exec.Cmd
	exited chan struct{}
}

// Start starts a server and stops it at the end of the test. A test without
// influxd is skipped, or fails where programs are required.
func Start(t testing.TB) *Server {
	t.Helper()
	return start(t, testcap.Program(t, "influxd"), "[ifql]\n  enabled = false\n")
}

func start(t testing.TB, binary, more string) *Server {
	t.Helper()
	dir := t.TempDir()
	http, rpc := freePort(t), freePort(t)
	s := &Server{
		URL:    "http://" + http,
		t:      t,
		binary: binary,
		config: filepath.Join(dir, "influxd.conf"),
		log:    &logFile{},
	}
	text := fmt.Sprintf(`reporting-disabled = true
bind-address = %q
[meta]
  dir = %q
[data]
  dir = %q
  wal-dir = %q
  index-version = "tsi1"
[monitor]
  store-enabled = false
[http]
  bind-address = %q
  log-enabled = false
%s`, rpc, filepath.Join(dir, "meta"), filepath.Join(dir, "data"), filepath.Join(dir, "wal"), http, more)
	if err := os.WriteFile(s.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	s.Restart()
	return s
}

// Restart starts the server again after Stop, with the same data and address.
func (s *Server) Restart() {
	s.t.Helper()
	s.cmd = exec.Command(s.binary, "run", "-config", s.config)
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	// The server must not outlive a test that is killed.
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	exited := make(chan struct{})
	s.exited = exited
	go func(cmd *exec.Cmd) {
		_ = cmd.Wait()
		close(exited)
	}(s.cmd)
	deadline := time.Now().Add(patience)
	for {
		resp, err := http.Get(s.URL + "/ping")
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusNoContent {
				return
			}
		}
		select {
		case <-exited:
			s.t.Fatalf("influxd ended: %s", s.log)
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("influxd is not ready after %s: %s", patience, s.log)
		}
	}
}

// Stop ends the server; its data stay.
func (s *Server) Stop() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.exited:
	case <-time.After(patience):
		_ = s.cmd.Process.Kill()
		<-s.exited
	}
	s.cmd = nil
}

// Create creates a database.
func (s *Server) Create(database string) {
	s.t.Helper()
	if _, err := s.Query("", fmt.Sprintf("CREATE DATABASE %q", database)); err != nil {
		s.t.Fatal(err)
	}
}

// Series is one series of a query's result.
type Series struct {
	Name    string            `json:"name"`
	Tags    map[string]string `json:"tags"`
	Columns []string          `json:"columns"`
	Values  [][]any           `json:"values"`
}

// Query runs one InfluxQL statement. Numbers come as json.Number, times as
// nanoseconds.
func (s *Server) Query(database, q string) ([]Series, error) {
	resp, err := http.PostForm(s.URL+"/query", url.Values{"db": {database}, "q": {q}, "epoch": {"ns"}})
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	var answer struct {
		Error   string
		Results []struct {
			Error  string
			Series []Series
		}
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	if err := d.Decode(&answer); err != nil {
		return nil, fmt.Errorf("%s: %w", body, err)
	}
	if answer.Error != "" {
		return nil, errors.New(answer.Error)
	}
	var all []Series
	for _, r := range answer.Results {
		if r.Error != "" {
			return nil, errors.New(r.Error)
		}
		all = append(all, r.Series...)
	}
	return all, nil
}

// Int returns the single number that a query such as SELECT count(x) yields, 0
// if it yields nothing (also while the database does not exist).
func (s *Server) Int(database, q string) int64 {
	s.t.Helper()
	series, err := s.Query(database, q)
	if err != nil || len(series) == 0 {
		return 0
	}
	values := series[0].Values[0]
	n, ok := values[len(values)-1].(json.Number)
	if !ok {
		s.t.Fatalf("%s: %v is no number", q, values)
	}
	f, err := n.Float64()
	if err != nil {
		s.t.Fatal(err)
	}
	return int64(f)
}

// WaitInt polls until the query yields at least want, and returns what it
// yields then.
func (s *Server) WaitInt(database, q string, want int64) int64 {
	s.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		got := s.Int(database, q)
		if got >= want {
			return got
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("%s: still %d after %s, want %d", q, got, patience, want)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// SeriesCount is the exact number of series in a database.
func (s *Server) SeriesCount(database string) int64 {
	s.t.Helper()
	measurements, err := s.Query(database, "SHOW SERIES EXACT CARDINALITY")
	if err != nil {
		s.t.Fatal(err)
	}
	var sum int64
	for _, m := range measurements { // each has a row of its own
		n, err := m.Values[0][0].(json.Number).Int64()
		if err != nil {
			s.t.Fatal(err)
		}
		sum += n
	}
	return sum
}

func freePort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// logFile keeps what influxd prints, to show when it fails.
type logFile struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logFile) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logFile) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
