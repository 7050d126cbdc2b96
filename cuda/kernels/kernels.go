// Package kernels holds the device code of the packet path and what it is compiled
// to: a cubin for capability 9.0 and PTX for every other from 8.0 on, which the
// driver compiles when it is loaded. "make cuda" compiles again, a test compares.
//
// There is no state and no goroutine. What the host shares with the device is in
// agp.h; agp/pipeline/cuda mirrors it.
package kernels

import (
	"bytes"
	"compress/gzip"
	_ "embed" // of what is compiled
	"errors"
	"fmt"
	"io"
)

//go:generate bash build.sh

// Toolkit is the CUDA that the device code is compiled with, 1000 * major + 10 *
// minor. An older driver cannot load it.
const Toolkit = 13000

// ErrCapability says that a device is too old for the device code.
var ErrCapability = errors.New("compute capability below 8.0")

var (
	//go:embed agp.sm_90a.cubin.gz
	cubin90 []byte
	//go:embed agp.compute_80.ptx.gz
	ptx80 []byte
)

// Image is device code for Context.Load.
type Image struct {
	Kind string // "sm_90a cubin", "compute_80 PTX"
	PTX  bool   // compiled by the driver when it is loaded; Context.Link does that ahead
	Code []byte
}

// For returns the device code for a compute capability.
func For(major, minor int) (Image, error) {
	switch {
	case major < 8:
		return Image{}, fmt.Errorf("%w: %d.%d", ErrCapability, major, minor)
	case major == 9 && minor == 0:
		code, err := unpack(cubin90)
		return Image{Kind: "sm_90a cubin", Code: code}, err
	}
	code, err := unpack(ptx80)
	return Image{Kind: "compute_80 PTX", PTX: true, Code: code}, err
}

func unpack(b []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, fmt.Errorf("embedded device code: %w", err)
	}
	code, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("embedded device code: %w", err)
	}
	return code, nil
}
