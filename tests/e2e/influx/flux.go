package influx

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/agp-net/telegraf-agp/tests/e2e/cached"
)

// fluxVersion is the last release of InfluxDB whose Flux needs no Rust.
const fluxVersion = "v1.8.10"

// StartFlux is Start for a server that answers Flux as well. The first call builds it,
// which takes a minute or two, and keeps it in the user's cache directory.
func StartFlux(t testing.TB) *Server {
	t.Helper()
	binary, err := cached.Program("influxdb-"+fluxVersion+"-"+runtime.Version(), "influxd", func(temporary string) error {
		dir, err := os.MkdirTemp(filepath.Dir(temporary), "build-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		cmd := exec.CommandContext(t.Context(), "go", "install", "-trimpath", "-ldflags", "-s -w", "github.com/influxdata/influxdb/cmd/influxd@"+fluxVersion)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=", "GOBIN="+dir)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("building InfluxDB %s: %w: %s", fluxVersion, err, out)
		}
		return os.Rename(filepath.Join(dir, "influxd"), temporary)
	})
	if err != nil {
		t.Fatal(err)
	}
	return start(t, binary, "  flux-enabled = true\n")
}

// Flux runs a Flux program and returns the rows of all its tables, by column.
func (s *Server) Flux(program string) ([]map[string]string, error) {
	req, err := http.NewRequest(http.MethodPost, s.URL+"/api/v2/query", strings.NewReader(program))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/vnd.flux")
	req.Header.Set("Accept", "application/csv")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", resp.Status, body)
	}
	r := csv.NewReader(bytes.NewReader(body))
	r.FieldsPerRecord = -1
	lines, err := r.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", body, err)
	}
	var rows []map[string]string
	var columns []string
	for _, line := range lines {
		switch {
		case line[0] == "error" || len(line) > 1 && line[1] == "error":
			return nil, fmt.Errorf("%s", body)
		case strings.HasPrefix(line[0], "#"): // annotations begin another table
			columns = nil
		case columns == nil:
			columns = line
		default:
			row := map[string]string{}
			for i, v := range line {
				row[columns[i]] = v
			}
			delete(row, "")
			rows = append(rows, row)
		}
	}
	return rows, nil
}
