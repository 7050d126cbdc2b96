package cuda

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unsafe"

	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda/abi"
	"github.com/agp-net/telegraf-agp/cuda"
	"github.com/agp-net/telegraf-agp/cuda/kernels"
)

// ErrUnfit says that a GPU cannot run the pipeline, and why.
var ErrUnfit = errors.New("GPU cannot be used")

// ErrNoSuchGPU says that the GPU that is asked for is not there.
var ErrNoSuchGPU = errors.New("no such GPU")

// contextBytes is what a context and the device code take of a GPU's memory, about.
const contextBytes = 512 << 20

// Need is the memory of a GPU that a pipeline for so many flows takes, about: what it really
// takes depends on how many rings share them.
func Need(flows int) uint64 {
	return contextBytes + 29*uint64(flows)/20*uint64(unsafe.Sizeof(abi.Flow{})+unsafe.Sizeof(abi.Hist{})+unsafe.Sizeof(abi.Head{})+8)
}

// Fit says what keeps a GPU from running the pipeline with so much of its memory,
// by what it says of itself. nil does not promise that the memory is free.
func Fit(driver cuda.Version, i *cuda.Info, need uint64) error {
	unfit := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s: %w", ErrUnfit, Describe(i), fmt.Errorf(format, args...))
	}
	switch _, err := kernels.For(i.Major, i.Minor); {
	case err != nil:
		return unfit("%w", err)
	case driver < kernels.Toolkit:
		return unfit("%w: it runs CUDA %s, the device code needs %s", cuda.ErrOldDriver, driver, cuda.Version(kernels.Toolkit))
	case i.Mode == cuda.ComputeProhibited:
		return unfit("compute mode %s", i.Mode)
	case !i.HostMemory:
		return unfit("memory of the host cannot be mapped")
	case !i.Cooperative:
		return unfit("no cooperative launches")
	case i.MemoryBytes < need:
		return unfit("%w: %d MiB, %d are needed", cuda.OutOfMemory, i.MemoryBytes>>20, need>>20)
	}
	return nil
}

// Describe names a GPU or a slice of one: "0, NVIDIA H200".
func Describe(i *cuda.Info) string {
	if i.MIG {
		return fmt.Sprintf("%d, MIG slice of %s", i.Index, i.Name)
	}
	return fmt.Sprintf("%d, %s", i.Index, i.Name)
}

// Ordered says whether a port may write completions and payload into the GPU's memory:
// ErrOrdering if the GPU can see the one before the other. Frames that come through memory of
// the host, which the GPU maps, are not concerned.
func Ordered(i *cuda.Info) error {
	if i.Ordering < cuda.OrderingOwner {
		return fmt.Errorf("%w: %s", ErrOrdering, Describe(i))
	}
	return nil
}

// Select returns the GPUs that fit, in their order, and why the others do not. wish is the index
// or the UUID of the only one that comes into question, "" for all.
func Select(d *cuda.Driver, wish string, need uint64) (fit []*cuda.Device, unfit []error) {
	list, err := d.Devices()
	if err != nil {
		return nil, []error{err}
	}
	found := false
	for _, dev := range list {
		i, err := dev.Info()
		if wish != "" && wish != strconv.Itoa(dev.Index()) && !strings.EqualFold(wish, i.UUID) {
			continue
		}
		found = true
		if err == nil {
			err = Fit(d.Version(), &i, need)
		}
		if err != nil {
			unfit = append(unfit, err)
			continue
		}
		fit = append(fit, dev)
	}
	switch {
	case len(list) == 0:
		return nil, []error{cuda.NoDevice}
	case !found:
		return nil, []error{fmt.Errorf("%w: %s, the driver shows %d", ErrNoSuchGPU, wish, len(list))}
	}
	return fit, unfit
}

// fitter is a Device that knows how much can run on it at the same time.
type fitter interface {
	Fits(kernel string, blocks, warps, shared int) error
}

// grid is the size of the kernel's launch. There is one ring per block, so that each has a
// multiprocessor of its own as long as there are enough.
func (p *Pipeline) grid() (blocks, warps, shared int) {
	warps, shared = Block(p.cfg.PerBlock, p.cfg.Receivers, p.cfg.Shards, p.cfg.Sketches)
	return (p.cfg.Rings-1)/p.cfg.PerBlock + 1, warps, shared
}

// Grid is the number of the kernel's blocks, each on one multiprocessor, and of the warps of each.
func (p *Pipeline) Grid() (blocks, warps int) {
	blocks, warps, _ = p.grid()
	return blocks, warps
}

// fits says whether all blocks of the kernel can run at once.
func (p *Pipeline) fits() error {
	f, ok := p.cfg.Device.(fitter)
	if !ok {
		return nil
	}
	blocks, warps, shared := p.grid()
	return f.Fits(p.Kernel(), blocks, warps, shared)
}

// Fits says whether that many blocks of a kernel can run on the GPU at the same time.
func (g *GPU) Fits(kernel string, blocks, warps, shared int) error {
	f, ok := g.funcs[kernel]
	if !ok {
		return fmt.Errorf("%w: no kernel %s", cuda.ErrArgument, kernel)
	}
	n, err := f.BlocksPerSM(32*warps, shared)
	switch {
	case err != nil:
		return err
	case n == 0:
		return fmt.Errorf("%w: a block of %d warps with %d bytes of shared memory, %s has %d", cuda.LaunchOutOfResources, warps, shared, Describe(&g.info), g.info.SharedBytes)
	}
	if room := n * g.info.SMs; blocks > room {
		return fmt.Errorf("%w: %d blocks of %d warps, %s has room for %d on %d multiprocessors",
			cuda.CooperativeLaunchTooLarge, blocks, warps, Describe(&g.info), room, g.info.SMs)
	}
	return nil
}
