// Package machine is a machine with a GPU for tests of the engine: a fake driver shows an H200, and
// what is opened on it is device code on the host (tests/simt). It has no state; kernels and
// their memory belong to the device.
package machine

import (
	"io"
	"time"

	"github.com/agp-net/telegraf-agp/agp/engine"
	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda"
	"github.com/agp-net/telegraf-agp/agp/telemetry/gpu"
	driver "github.com/agp-net/telegraf-agp/cuda"
	"github.com/agp-net/telegraf-agp/cuda/cudatest"
	"github.com/agp-net/telegraf-agp/tests/simt"
)

// Emulated is such a machine.
func Emulated() engine.Hardware {
	return engine.Hardware{
		Driver:   cudatest.New(cudatest.Options{Devices: []driver.Info{cudatest.H200()}}).Open,
		Open:     func(*driver.Device) (cuda.Device, error) { return simt.Open() },
		Patience: 2 * time.Minute,
		Claim:    func(string) (io.Closer, error) { return io.NopCloser(nil), nil }, // as many as there are
		Readings: func(string) (engine.Readings, error) { return nil, gpu.ErrAbsent },
	}
}
