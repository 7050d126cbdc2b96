package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/agp-net/telegraf-agp/agp/options"
	pipeline "github.com/agp-net/telegraf-agp/agp/pipeline/cuda"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
	"github.com/agp-net/telegraf-agp/agp/telemetry/gpu"
	"github.com/agp-net/telegraf-agp/cuda"
	"github.com/agp-net/telegraf-agp/cuda/kernels"
	"github.com/agp-net/telegraf-agp/plugins/inputs/agp"
)

// gpuFindings says what GPUs there are and which pipeline the plugin's configuration gives. A GPU
// is only missing where the configuration insists on one.
func gpuFindings(open func() (*cuda.Driver, error), conf *agp.AGP, rows []telemetry.GPURow) []finding {
	need := pipeline.Need(conf.MaxFlows)
	d, err := open()
	switch {
	case err == nil:
	case errors.Is(err, cuda.ErrNoDriver) && err.Error() == cuda.ErrNoDriver.Error():
		return []finding{{levelOK, "gpu", "none", ""}, pipelineFinding(conf, nil, []error{errors.New("no NVIDIA driver")})}
	case errors.Is(err, cuda.NoDevice):
		return []finding{{levelOK, "gpu", "a driver without a GPU", ""}, pipelineFinding(conf, nil, []error{pipeline.Explain(err)})}
	default: // there is something, and it does not work
		err = pipeline.Explain(err)
		return []finding{{levelWarn, "gpu", err.Error(), ""}, pipelineFinding(conf, nil, []error{err})}
	}
	devices, err := d.Devices()
	if err != nil {
		return []finding{{levelWarn, "gpu", err.Error(), ""}, pipelineFinding(conf, nil, []error{err})}
	}
	list := []finding{{levelOK, "gpu driver", fmt.Sprintf("CUDA %s, %d GPU(s)", d.Version(), len(devices)), ""}}
	for _, dev := range devices {
		list = append(list, gpuFinding(d.Version(), dev, need, rows))
	}
	fit, unfit := pipeline.Select(d, conf.GPU, need)
	fit = slices.DeleteFunc(fit, func(dev *cuda.Device) bool {
		i, err := dev.Info()
		lost := err == nil && slices.ContainsFunc(rows, func(r telemetry.GPURow) bool { return r.UUID == i.UUID && r.Lost })
		if lost {
			unfit = append(unfit, fmt.Errorf("%w: %s: it does not answer any more", pipeline.ErrUnfit, pipeline.Describe(&i)))
		}
		return lost
	})
	return append(list, pipelineFinding(conf, fit, unfit))
}

// gpuReadings are what the management library says; none without it.
func gpuReadings() []telemetry.GPURow {
	r, err := gpu.Open(gpu.Options{})
	if err != nil {
		return nil // the driver's own words are shown
	}
	defer func() { _ = r.Close() }() // nothing depends on it
	var s telemetry.Snapshot
	r.Read(&s)
	return s.GPUs
}

// pipelineFinding says which pipeline an engine would run.
func pipelineFinding(conf *agp.AGP, fit []*cuda.Device, unfit []error) finding {
	f := finding{levelOK, "pipeline", options.PipelineCPU, "as configured"}
	auto := conf.Pipeline == options.PipelineAuto
	_, needed := options.NeedsGPU(conf.Pipeline, conf.Mode)
	switch {
	case conf.Pipeline == options.PipelineCPU:
	case len(fit) == 0 && !needed:
		f.hint = "auto: " + strings.ReplaceAll(errors.Join(unfit...).Error(), "\n", "; ")
	case len(fit) == 0:
		return finding{levelMissing, "pipeline", options.PipelineCUDA, strings.ReplaceAll(errors.Join(unfit...).Error(), "\n", "; ")}
	default:
		f.found = options.PipelineCUDA
		if i, err := fit[0].Info(); err == nil {
			f.found += " on GPU " + pipeline.Describe(&i)
			if image, err := kernels.For(i.Major, i.Minor); err == nil {
				f.found += " with " + image.Kind
			}
		}
		if auto && conf.GPU == "" {
			f.hint = "auto: the first that suffices"
		}
	}
	return f
}

// gpuFinding describes one GPU.
func gpuFinding(driver cuda.Version, dev *cuda.Device, need uint64, rows []telemetry.GPURow) finding {
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
	for k := range rows {
		r := &rows[k]
		if r.UUID != i.UUID {
			continue
		}
		if used, total := r.MemoryUsedBytes, r.MemoryTotalBytes; used != nil && total != nil {
			f.found += fmt.Sprintf(", %.1f GiB free", float64(*total-min(*used, *total))/(1<<30))
		}
		if r.Lost {
			f.level, f.hint = levelWarn, "it does not answer any more: reset it, or reboot"
			return f
		}
		if n := r.EccUncorrected; n != nil && *n > 0 {
			f.level, f.hint = levelWarn, fmt.Sprintf("%d memory errors that ECC cannot correct since its driver was loaded: see nvidia-smi -q -d ECC,ROW_REMAPPER", *n)
			return f
		}
	}
	switch err := pipeline.Fit(driver, &i, need); {
	case err != nil:
		f.level, f.hint = levelWarn, err.Error()
	case pipeline.Ordered(&i) != nil:
		f.level, f.hint = levelWarn, "no network card can write into its memory in order: frames come through memory of the host"
	case i.Mode == cuda.ComputeExclusiveProcess:
		f.level, f.hint = levelWarn, "only one process can use it at a time"
	}
	return f
}
