package simt

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	driver "github.com/agp-net/telegraf-agp/cuda"

	"github.com/agp-net/telegraf-agp/agp/pipeline/cuda"
)

// Device is the first GPU if there is one, else device code on the host. It is closed with the test.
func Device(t testing.TB) cuda.Device {
	dev, err := first()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	if g, ok := dev.(*cuda.GPU); ok {
		t.Log(g.Info().Name)
	}
	return dev
}

func first() (cuda.Device, error) {
	all, err := driver.Open()
	if errors.Is(err, driver.ErrNoDriver) || errors.Is(err, driver.NoDevice) {
		return Open()
	}
	if err != nil {
		return nil, err
	}
	d, err := all.Device(0)
	if err != nil {
		return nil, err
	}
	return cuda.OpenGPU(d)
}
