package bpf

import (
	"errors"
	"io"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/source"
	"github.com/agp-net/telegraf-agp/agp/source/pcap"
	"github.com/agp-net/telegraf-agp/tests/testcap"
)

// Frames of real traffic that have been captured whole.
func TestFramesOfEveryCaptureParseAsInGo(t *testing.T) {
	const most = 2000 // of each capture: this is about variety
	files := testcap.All(t)
	p := newParser(t)
	frames, both := 0, 0
	for _, file := range files {
		r, err := pcap.Open([]string{file}, pcap.Options{})
		if err != nil {
			t.Logf("%s: %v", filepath.Base(file), err)
			continue
		}
		batch := source.Batch{Frames: make([]source.Frame, 64)}
		for n := 0; n < most; {
			k, err := r.Next(&batch)
			if errors.Is(err, io.EOF) || err != nil {
				break // whether captures are whole is for other tests
			}
			for _, f := range batch.Frames[:k] {
				n++
				if f.LinkType != packet.LinkEthernet || int(f.WireLen) != len(f.Data) || len(f.Data) < 14 || len(f.Data) > 3520 {
					continue
				}
				frames++
				if p.compare(t, f.Data) {
					both++
				}
			}
		}
		require.NoError(t, r.Close())
	}
	t.Logf("%d frames of %d captures, %d understood by both", frames, len(files), both)
	require.Greater(t, both, frames*8/10)
}
