package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// classic is a pcap file: header with a link type, then records (captured, claimed length, bytes).
func classic(link uint32, records ...[]byte) []byte {
	var b bytes.Buffer
	le := binary.LittleEndian
	b.Write(le.AppendUint32(nil, 0xa1b2c3d4))
	b.Write([]byte{2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	b.Write(le.AppendUint32(nil, 262144))
	b.Write(le.AppendUint32(nil, link))
	for _, r := range records {
		b.Write(r)
	}
	return b.Bytes()
}

func record(claimed uint32, frame []byte) []byte {
	le := binary.LittleEndian
	b := le.AppendUint32(nil, 1_700_000_000)
	b = le.AppendUint32(b, 0)
	b = le.AppendUint32(b, uint32(len(frame)))
	return append(le.AppendUint32(b, claimed), frame...)
}

var udpFrame = append([]byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0},
	0x45, 0, 0, 32, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0x10, 0, 0, 53, 0, 12, 0, 0, 1, 2, 3, 4)

// TestReplayExitStatusSaysWhetherAllWasRead: 0 all, 1 error, 3 a part was unreadable.
func TestReplayExitStatusSaysWhetherAllWasRead(t *testing.T) {
	good := record(uint32(len(udpFrame)), udpFrame)
	cases := map[string]struct {
		content []byte
		code    int
		says    string
		seen    float64
	}{
		"all readable":      {classic(1, good, good), 0, "", 2},
		"no packet at all":  {classic(1), 0, "", 0},
		"empty file":        {nil, exitUnreadable, "empty", 0},
		"not a capture":     {[]byte("this is not a capture, but text"), exitUnreadable, "not a capture", 0},
		"cut in a record":   {classic(1, good, good[:len(good)-3]), exitUnreadable, "truncated", 2},
		"unknown link type": {classic(200, good), exitUnreadable, "unknown_link_type", 1},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "x.pcap")
			require.NoError(t, os.WriteFile(path, c.content, 0o600))
			out, errOut, code := call(t, "replay", "--models", "none", "-o", "json", path)
			require.Equal(t, c.code, code, errOut)
			require.Contains(t, errOut, c.says)
			if out == "" {
				require.NotZero(t, code)
				return
			}
			lines := strings.Split(strings.TrimSpace(out), "\n")
			var sum struct {
				Type            string             `json:"type"`
				PacketsSeen     float64            `json:"packets_seen"`
				PacketsRecorded float64            `json:"packets_recorded"`
				Drops           map[string]float64 `json:"drops"`
			}
			require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &sum))
			require.Equal(t, "summary", sum.Type)
			require.Equal(t, c.seen, sum.PacketsSeen)
			dropped := 0.0
			for _, n := range sum.Drops {
				dropped += n
			}
			require.Equal(t, sum.PacketsSeen, sum.PacketsRecorded+dropped)
		})
	}
	_, _, code := call(t, "replay", filepath.Join(t.TempDir(), "absent.pcap"))
	require.Equal(t, 1, code)
}

// TestReplayDoesNotBelieveAbsurdWireLengths: a record that claims 4 GB counts with what it holds.
func TestReplayDoesNotBelieveAbsurdWireLengths(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.pcap")
	require.NoError(t, os.WriteFile(path, classic(1, record(0xffffffff, udpFrame), record(0xffffffff, udpFrame)), 0o600))
	out, _, code := call(t, "replay", "--models", "none", "-o", "json", path)
	require.Zero(t, code)
	require.Contains(t, out, `"wire_bytes_fwd":92,`)
	require.Contains(t, out, `"wire_len_std_fwd":0,`)
	require.Contains(t, out, `"bad_wire_length":2`)
}

func TestReplayEndsWhenItsOutputFails(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("no /dev/full here")
	}
	defer full.Close()
	// An endless input: only the failed write can end the run.
	cmd := program("replay", "--models", "none", "-o", "json", "--idle-timeout", "1s", "-")
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	cmd.Stdout = full
	var log bytes.Buffer
	cmd.Stderr = &log
	require.NoError(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	_, err = in.Write(classic(1))
	le := binary.LittleEndian
	for second := uint32(1_700_000_000); err == nil; second += 5 { // every packet ends the flow before it
		r := record(uint32(len(udpFrame)), udpFrame)
		le.PutUint32(r, second)
		_, err = in.Write(r)
	}
	<-ended
	require.Equal(t, 1, cmd.ProcessState.ExitCode())
	require.Equal(t, 1, strings.Count(log.String(), "no space left"), log.String())
}

func TestReplayRefusesOptionsByName(t *testing.T) {
	for _, args := range [][]string{
		{"--max-flows", "0"}, {"--queues", "-1"}, {"--idle-timeout", "-1s"}, {"--active-timeout", "0s"}, {"--window", "-1s"}, {"--speed", "-2"},
		{"--decap", "ipip"}, {"--output", "xml"}, {"--sketch-feature", "x"}, {"--top", "-1"}, {"--batch", "99999"},
	} {
		_, log, code := call(t, append(append([]string{"replay", "--models", "none"}, args...), "x.pcap")...)
		require.Equal(t, 1, code, args)
		require.NotEmpty(t, log)
		require.NotContains(t, log, "panic")
	}
}
