package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/agp-net/telegraf-agp/agp/telemetry"
	"github.com/agp-net/telegraf-agp/agp/telemetry/agppb"
	"github.com/agp-net/telegraf-agp/tests/testcap"
)

func logEvent(text string) *agppb.Event {
	return &agppb.Event{Event: &agppb.Event_Log{Log: &agppb.Log{Text: text}}}
}

func TestSendReceive(t *testing.T) {
	var stream bytes.Buffer
	c := NewConn(&stream)
	big := string(bytes.Repeat([]byte("x"), 3<<20))
	for _, text := range []string{"", "a", big, "after a big one"} {
		require.NoError(t, c.Send(logEvent(text)))
		var ev agppb.Event
		require.NoError(t, c.Receive(&ev))
		require.Equal(t, text, ev.GetLog().GetText())
	}
	require.ErrorIs(t, c.Receive(&agppb.Event{}), io.EOF)
	require.Zero(t, c.Unknown())
}

func TestConcurrentSendersDoNotMix(t *testing.T) {
	r, w := io.Pipe()
	c := NewConn(struct {
		io.Reader
		io.Writer
	}{r, w})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 50 {
				_ = c.Send(logEvent("hello"))
			}
		})
	}
	for range 200 {
		var ev agppb.Event
		require.NoError(t, c.Receive(&ev))
		require.Equal(t, "hello", ev.GetLog().GetText())
	}
	wg.Wait()
}

func TestOversizedMessageIsRefusedOnBothSides(t *testing.T) {
	var stream bytes.Buffer
	c := NewConn(&stream)
	require.ErrorIs(t, c.Send(logEvent(string(make([]byte, MaxMessage)))), ErrTooLarge)
	require.Zero(t, stream.Len(), "nothing of it was sent")

	stream.Write(binary.AppendUvarint(nil, MaxMessage+1))
	require.ErrorIs(t, c.Receive(&agppb.Event{}), ErrTooLarge)
	stream.Reset()
	stream.Write(bytes.Repeat([]byte{0xff}, 20))
	require.ErrorIs(t, NewConn(&stream).Receive(&agppb.Event{}), ErrTooLarge, "a length that never ends")
}

func TestAnnouncedLengthAloneReservesNoMemory(t *testing.T) {
	claim := binary.AppendUvarint(nil, MaxMessage)
	allocated := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			c := NewConn(bytes.NewBuffer(append([]byte(nil), claim...)))
			if err := c.Receive(&agppb.Event{}); !errors.Is(err, io.ErrUnexpectedEOF) {
				b.Fatal(err)
			}
		}
	}).AllocedBytesPerOp()
	require.Less(t, allocated, int64(1<<20))
}

func TestTruncatedStreamIsAnUnexpectedEnd(t *testing.T) {
	var stream bytes.Buffer
	require.NoError(t, NewConn(&stream).Send(logEvent("hello")))
	whole := stream.Bytes()
	for n := 1; n < len(whole); n++ {
		err := NewConn(bytes.NewBuffer(bytes.Clone(whole[:n]))).Receive(&agppb.Event{})
		require.ErrorIs(t, err, io.ErrUnexpectedEOF, "cut after %d bytes", n)
	}
}

func TestGarbageIsMalformed(t *testing.T) {
	err := NewConn(bytes.NewBufferString("\x04\xff\xff\xff\xff")).Receive(&agppb.Event{})
	require.ErrorIs(t, err, ErrMalformed)
}

func TestUnknownFieldsAreSkippedAndCounted(t *testing.T) {
	inner, err := proto.Marshal(&agppb.Log{Text: "kept"})
	require.NoError(t, err)
	inner = protowire.AppendTag(inner, 999, protowire.VarintType)
	inner = protowire.AppendVarint(inner, 5)
	var raw []byte
	raw = protowire.AppendTag(raw, 6, protowire.BytesType)
	raw = protowire.AppendBytes(raw, inner)
	raw = protowire.AppendTag(raw, 500, protowire.BytesType)
	raw = protowire.AppendString(raw, "from the future")
	stream := bytes.NewBuffer(binary.AppendUvarint(nil, uint64(len(raw))))
	stream.Write(raw)

	c := NewConn(stream)
	var ev agppb.Event
	require.NoError(t, c.Receive(&ev))
	require.Equal(t, "kept", ev.GetLog().GetText())
	require.EqualValues(t, 2, c.Unknown())
}

// FuzzProtocol feeds both directions with arbitrary bytes: every outcome but a
// clear error or a usable value is a finding.
func FuzzProtocol(f *testing.F) {
	var stream bytes.Buffer
	c := NewConn(&stream)
	rec := telemetry.Record{IPVersion: 4, FirstReplyNs: -1}
	for _, m := range []proto.Message{
		logEvent("hi"),
		&agppb.Event{Event: &agppb.Event_Records{Records: &agppb.Records{Records: []*agppb.FlowRecord{RecordToProto(&rec)}}}},
		&agppb.Event{Event: &agppb.Event_Snapshot{Snapshot: SnapshotToProto(&telemetry.Snapshot{Queues: []telemetry.QueueRow{{Queue: 1}}})}},
		&agppb.Command{Command: &agppb.Command_Configure{Configure: &agppb.Configure{Queues: 2}}},
	} {
		stream.Reset()
		_ = c.Send(m)
		f.Add(bytes.Clone(stream.Bytes()))
	}
	f.Add([]byte("\xff\xff\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, data []byte) {
		events := NewConn(bytes.NewBuffer(bytes.Clone(data)))
		for {
			var ev agppb.Event
			if events.Receive(&ev) != nil {
				break
			}
			for _, p := range ev.GetRecords().GetRecords() {
				var r telemetry.Record
				if RecordFromProto(p, &r) == nil {
					telemetry.AppendJSON(nil, &r)
				}
			}
			for _, p := range ev.GetAlerts().GetAlerts() {
				var a telemetry.Alert
				if AlertFromProto(p, &a) == nil {
					telemetry.AppendAlertJSON(nil, &a)
				}
			}
			var s telemetry.Snapshot
			_ = SnapshotFromProto(ev.GetSnapshot(), &s)
		}
		commands := NewConn(bytes.NewBuffer(data))
		for commands.Receive(&agppb.Command{}) == nil { //nolint:revive // only must not panic
		}
	})
}

func TestGeneratedCodeIsUpToDate(t *testing.T) {
	testcap.Program(t, "protoc")
	out := t.TempDir()
	cmd := exec.Command("sh", "../agppb/generate.sh", out)
	msg, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", msg)
	want, err := os.ReadFile(filepath.Join(out, "agp.pb.go"))
	require.NoError(t, err)
	got, err := os.ReadFile("../agppb/agp.pb.go")
	require.NoError(t, err)
	require.Equal(t, string(want), string(got), "run go generate in agp/telemetry/agppb")
}

func BenchmarkRecordOverTheWire(b *testing.B) {
	var stream bytes.Buffer
	c := NewConn(&stream)
	rec := telemetry.Record{IPVersion: 4, Protocol: 6, FirstReplyNs: 5}
	b.ReportAllocs()
	for b.Loop() {
		batch := &agppb.Records{}
		for range 64 {
			batch.Records = append(batch.Records, RecordToProto(&rec))
		}
		_ = c.Send(&agppb.Event{Event: &agppb.Event_Records{Records: batch}})
		var ev agppb.Event
		_ = c.Receive(&ev)
		var r telemetry.Record
		for _, p := range ev.GetRecords().GetRecords() {
			_ = RecordFromProto(p, &r)
		}
	}
}
