package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/tests/traffic"
)

// pageNumbers are the exact numbers of a page by name, added up.
func pageNumbers(page string) map[string]uint64 {
	sums := map[string]uint64{}
	for _, m := range regexp.MustCompile(`<data data-name="([^"]+)" value="(\d+)">`).FindAllStringSubmatch(page, -1) {
		n, _ := strconv.ParseUint(m[2], 10, 64)
		sums[m[1]] += n
	}
	return sums
}

func demoCapture(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "demo.pcap")
	f, err := os.Create(path)
	require.NoError(t, err)
	require.NoError(t, traffic.Demo(1).WritePcap(f))
	require.NoError(t, f.Close())
	return path
}

func TestReplayReportSaysWhatTheOutputSays(t *testing.T) {
	dir := t.TempDir()
	capture, page := demoCapture(t), filepath.Join(dir, "out.html")
	require.NoError(t, os.WriteFile(page, []byte("an older one"), 0o600))

	out, log, code := call(t, "replay", "-o", "json", "--report", page, capture)
	require.Zero(t, code, log)
	want, kinds := map[string]uint64{}, map[string]uint64{}
	var sum struct {
		Seen     uint64            `json:"packets_seen"`
		Recorded uint64            `json:"packets_recorded"`
		Records  uint64            `json:"records"`
		Alerts   uint64            `json:"alerts"`
		Drops    map[string]uint64 `json:"drops"`
	}
	for _, line := range strings.Split(strings.TrimSpace(out), "\n") {
		var o struct {
			Type      string   `json:"type"`
			Kind      string   `json:"kind"`
			Fwd       uint64   `json:"wire_bytes_fwd"`
			Rev       uint64   `json:"wire_bytes_rev"`
			SizeHist  []uint64 `json:"size_hist"`
			DelayHist []uint64 `json:"delay_hist"`
		}
		require.NoError(t, json.Unmarshal([]byte(line), &o))
		switch o.Type {
		case "alert":
			kinds[o.Kind]++
		case "summary":
			require.NoError(t, json.Unmarshal([]byte(line), &sum))
		}
		want["bytes"] += 4 * (o.Fwd + o.Rev) // in three plots and in the table
		for _, n := range o.SizeHist {
			want["size_total"] += n
		}
		for _, n := range o.DelayHist {
			want["delay_total"] += n
		}
	}
	want["packets_seen"], want["packets_recorded"], want["records"], want["alerts"] = sum.Seen, sum.Recorded, sum.Records, sum.Alerts
	want["flows"], want["packets"] = sum.Records, sum.Recorded // of the table's rows
	for reason, n := range sum.Drops {
		want[reason], want["packets_dropped"] = n, want["packets_dropped"]+n
	}
	require.NotEmpty(t, kinds)
	for kind, n := range kinds {
		want[kind] = n
	}
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	got := pageNumbers(string(text))
	for name, n := range want {
		require.Equal(t, n, got[name], name)
	}
	left, err := filepath.Glob(filepath.Join(dir, ".*"))
	require.NoError(t, err)
	require.Empty(t, left, "no other file is left")
}

func TestReplayReportOfACaptureWithFaultsNamesThem(t *testing.T) {
	dir := t.TempDir()
	capture, page := filepath.Join(dir, "x.pcap"), filepath.Join(dir, "out.html")
	good := record(uint32(len(udpFrame)), udpFrame)
	require.NoError(t, os.WriteFile(capture, classic(1, good, good[:len(good)-3]), 0o600))
	_, _, code := call(t, "replay", "--models", "none", "--report", page, capture)
	require.Equal(t, exitUnreadable, code)
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	require.Regexp(t, `id="note">[^<]*truncated`, string(text))
}

func TestReplayReportThatCannotBeWrittenIsRefusedBeforeTheWork(t *testing.T) {
	dir := t.TempDir()
	capture := capturePackets(t, 3)
	for _, path := range []string{dir, filepath.Join(dir, "absent", "out.html")} {
		out, log, code := call(t, "replay", "--models", "none", "--report", path, capture)
		require.Equal(t, 1, code)
		require.Empty(t, out)
		require.Contains(t, log, `report = "`+path+`", allowed: `)
	}
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}
