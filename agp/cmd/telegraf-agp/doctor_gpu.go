package main

import (
	"errors"
	"fmt"
	"strings"

	pipeline "github.com/agp-net/telegraf-agp/agp/pipeline/cuda"
	"github.com/agp-net/telegraf-agp/cuda"
	"github.com/agp-net/telegraf-agp/cuda/kernels"
)

// gpuNeed is memory for a context, the rings and the default max_flows.
const gpuNeed = 1 << 30

const (
	cpuInstead = "the CPU pipeline is used"
	onlyCPU    = "cpu"
)

// gpuFindings says what GPUs there are and which one the GPU pipeline would take. A GPU is not
// needed, so that nothing here is missing.
func gpuFindings(open func() (*cuda.Driver, error)) []finding {
	auto := func(found, why string) finding {
		if found == onlyCPU {
			return finding{levelOK, "pipeline", found, why}
		}
		return finding{levelOK, "pipeline", onlyCPU + "; the GPU pipeline, which the engine does not offer yet, would take " + found, why}
	}
	d, err := open()
	switch {
	case err == nil:
	case errors.Is(err, cuda.ErrNoDriver) && err.Error() == cuda.ErrNoDriver.Error():
		return []finding{{levelOK, "gpu", "none, " + cpuInstead, ""}, auto(onlyCPU, "no NVIDIA driver")}
	case errors.Is(err, cuda.NoDevice):
		return []finding{{levelOK, "gpu", "a driver without a GPU, " + cpuInstead, ""}, auto(onlyCPU, err.Error())}
	default: // there is something, and it does not work
		return []finding{{levelWarn, "gpu", err.Error(), cpuInstead}, auto(onlyCPU, err.Error())}
	}
	devices, err := d.Devices()
	if err != nil {
		return []finding{{levelWarn, "gpu", err.Error(), cpuInstead}, auto(onlyCPU, err.Error())}
	}
	list := []finding{{levelOK, "gpu driver", fmt.Sprintf("CUDA %s, %d GPU(s)", d.Version(), len(devices)), ""}}
	for _, dev := range devices {
		list = append(list, gpuFinding(d.Version(), dev))
	}
	dev, err := pipeline.Choose(d, gpuNeed)
	if err != nil {
		return append(list, auto(onlyCPU, strings.ReplaceAll(err.Error(), "\n", "; ")))
	}
	what := fmt.Sprintf("GPU %d", dev.Index())
	if i, err := dev.Info(); err == nil {
		if image, err := kernels.For(i.Major, i.Minor); err == nil {
			what += " with " + image.Kind
		}
	}
	return append(list, auto(what, "the first that fits"))
}

// gpuFinding describes one GPU.
func gpuFinding(driver cuda.Version, dev *cuda.Device) finding {
	i, err := dev.Info()
	if err != nil {
		return finding{levelWarn, "gpu", err.Error(), "it is not used"}
	}
	text := fmt.Sprintf("%d: %s, compute capability %s, %d SMs, %.1f GiB", i.Index, i.Name, i.Capability(), i.SMs, float64(i.MemoryBytes)/(1<<30))
	if i.MIG {
		text += ", MIG slice"
	}
	text += fmt.Sprintf(", compute mode %s, write ordering %s", i.Mode, i.Ordering)
	for _, f := range []struct {
		has  bool
		name string
	}{{i.DirectRDMA, "GPUDirect RDMA"}, {i.DMABuf, "dma-buf"}, {i.Ecc, "ECC"}} {
		if f.has {
			text += ", " + f.name
		}
	}
	f := finding{levelOK, "gpu", text, ""}
	switch err := pipeline.Fit(driver, &i, gpuNeed); {
	case err != nil:
		f.level, f.hint = levelWarn, err.Error()
	case i.Ordering < cuda.OrderingOwner:
		f.level, f.hint = levelWarn, "no network card can write into its memory in order: frames come through memory of the host"
	case i.Mode == cuda.ComputeExclusiveProcess:
		f.level, f.hint = levelWarn, "only one process can use it: the engine fails if another does"
	}
	return f
}
