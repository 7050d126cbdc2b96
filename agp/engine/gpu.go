package engine

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/agp-net/telegraf-agp/agp/internal/claim"
	"github.com/agp-net/telegraf-agp/agp/mlx5"
	"github.com/agp-net/telegraf-agp/agp/options"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
	"github.com/agp-net/telegraf-agp/agp/telemetry/agppb"
	"github.com/agp-net/telegraf-agp/agp/telemetry/gpu"
	driver "github.com/agp-net/telegraf-agp/cuda"
)

// ErrGPU says that pipeline = "cuda" cannot be had, and why. Another time it may.
var ErrGPU = errors.New("no GPU for the pipeline")

// Hardware is where the GPU pipeline finds its GPU. The zero value is this machine; tests have
// others.
type Hardware struct {
	Driver func() (*driver.Driver, error)
	Open   func(*driver.Device) (cuda.Device, error)
	// Readings opens the reader of one GPU, which gpu.ErrAbsent says cannot be.
	Readings func(uuid string) (Readings, error)
	// Claim takes a GPU or slice for this process alone: kernels that do not end would wait for
	// each other.
	Claim func(uuid string) (io.Closer, error)
	// Patience is cuda.Config.Patience: device code on the host is slower.
	Patience time.Duration
}

// Readings is gpu.Reader.
type Readings interface {
	Read(*telemetry.Snapshot)
	Close() error
}

func (h *Hardware) setDefaults() {
	if h.Driver == nil {
		h.Driver = driver.Open
	}
	if h.Open == nil {
		h.Open = func(d *driver.Device) (cuda.Device, error) { return cuda.OpenGPU(d) }
	}
	if h.Claim == nil {
		h.Claim = func(uuid string) (io.Closer, error) { return claim.Take("gpu/" + uuid) }
	}
	if h.Readings == nil {
		h.Readings = func(uuid string) (Readings, error) { return gpu.Open(gpu.Options{UUIDs: []string{uuid}}) }
	}
}

// gpuFault says whether the error with which a pipeline ended is of the GPU or of its use, not of
// the source.
func gpuFault(err error) bool {
	var r driver.Result
	return errors.As(err, &r) || errors.Is(err, ErrGPU) || errors.Is(err, cuda.ErrDevice) || errors.Is(err, cuda.ErrHung) || errors.Is(err, cuda.ErrRing)
}

// reasons writes several in one line.
func reasons(errs []error) string {
	return strings.ReplaceAll(errors.Join(errs...).Error(), "\n", "; ")
}

// choose builds a GPU pipeline where conf wants one and there is one. Without, the error says why
// not; it is ErrGPU where the CPU pipeline is no choice.
func (b *building) choose() (why string, err error) {
	conf := b.conf
	auto := conf.GetPipeline() == options.PipelineAuto
	_, needed := options.NeedsGPU(conf.GetPipeline(), conf.GetMode())
	switch {
	case conf.GetPipeline() == options.PipelineCPU:
		return "as configured", nil
	case !needed && conf.GetGpuFailed() != "":
		return conf.GetGpuFailed(), nil
	}
	d, err := b.hardware.Driver()
	if err != nil {
		return b.without([]error{cuda.Explain(err)})
	}
	fit, unfit := cuda.Select(d, conf.GetGpu(), cuda.Need(b.flows().MaxFlows))
	for _, dev := range fit {
		err := b.onGPU(dev)
		switch {
		case err == nil && auto && conf.GetGpu() == "":
			return b.gpu.name() + ", the first that suffices", nil
		case err == nil:
			return b.gpu.name() + ", as configured", nil
		case b.failed != nil:
			return "", b.failed
		}
		unfit = append(unfit, err)
	}
	return b.without(unfit)
}

// without is what choose returns when no GPU suffices.
func (b *building) without(why []error) (string, error) {
	if option, needed := options.NeedsGPU(b.conf.GetPipeline(), b.conf.GetMode()); needed {
		return "", fmt.Errorf("%w: %s: %w", ErrGPU, option, errors.New(reasons(why)))
	}
	return "no GPU: " + reasons(why), nil
}

// onGPU builds the pipeline on a GPU, or gives everything back.
func (b *building) onGPU(dev *driver.Device) (err error) {
	g := &onGPU{}
	if g.info, err = dev.Info(); err != nil {
		return err
	}
	failed := func(err error) error {
		return errors.Join(fmt.Errorf("%w: %s: %w", cuda.ErrUnfit, cuda.Describe(&g.info), cuda.Explain(err)), g.close())
	}
	if g.claim, err = b.hardware.Claim(g.info.UUID); err != nil {
		g.claim = nil
		return failed(err)
	}
	if err := g.watch(b.hardware, b.log); err != nil {
		return failed(err)
	}
	device, err := b.hardware.Open(dev)
	if err != nil {
		return failed(err)
	}
	g.device = device
	if err := b.open(); err != nil { // after the GPU: a port is not touched for nothing
		return errors.Join(err, g.close())
	}
	conf, sketches := b.conf, b.sketches()
	c := cuda.Config{
		Device: g.device, Source: b.src, SourceName: conf.GetSource().GetKind(), Interface: conf.GetInterface(), Sink: b.sink,
		Rings: int(min(conf.GetQueues(), cuda.MaxRings+1)), Decap: b.decap(), Flow: b.flows(), Key: b.key, Now: b.now,
		Lossless: !b.built.Live, Drop: b.built.Live, Models: b.scoring(), Sketch: &sketches,
		Patience: b.hardware.Patience, Mode: cuda.Mode(conf.GetMode()),
	}
	if c.Mode != cuda.ModeStateless {
		c.Detect = &b.thresholds
	}
	if conf.GetSource().GetKind() == "mirror" { // of a frame no more is seen
		c.Pitch = (conf.GetSource().GetLive().GetSnapLen() + mlx5.StrideUnit - 1) / mlx5.StrideUnit * mlx5.StrideUnit
	}
	p, err := cuda.New(c)
	for c.Rings = cuda.DefaultRings / 2; conf.GetQueues() == 0 && c.Rings > 0 && errors.Is(err, driver.CooperativeLaunchTooLarge); c.Rings /= 2 {
		p, err = cuda.New(c)
	}
	if err != nil {
		return failed(err)
	}
	g.pipeline = p
	b.gpu = g
	blocks, warps := p.Grid()
	b.built.Pipeline, b.built.Kind, b.built.Queues, b.built.GPU = p, options.PipelineCUDA, blocks, g.readings(blocks, warps)
	if conf.GetSource().GetLive().GetRebalanceSkew() > 0 {
		b.log(agppb.Log_INFO, "rebalance_skew: the GPU pipeline moves no flows between its queues")
	}
	return nil
}

// onGPU is what an engine has of one GPU.
type onGPU struct {
	info     driver.Info
	device   cuda.Device
	pipeline *cuda.Pipeline
	reader   Readings // nil: none
	claim    io.Closer
}

func (g *onGPU) name() string { return "GPU " + cuda.Describe(&g.info) }

// watch opens the reader and asks whether the GPU is well.
func (g *onGPU) watch(h *Hardware, log Log) (err error) {
	reader, err := h.Readings(g.info.UUID)
	switch {
	case errors.Is(err, gpu.ErrAbsent):
		return nil
	case err != nil: // it is only looked at
		log(agppb.Log_WARN, "%s is not measured: %v", g.name(), err)
		return nil
	}
	g.reader = reader
	var s telemetry.Snapshot
	reader.Read(&s)
	for i := range s.GPUs {
		r := &s.GPUs[i]
		if r.Lost {
			return errors.New("it does not answer any more (NVML: GPU is lost)")
		}
		if n := r.EccUncorrected; n != nil && *n > 0 {
			log(agppb.Log_WARN, "%s has had %d memory errors that ECC cannot correct since its driver was loaded: see nvidia-smi -q -d ECC,ROW_REMAPPER", g.name(), *n)
		}
	}
	return nil
}

// readings returns Built.GPU.
func (g *onGPU) readings(blocks, warps int) func(*telemetry.Snapshot) {
	all, sms := uint64(blocks*warps), uint64(min(blocks, g.info.SMs))
	used := energy{every: energyWindow, now: time.Now}
	return func(s *telemetry.Snapshot) {
		at := len(s.GPUs)
		s.GPUs = append(s.GPUs, telemetry.GPURow{
			Index: uint32(g.info.Index), UUID: g.info.UUID, Name: g.info.Name, EngineWarps: &all, EngineSMs: &sms,
		})
		if g.reader != nil {
			g.reader.Read(s)
			s.GPUs[at].JoulesPerMillionPackets = used.perMillion(s.GPUs[at].EnergyMillijoules, s.Engine.PacketsSeen)
		}
	}
}

// close gives everything back; a kernel that does not end keeps all.
func (g *onGPU) close() error {
	var errs []error
	if g.pipeline != nil {
		errs = append(errs, g.pipeline.Close())
	}
	if g.device != nil {
		errs = append(errs, g.device.Close())
	}
	if g.reader != nil {
		errs = append(errs, g.reader.Close())
	}
	if g.claim != nil {
		errs = append(errs, g.claim.Close())
	}
	return errors.Join(errs...)
}

// withXid adds what the driver has reported of the GPU to the error that it failed with.
func withXid(err error, s *telemetry.Snapshot) error {
	for i := range s.GPUs {
		if g := &s.GPUs[i]; g.LastXid != nil {
			err = fmt.Errorf("%w; the last of %d critical errors that the driver reported of %s is XID %d", err, *g.XidErrors, g.UUID, *g.LastXid)
		}
	}
	return err
}

// energyWindow is the time over which energy is compared with packets.
const energyWindow = 10 * time.Second

// energy compares what a GPU has consumed with what the engine has seen meanwhile.
type energy struct {
	every       time.Duration
	now         func() time.Time
	since       time.Time
	millijoules uint64
	packets     uint64
	last        *float64
}

// perMillion returns joules per million packets of the last whole window, nil if there was none or
// no packet in it.
func (e *energy) perMillion(millijoules *uint64, packets uint64) *float64 {
	if millijoules == nil {
		return nil
	}
	now := e.now()
	began := !e.since.IsZero()
	if began && now.Sub(e.since) < e.every {
		return e.last
	}
	e.last = nil
	if began && *millijoules >= e.millijoules && packets > e.packets {
		v := float64(*millijoules-e.millijoules) * 1e3 / float64(packets-e.packets)
		e.last = &v
	}
	e.since, e.millijoules, e.packets = now, *millijoules, packets
	return e.last
}
