package cuda_test

import (
	"errors"
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

func TestSelectReturnsThoseThatFit(t *testing.T) {
	old, good, other := cudatest.H200(), cudatest.H200(), cudatest.H200()
	old.Major, other.UUID = 7, "GPU-10010203-0405-0607-0809-0a0b0c0d0e0f"
	choose := func(wish string, list ...driver.Info) (fit []int, unfit error) {
		d, err := cudatest.New(cudatest.Options{Devices: list}).Open()
		require.NoError(t, err)
		devices, why := cuda.Select(d, wish, 1<<30)
		for _, dev := range devices {
			fit = append(fit, dev.Index())
		}
		return fit, errors.Join(why...)
	}
	fit, err := choose("", old, good, other)
	require.Equal(t, []int{1, 2}, fit)
	require.ErrorIs(t, err, kernels.ErrCapability)
	fit, err = choose("2", old, good, other)
	require.NoError(t, err, "others are not spoken of")
	require.Equal(t, []int{2}, fit)
	fit, err = choose(other.UUID, old, good, other)
	require.NoError(t, err)
	require.Equal(t, []int{2}, fit)
	fit, err = choose("0", old, good)
	require.ErrorIs(t, err, kernels.ErrCapability)
	require.Empty(t, fit)
	fit, err = choose("3", old, good)
	require.ErrorIs(t, err, cuda.ErrNoSuchGPU)
	require.Empty(t, fit)

	small := good
	small.MemoryBytes = 1 << 20
	fit, err = choose("", old, small)
	require.Empty(t, fit)
	require.ErrorIs(t, err, kernels.ErrCapability)
	require.ErrorIs(t, err, driver.OutOfMemory)
	require.ErrorContains(t, err, ": 0, NVIDIA H200")
	require.ErrorContains(t, err, ": 1, NVIDIA H200")
}

func TestNeedGrowsWithTheFlows(t *testing.T) {
	require.Greater(t, cuda.Need(1<<20), cuda.Need(1<<18)+1<<30)
	require.Less(t, cuda.Need(1<<20), uint64(4<<30))
}
