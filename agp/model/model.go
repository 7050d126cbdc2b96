package model

import (
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"slices"

	"github.com/cespare/xxhash/v2"
)

// Model is a plan and what its inputs and outputs mean. Immutable.
type Model struct {
	Metadata
	plan *Plan
	id   string
	hash uint64
}

// Load reads and validates a model file; see LoadBytes.
func Load(path string) (*Model, error) {
	b, err := readFile(path)
	if err != nil {
		return nil, err
	}
	m, err := LoadBytes(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
}

// readFile reads a file that may grow while it is read, but never more than a model may have.
func readFile(path string) ([]byte, error) {
	// Looked at before it is opened: opening a named pipe waits for its other end.
	if st, err := os.Stat(path); err != nil {
		return nil, err
	} else if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: %w: not a regular file", path, ErrFormat)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil {
		return nil, err
	} else if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: %w: not a regular file", path, ErrFormat)
	} else if st.Size() > maxFileBytes {
		return nil, fmt.Errorf("%s: %w: %d bytes, at most %d", path, ErrTooLarge, st.Size(), maxFileBytes)
	}
	return io.ReadAll(io.LimitReader(f, maxFileBytes+1))
}

// LoadBytes turns an ONNX file into a model. Everything is checked first: the
// graph, the metadata, that the two fit each other, and that a trial run answers
// with probabilities.
func LoadBytes(b []byte) (*Model, error) {
	g, err := parseONNX(b)
	if err != nil {
		return nil, err
	}
	m := &Model{hash: xxhash.Sum64(b)}
	if m.Metadata, err = parseMetadata(g.meta); err != nil {
		return nil, err
	}
	if m.plan, err = compile(g); err != nil {
		return nil, err
	}
	m.id = m.Name + "@" + m.Version
	if want := m.Features.Inputs(); m.plan.Inputs != want {
		return nil, fmt.Errorf("%w: graph has %d inputs, feature set %s has %d", ErrShape, m.plan.Inputs, m.Features, want)
	}
	single := m.plan.Outputs == 1 && m.plan.Final == FinalSigmoid && len(m.Classes) == 2
	if m.plan.Outputs != len(m.Classes) && !single {
		return nil, fmt.Errorf("%w: graph has %d outputs, agp.classes names %d", ErrShape, m.plan.Outputs, len(m.Classes))
	}
	if m.plan.Final == FinalOther {
		return nil, fmt.Errorf("%w: the last operator must be Softmax (over all outputs) or Sigmoid", ErrMetadata)
	}
	return m, m.trial()
}

// ID is name@version.
func (m *Model) ID() string { return m.id }

// Plan returns the compiled graph.
func (m *Model) Plan() *Plan { return m.plan }

// Hash identifies the content of the file.
func (m *Model) Hash() uint64 { return m.hash }

// Alert says whether an answer of this model is a finding: a class that is
// neither benign nor unknown. Applications are never findings.
func (m *Metadata) Alert(label string) bool {
	return m.Field == "class" && label != Unknown && !slices.Contains(m.Benign, label)
}

// trial runs plausible inputs through the model.
func (m *Model) trial() error {
	const n = 32
	in, out := m.SampleInputs(n), make([]float32, n*m.plan.Outputs)
	NewExecutor(m.plan).Run(in, n, out)
	for f := range n {
		var sum float64
		for i, p := range out[f*m.plan.Outputs : (f+1)*m.plan.Outputs] {
			if !(p >= 0 && p <= 1.0001) { // also NaN
				return fmt.Errorf("%w: output %d of trial %d is %v, not a probability", ErrTrial, i, f, p)
			}
			sum += float64(p)
		}
		if m.plan.Final == FinalSoftmax && math.Abs(sum-1) > 1e-3 {
			return fmt.Errorf("%w: outputs of trial %d add up to %v", ErrTrial, f, sum)
		}
	}
	return nil
}

// SampleInputs returns the inputs of n made-up flows, the same ones on every call.
func (m *Model) SampleInputs(n int) []float32 {
	in := make([]float32, n*m.plan.Inputs)
	rng := rand.New(rand.NewPCG(1, 1))
	for f := range n {
		trialInput(m.Features, rng, f, in[f*m.plan.Inputs:(f+1)*m.plan.Inputs])
	}
	return in
}

// trialInput makes an input that a flow could have: empty, huge, then random.
func trialInput(s FeatureSet, rng *rand.Rand, i int, dst []float32) {
	switch s {
	case HeadSet:
		var h Head
		if i > 0 {
			h.Protocol = uint8(rng.IntN(256))
			h.Packets = uint8(rng.IntN(HeadPackets + 1))
			for d := range h.Payload {
				h.PayloadLen[d] = uint8(rng.IntN(HeadPayload + 1))
				for j := range h.Payload[d] {
					h.Payload[d][j] = uint8(rng.IntN(256))
				}
			}
			for j := range h.Len {
				h.Len[j] = int16(rng.IntN(3000) - 1500)
				h.Delay[j] = uint8(rng.IntN(65))
			}
		}
		h.Vector(dst)
	case Summary:
		var f FlowSummary
		if i > 0 {
			f.Protocol = uint8(rng.IntN(256))
			for d := range f.Packets {
				f.Packets[d] = rng.Uint64N(1 << (1 + i%32))
				f.Bytes[d] = f.Packets[d] * (40 + rng.Uint64N(1460))
				f.TCPFlags[d] = uint8(rng.IntN(256))
			}
			f.DurationNs = rng.Int64N(1 << 40)
		}
		f.Vector(dst)
	default:
		if i == 0 {
			clear(dst)
			return
		}
		for j := range dst {
			dst[j] = 0
			if rng.IntN(4) == 0 {
				dst[j] = float32(rng.Uint64N(1 << (i % 24)))
			}
		}
	}
}
