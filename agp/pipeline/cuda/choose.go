package cuda

import (
	"errors"
	"fmt"

	"github.com/agp-net/telegraf-agp/cuda"
	"github.com/agp-net/telegraf-agp/cuda/kernels"
)

// ErrUnfit says that a GPU cannot run the pipeline, and why.
var ErrUnfit = errors.New("GPU cannot be used")

// Fit says what keeps a GPU from running the pipeline with so much of its memory,
// by what it says of itself. nil does not promise that the memory is free.
func Fit(driver cuda.Version, i *cuda.Info, need uint64) error {
	unfit := func(format string, args ...any) error {
		return fmt.Errorf("%w: %d, %s: %w", ErrUnfit, i.Index, i.Name, fmt.Errorf(format, args...))
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

// Choose returns the first GPU that fits. Without one the error says of each why not.
func Choose(d *cuda.Driver, need uint64) (*cuda.Device, error) {
	list, err := d.Devices()
	if err != nil {
		return nil, err
	}
	var unfit []error
	for _, dev := range list {
		i, err := dev.Info()
		if err == nil {
			err = Fit(d.Version(), &i, need)
		}
		if err == nil {
			return dev, nil
		}
		unfit = append(unfit, err)
	}
	if len(unfit) == 0 {
		return nil, cuda.NoDevice
	}
	return nil, errors.Join(unfit...)
}
