package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/cuda"
	"github.com/agp-net/telegraf-agp/cuda/cudatest"
)

// said is what the doctor prints about a driver.
func said(open func() (*cuda.Driver, error)) string {
	var b strings.Builder
	report(&b, gpuFindings(open))
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
		"ok       pipeline      cpu; the GPU pipeline, which the engine does not offer yet, would take GPU 0 with sm_90a cubin (the first that fits)\n", said(gpus(13000, cudatest.H200())))

	text := said(gpus(13000, old, weak, slice, exclusive))
	require.Contains(t, text, "CUDA 13.0, 4 GPU(s)")
	require.Regexp(t, `(?m)^warn +gpu +0: Tesla T4, compute capability 7.5.*\(GPU cannot be used: 0, Tesla T4: compute capability below 8.0: 7.5\)$`, text)
	require.Regexp(t, `(?m)^warn +gpu +1: NVIDIA A100.*write ordering none.*\(no network card can write`, text)
	require.Regexp(t, `(?m)^ok +gpu +2: NVIDIA H200, .*16 SMs, 16.0 GiB, MIG slice`, text)
	require.Regexp(t, `(?m)^warn +gpu +3: .*compute mode exclusive process.*\(only one process`, text)
	require.Regexp(t, `(?m)^ok +pipeline +cpu; the GPU pipeline.*would take GPU 1 with compute_80 PTX`, text)

	text = said(gpus(12080, cudatest.H200()))
	require.Regexp(t, `(?m)^ok +pipeline +cpu \(GPU cannot be used: 0, NVIDIA H200: CUDA driver too old: it runs CUDA 12.8, the device code needs 13.0\)$`, text)
}

func TestDoctorWithoutAGPU(t *testing.T) {
	none := func() (*cuda.Driver, error) { return nil, cuda.ErrNoDriver }
	require.Equal(t, "ok       gpu           none, the CPU pipeline is used\nok       pipeline      cpu (no NVIDIA driver)\n", said(none))
	require.Regexp(t, `(?m)^ok +gpu +a driver without a GPU`, said(gpus(13000)))
	broken := func() (*cuda.Driver, error) { return nil, fmt.Errorf("%w: wrong ELF class", cuda.ErrNoDriver) }
	require.Regexp(t, `(?m)^warn +gpu +no CUDA driver: .*: wrong ELF class \(the CPU pipeline is used\)$`, said(broken))

	d := cudatest.New(cudatest.Options{Devices: []cuda.Info{cudatest.H200()}})
	d.Fail("cuInit", cuda.SystemDriverMismatch, 0)
	require.Regexp(t, `(?m)^warn +gpu +cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH \(803\): .*\(the CPU pipeline is used\)$`, said(d.Open))
	d.Fail("cuDeviceGetCount", cuda.Unknown, 0)
	require.Regexp(t, `(?m)^warn +gpu +cuDeviceGetCount`, said(d.Open))
	d.Fail("cuDeviceGetName", cuda.Unknown, 0)
	require.Regexp(t, `(?m)^warn +gpu +device 0: cuDeviceGetName.*\(it is not used\)`, said(d.Open))
}
