package cuda_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda"
	driver "github.com/agp-net/telegraf-agp/cuda"
	"github.com/agp-net/telegraf-agp/cuda/cudatest"
	"github.com/agp-net/telegraf-agp/cuda/kernels"
)

func TestWhatKeepsAGPUFromBeingUsed(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(*driver.Info)
		version driver.Version
		is      error
		text    string
	}{
		"capability":    {func(i *driver.Info) { i.Major, i.Minor = 7, 5 }, 13000, kernels.ErrCapability, "GPU cannot be used: 0, NVIDIA H200: compute capability below 8.0: 7.5"},
		"driver":        {func(*driver.Info) {}, 12040, driver.ErrOldDriver, "it runs CUDA 12.4, the device code needs 13.0"},
		"prohibited":    {func(i *driver.Info) { i.Mode = driver.ComputeProhibited }, 13000, cuda.ErrUnfit, "compute mode prohibited"},
		"mapped memory": {func(i *driver.Info) { i.HostMemory = false }, 13000, cuda.ErrUnfit, "memory of the host cannot be mapped"},
		"cooperative":   {func(i *driver.Info) { i.Cooperative = false }, 13000, cuda.ErrUnfit, "no cooperative launches"},
		"memory":        {func(i *driver.Info) { i.MemoryBytes = 1 << 30 }, 13000, driver.OutOfMemory, "1024 MiB, 4096 are needed"},
	} {
		i := cudatest.H200()
		require.NoError(t, cuda.Fit(13000, &i, 4<<30), name)
		c.change(&i)
		err := cuda.Fit(c.version, &i, 4<<30)
		require.ErrorIs(t, err, cuda.ErrUnfit, name)
		require.ErrorIs(t, err, c.is, name)
		require.ErrorContains(t, err, c.text, name)
	}
	newer := cudatest.H200()
	newer.Major = 10
	require.NoError(t, cuda.Fit(13020, &newer, 0), "by PTX")
}

func TestChooseTakesTheFirstThatFits(t *testing.T) {
	old, good := cudatest.H200(), cudatest.H200()
	old.Major = 7
	choose := func(list ...driver.Info) (*driver.Device, error) {
		d, err := cudatest.New(cudatest.Options{Devices: list}).Open()
		require.NoError(t, err)
		return cuda.Choose(d, 1<<30)
	}
	dev, err := choose(old, good, good)
	require.NoError(t, err)
	require.Equal(t, 1, dev.Index())
	small := good
	small.MemoryBytes = 1 << 20
	_, err = choose(old, small)
	require.ErrorIs(t, err, kernels.ErrCapability)
	require.ErrorIs(t, err, driver.OutOfMemory)
	require.ErrorContains(t, err, ": 0, NVIDIA H200")
	require.ErrorContains(t, err, ": 1, NVIDIA H200")
}
