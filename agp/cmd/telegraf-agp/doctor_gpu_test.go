package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/telemetry"
	"github.com/agp-net/telegraf-agp/cuda"
	"github.com/agp-net/telegraf-agp/cuda/cudatest"
	"github.com/agp-net/telegraf-agp/plugins/inputs/agp"
)

// said is what the doctor prints about a driver, with the defaults or a change to them.
func said(open func() (*cuda.Driver, error), change ...func(*agp.AGP)) string {
	conf := agp.New()
	for _, f := range change {
		f(conf)
	}
	var b strings.Builder
	report(&b, gpuFindings(open, conf, nil))
	return b.String()
}

func gpus(version int, list ...cuda.Info) func() (*cuda.Driver, error) {
	return cudatest.New(cudatest.Options{Version: version, Devices: list}).Open
}

func TestDoctorDescribesGPUsAndSaysWhichWouldDo(t *testing.T) {
	slice, old, weak, exclusive := cudatest.H200(), cudatest.H200(), cudatest.H200(), cudatest.H200()
	slice.MIG, slice.UUID, slice.MemoryBytes, slice.SMs = true, "MIG-ffeeddcc-bbaa-9988-7766-554433221100", 16<<30, 16
	old.Name, old.Major, old.Minor = "Tesla T4", 7, 5
	weak.Name, weak.Major, weak.Minor, weak.Ordering = "NVIDIA A100", 8, 0, cuda.OrderingNone
	exclusive.Mode = cuda.ComputeExclusiveProcess

	require.Equal(t, ""+
		"ok       gpu driver    CUDA 13.0, 1 GPU(s)\n"+
		"ok       gpu           0: NVIDIA H200, compute capability 9.0, 132 SMs, 139.0 GiB, compute mode default, write ordering owner, GPUDirect RDMA, dma-buf, ECC\n"+
		"ok       pipeline      cuda on GPU 0, NVIDIA H200 with sm_90a cubin (auto: the first that suffices)\n", said(gpus(13000, cudatest.H200())))

	all := gpus(13000, old, weak, slice, exclusive)
	text := said(all)
	require.Contains(t, text, "CUDA 13.0, 4 GPU(s)")
	require.Regexp(t, `(?m)^warn +gpu +0: Tesla T4, compute capability 7.5.*\(GPU cannot be used: 0, Tesla T4: compute capability below 8.0: 7.5\)$`, text)
	require.Regexp(t, `(?m)^warn +gpu +1: NVIDIA A100.*write ordering none.*\(no network card can write`, text)
	require.Regexp(t, `(?m)^ok +gpu +2: NVIDIA H200, .*16 SMs, 16.0 GiB, MIG slice`, text)
	require.Regexp(t, `(?m)^warn +gpu +3: .*compute mode exclusive process.*\(only one process`, text)
	require.Regexp(t, `(?m)^ok +pipeline +cuda on GPU 1, NVIDIA A100 with compute_80 PTX \(auto`, text)
	text = said(all, func(c *agp.AGP) { c.GPU = "2" })
	require.Regexp(t, `(?m)^ok +pipeline +cuda on GPU 2, MIG slice of NVIDIA H200 with sm_90a cubin \(as configured\)$`, text)
}

func TestDoctorSaysWhichPipelineTheConfigurationGivesAndWhy(t *testing.T) {
	old := gpus(12080, cudatest.H200())
	require.Regexp(t, `(?m)^ok +pipeline +cpu \(auto: GPU cannot be used: 0, NVIDIA H200: CUDA driver too old: it runs CUDA 12.8, the device code needs 13.0\)$`, said(old))
	require.Regexp(t, `(?m)^missing +pipeline +cuda \(GPU cannot be used: 0, .*needs 13.0\)$`, said(old, func(c *agp.AGP) { c.Pipeline = "cuda" }))
	require.Regexp(t, `(?m)^missing +pipeline +cuda \(GPU cannot be used: 0, .*needs 13.0\)$`, said(old, func(c *agp.AGP) { c.Mode = "stateless" }), "the processor is no choice")
	good, small := gpus(13000, cudatest.H200()), cudatest.H200()
	small.MemoryBytes = 1 << 30
	require.Regexp(t, `(?m)^ok +pipeline +cpu \(as configured\)$`, said(good, func(c *agp.AGP) { c.Pipeline = "cpu" }))
	require.Regexp(t, `(?m)^ok +pipeline +cuda on GPU 0, NVIDIA H200 with sm_90a cubin \(as configured\)$`, said(good, func(c *agp.AGP) { c.Pipeline = "cuda" }))
	require.Regexp(t, `(?m)^ok +pipeline +cpu \(auto: no such GPU: 3, the driver shows 1\)$`, said(good, func(c *agp.AGP) { c.GPU = "3" }))
	require.Regexp(t, `(?m)^ok +pipeline +cpu \(auto: GPU cannot be used: 0, NVIDIA H200: .*: 1024 MiB, 2\d{3} are needed\)$`, said(gpus(13000, small), func(c *agp.AGP) { c.MaxFlows = 1 << 20 }))
}

// TestDoctorShowsWhatTheManagementLibrarySays of each GPU's health.
func TestDoctorShowsWhatTheManagementLibrarySays(t *testing.T) {
	say := func(row telemetry.GPURow) string {
		row.UUID = cudatest.H200().UUID
		var b strings.Builder
		report(&b, gpuFindings(gpus(13000, cudatest.H200()), agp.New(), []telemetry.GPURow{{UUID: "GPU-other", Lost: true}, row}))
		return b.String()
	}
	require.Regexp(t, `(?m)^ok +gpu +0: .*, ECC, 100.0 GiB free$`, say(telemetry.GPURow{MemoryUsedBytes: new(uint64(39 << 30)), MemoryTotalBytes: new(uint64(139 << 30)), EccUncorrected: new(uint64(0))}))
	require.Regexp(t, `(?m)^warn +gpu +0: .*\(3 memory errors that ECC cannot correct`, say(telemetry.GPURow{EccUncorrected: new(uint64(3))}))
	text := say(telemetry.GPURow{Lost: true})
	require.Regexp(t, `(?m)^warn +gpu +0: .*\(it does not answer any more`, text)
	require.Regexp(t, `(?m)^ok +pipeline +cpu \(auto: GPU cannot be used: 0, NVIDIA H200: it does not answer any more\)$`, text)
}

func TestDoctorWithoutAGPU(t *testing.T) {
	none := func() (*cuda.Driver, error) { return nil, cuda.ErrNoDriver }
	require.Equal(t, "ok       gpu           none\nok       pipeline      cpu (auto: no NVIDIA driver)\n", said(none))
	require.Regexp(t, `(?m)^missing +pipeline +cuda \(no NVIDIA driver\)$`, said(none, func(c *agp.AGP) { c.Pipeline = "cuda" }))
	require.Regexp(t, `(?m)^ok +gpu +a driver without a GPU`, said(gpus(13000)))
	broken := func() (*cuda.Driver, error) { return nil, fmt.Errorf("%w: wrong ELF class", cuda.ErrNoDriver) }
	require.Regexp(t, `(?m)^warn +gpu +no CUDA driver: .*: wrong ELF class$`, said(broken))

	d := cudatest.New(cudatest.Options{Devices: []cuda.Info{cudatest.H200()}})
	d.Fail("cuInit", cuda.SystemDriverMismatch, 0)
	require.Regexp(t, `(?m)^warn +gpu +cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH \(803\): .*reload the module or reboot$`, said(d.Open))
	d.Fail("cuDeviceGetCount", cuda.Unknown, 0)
	require.Regexp(t, `(?m)^warn +gpu +cuDeviceGetCount`, said(d.Open))
	d.Fail("cuDeviceGetName", cuda.Unknown, 0)
	require.Regexp(t, `(?m)^warn +gpu +device 0: cuDeviceGetName.*\(it is not used\)`, said(d.Open))
}

func TestDoctorReadsTheConfiguration(t *testing.T) {
	look := func(text string) (string, *agp.AGP) {
		m := machine{root: "/", config: filepath.Join(t.TempDir(), "agp.conf")}
		require.NoError(t, os.WriteFile(m.config, []byte(text), 0o600))
		conf, f := m.configuration()
		var b strings.Builder
		report(&b, []finding{f, m.models(conf)})
		return b.String(), conf
	}
	text, conf := look("[[inputs.agp]]\n  models = [\"none\"]\n  pipeline = \"cuda\"\n  gpu = \"1\"\n")
	require.Regexp(t, `(?m)^ok +configuration +/`, text)
	require.Regexp(t, `(?m)^ok +models +none, as configured$`, text, "what is not wanted is not missing")
	require.Equal(t, "cuda", conf.Pipeline)
	require.Equal(t, "1", conf.GPU)
	text, _ = look("[[inputs.agp]]\n  models = [\"/does/not/exist.onnx\"]\n")
	require.Regexp(t, `(?m)^missing +models +.*exist.onnx.*\(correct models = \[...\]\)$`, text)
	text, _ = look("[[inputs.agp]]\n  modles = []\n")
	require.Regexp(t, `(?m)^missing +configuration +.*modles`, text)
}
