package engine

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/agp-net/telegraf-agp/agp/model"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
	"github.com/agp-net/telegraf-agp/agp/telemetry/agppb"
)

// pb writes protobuf fields.
type pb []byte

func (b pb) bytes(n protowire.Number, v []byte) pb {
	return protowire.AppendBytes(protowire.AppendTag(b, n, protowire.BytesType), v)
}
func (b pb) str(n protowire.Number, v string) pb { return b.bytes(n, []byte(v)) }
func (b pb) int(n protowire.Number, v int64) pb {
	return protowire.AppendVarint(protowire.AppendTag(b, n, protowire.VarintType), uint64(v))
}

// writeModel writes a class model with the features of a histogram that always
// gives the same answer.
func writeModel(t *testing.T, path, version, answer string) {
	t.Helper()
	writeBenign(t, path, version, answer, "benign")
}

// writeBenign is writeModel with the classes that are no finding.
func writeBenign(t *testing.T, path, version, answer string, benign ...string) {
	t.Helper()
	classes := []string{"benign", "c2"}
	inputs := int64(model.Histogram.Inputs())
	tensor := func(name string, values []float32, dims ...int64) pb {
		var p pb
		for _, d := range dims {
			p = p.int(1, d)
		}
		var raw []byte
		for _, v := range values {
			raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(v))
		}
		return p.int(2, 1).str(8, name).bytes(9, raw)
	}
	value := func(name string, last int64) pb {
		shape := pb{}.bytes(1, pb{}.str(2, "n")).bytes(1, pb{}.int(1, last))
		return pb{}.str(1, name).bytes(2, pb{}.bytes(1, pb{}.int(1, 1).bytes(2, shape)))
	}
	bias := make([]float32, len(classes))
	for i, c := range classes {
		if c == answer {
			bias[i] = 10
		}
	}
	gemm := pb{}.str(1, "x").str(1, "w").str(1, "b").str(2, "s").str(4, "Gemm").bytes(5, pb{}.str(1, "transB").int(3, 1).int(20, 2))
	softmax := pb{}.str(1, "s").str(2, "y").str(4, "Softmax")
	n := int64(len(classes))
	graph := pb{}.bytes(1, gemm).bytes(1, softmax).str(2, "g").
		bytes(5, tensor("w", make([]float32, n*inputs), n, inputs)).bytes(5, tensor("b", bias, n)).
		bytes(11, value("x", inputs)).bytes(12, value("y", n))
	m := pb{}.int(1, 8).bytes(7, graph).bytes(8, pb{}.int(2, 17))
	for _, kv := range [][2]string{
		{"agp.name", "test"}, {"agp.version", version}, {"agp.feature_set", model.Histogram.String()}, {"agp.field", "class"},
		{"agp.classes", `["benign","c2"]`}, {"agp.benign", `["` + strings.Join(benign, `","`) + `"]`}, {"agp.min_packets", "1"},
	} {
		m = m.bytes(14, pb{}.str(1, kv[0]).str(2, kv[1]))
	}
	require.NoError(t, os.WriteFile(path+".new", m, 0o600))
	require.NoError(t, os.Rename(path+".new", path))
}

// writeCapture writes UDP packets of as many flows, a second apart.
func writeCapture(t *testing.T, flows int) string {
	t.Helper()
	le := binary.LittleEndian
	b := le.AppendUint32(nil, 0xa1b2c3d4)
	b = le.AppendUint16(b, 2)
	b = le.AppendUint16(b, 4)
	b = append(b, make([]byte, 8)...)
	b = le.AppendUint32(b, 65535)
	b = le.AppendUint32(b, 101) // raw IP
	for i := range flows {
		ip := make([]byte, 48)
		ip[0], ip[8], ip[9] = 0x45, 64, 17
		binary.BigEndian.PutUint16(ip[2:], 48)
		copy(ip[12:], []byte{10, 0, byte(i >> 8), byte(i), 10, 1, 0, 1})
		binary.BigEndian.PutUint16(ip[20:], 5000)
		binary.BigEndian.PutUint16(ip[22:], 53)
		binary.BigEndian.PutUint16(ip[24:], 28)
		b = le.AppendUint32(b, uint32(1_700_000_000+i))
		b = le.AppendUint32(b, 0)
		b = le.AppendUint32(b, 48)
		b = le.AppendUint32(b, 48)
		b = append(b, ip...)
	}
	path := filepath.Join(t.TempDir(), "flows.pcap")
	require.NoError(t, os.WriteFile(path, b, 0o600))
	return path
}

func conf(files ...string) *agppb.Configure {
	return &agppb.Configure{
		Interface: "if0", Pipeline: "cpu", Queues: 2, MaxFlows: 4096, TopK: 10,
		IdleTimeoutNs: int64(time.Minute), ActiveTimeoutNs: int64(5 * time.Minute),
		Source: &agppb.Source{Kind: "pcap", Files: files}, Emit: &agppb.Emit{Flows: "all"},
	}
}

// sink keeps what a pipeline finds; lines what it logs.
type sink struct{ records []telemetry.Record }

func (s *sink) Record(r *telemetry.Record) { s.records = append(s.records, *r) }
func (s *sink) Alert(*telemetry.Alert)     {}

type lines struct {
	mu   sync.Mutex
	list []string
}

func (l *lines) log(level agppb.Log_Level, format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, level.String()+" "+fmt.Sprintf(format, args...))
}

func (l *lines) has(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(strings.Join(l.list, "\n"), text)
}

func build(t *testing.T, c *agppb.Configure, s *sink) (*Built, *lines) {
	t.Helper()
	l := &lines{}
	b, err := Build(c, s, l.log)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b, l
}

func TestBuildRunsACapture(t *testing.T) {
	s := &sink{}
	b, l := build(t, conf(writeCapture(t, 100), writeCapture(t, 1)), s)
	require.Equal(t, "pcap flows.pcap and 1 more", b.Source)
	require.Equal(t, 2, b.Queues)
	require.NoError(t, b.Pipeline.Run(context.Background()))
	require.Len(t, s.records, 101)
	require.Equal(t, "if0", s.records[0].Interface)
	var snap telemetry.Snapshot
	b.Pipeline.Snapshot(&snap)
	require.Zero(t, snap.Missing())
	require.Equal(t, "pcap", snap.Engine.Source)
	require.Empty(t, l.list)
}

func TestBuildReadsOnBehindSkippedFrames(t *testing.T) {
	s := &sink{}
	c := conf(writeCapture(t, 100))
	c.Source.SkipFrames, c.Source.Speed = 90, 1000
	b, _ := build(t, c, s)
	begin := time.Now()
	require.NoError(t, b.Pipeline.Run(context.Background()))
	require.Len(t, s.records, 10)
	require.Less(t, time.Since(begin), 5*time.Second, "what is skipped is not paced")
}

func TestBuildSkipsNothingOfAPipe(t *testing.T) {
	file := writeCapture(t, 100)
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	pipe := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, unix.Mkfifo(pipe, 0o600))
	go func() { _ = os.WriteFile(pipe, data, 0o600) }()
	s := &sink{}
	c := conf(pipe)
	c.Source.SkipFrames = 90
	b, _ := build(t, c, s)
	require.NoError(t, b.Pipeline.Run(context.Background()))
	require.Len(t, s.records, 100, "what a pipe delivers now is new, whatever an engine before saw")
}

func TestBuildRefusesBadConfigurations(t *testing.T) {
	file := writeCapture(t, 1)
	for want, spoil := range map[string]func(*agppb.Configure){
		`pipeline = "gpu", allowed are ["auto" "cpu" "cuda"]`:        func(c *agppb.Configure) { c.Pipeline = "gpu" },
		`source = "live", allowed are "pcap", "mirror" and "divert"`: func(c *agppb.Configure) { c.Source.Kind = "live" },
		"no capture":              func(c *agppb.Configure) { c.Source.Files = nil },
		"/does/not/exist":         func(c *agppb.Configure) { c.Source.Files = []string{"/does/not/exist"} },
		"queues = 257":            func(c *agppb.Configure) { c.Queues = 1 << 31 },
		`no threshold "nonsense"`: func(c *agppb.Configure) { c.Detect = map[string]float64{"nonsense": 1} },
	} {
		c := conf(file)
		spoil(c)
		_, err := Build(c, &sink{}, (&lines{}).log)
		require.ErrorIs(t, err, ErrConfig, want)
		require.ErrorContains(t, err, want)
	}
}

func TestModelsScoreAndAreExchangedByFileChangeAndByCommand(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.onnx")
	writeModel(t, path, "1", "c2")
	s := &sink{}
	c := conf(writeCapture(t, 20))
	c.Models = []string{path}
	b, l := build(t, c, s)
	require.Equal(t, []string{"test@1"}, b.Models)
	names := func() string {
		var snap telemetry.Snapshot
		b.Pipeline.Snapshot(&snap)
		return strings.Join(snap.Engine.Models, " ")
	}
	answer := func(model, label string) *telemetry.Output {
		return &telemetry.Output{Field: "class", Label: label, Model: model}
	}
	require.True(t, b.Finding(answer("test@1", "c2")))
	require.False(t, b.Finding(answer("test@1", "benign")), "the model says what is benign")
	require.False(t, b.Finding(answer("test@2", "c2")), "no such model was ever in force")
	require.False(t, b.Finding(&telemetry.Output{Field: "app", Label: "dns"}))

	writeModel(t, path, "2", "benign")
	require.Eventually(t, func() bool { return names() == "test@2" }, 10*time.Second, 5*time.Millisecond, "file change")
	require.True(t, l.has("INFO model files changed, now [test@2]"))

	require.NoError(t, os.WriteFile(path, []byte("not a model"), 0o600))
	_, err := b.Swap(c.Models)
	require.Error(t, err, "read again on command")
	require.Equal(t, "test@2", names(), "the old model stays")
	require.True(t, l.has("ERROR model refused"))

	other := filepath.Join(dir, "b.onnx")
	writeModel(t, other, "3", "c2")
	got, err := b.Swap([]string{other})
	require.NoError(t, err)
	require.Equal(t, []string{"test@3"}, got)
	require.Equal(t, "test@3", names())

	require.NoError(t, b.Pipeline.Run(context.Background()))
	require.Len(t, s.records, 20)
	for i := range s.records {
		require.Equal(t, "c2", s.records[i].Outputs[0].Label)
	}

	got, err = b.Swap(nil)
	require.NoError(t, err)
	require.Empty(t, got)
	require.Empty(t, names())
	require.True(t, b.Finding(answer("test@3", "c2")), "flows keep the answers of a model that is gone")
}

func TestFindingAsksTheModelThatGaveTheAnswer(t *testing.T) {
	dir := t.TempDir()
	old, other := filepath.Join(dir, "a.onnx"), filepath.Join(dir, "b.onnx")
	writeModel(t, old, "1", "c2")
	writeBenign(t, other, "2", "c2", "benign", "c2") // for which c2 is harmless
	c := conf(writeCapture(t, 1))
	c.Models = []string{old}
	b, _ := build(t, c, &sink{})
	_, err := b.Swap([]string{other})
	require.NoError(t, err)
	require.True(t, b.Finding(&telemetry.Output{Field: "class", Label: "c2", Model: "test@1"}), "scored before the exchange")
	require.False(t, b.Finding(&telemetry.Output{Field: "class", Label: "c2", Model: "test@2"}))
}

func TestSwapToAListWithARefusedFileKeepsAllOldModels(t *testing.T) {
	dir := t.TempDir()
	old, good, broken := filepath.Join(dir, "a.onnx"), filepath.Join(dir, "b.onnx"), filepath.Join(dir, "c.onnx")
	writeModel(t, old, "1", "c2")
	writeModel(t, good, "2", "benign")
	require.NoError(t, os.WriteFile(broken, []byte("not a model"), 0o600))
	c := conf(writeCapture(t, 1))
	c.Models = []string{old}
	b, l := build(t, c, &sink{})
	for _, list := range [][]string{{broken}, {good, broken}, {filepath.Join(dir, "absent.onnx")}} {
		_, err := b.Swap(list)
		require.Error(t, err)
		var snap telemetry.Snapshot
		b.Pipeline.Snapshot(&snap)
		require.Equal(t, []string{"test@1"}, snap.Engine.Models, "%v", list)
	}
	require.True(t, l.has("ERROR model refused"))
	got, err := b.Swap([]string{good})
	require.NoError(t, err)
	require.Equal(t, []string{"test@2"}, got)
}

func TestModelThatIsRefusedAtTheStartLeavesTheEngineRunning(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.onnx")
	require.NoError(t, os.WriteFile(path, []byte("not a model"), 0o600))
	s := &sink{}
	c := conf(writeCapture(t, 3))
	c.Models = []string{path}
	b, l := build(t, c, s)
	require.Empty(t, b.Models)
	require.True(t, l.has("ERROR model refused"))
	require.NoError(t, b.Pipeline.Run(context.Background()))
	require.Len(t, s.records, 3)

	writeModel(t, path, "1", "c2")
	require.Eventually(t, func() bool { return b.Finding(&telemetry.Output{Field: "class", Label: "c2", Model: "test@1"}) }, 10*time.Second, 5*time.Millisecond,
		"it is picked up when it has been repaired")
}
