//go:build linux && (amd64 || arm64)

package libcuda

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/ebitengine/purego"

	"github.com/agp-net/telegraf-agp/cuda/internal/api"
)

// names are what dlopen is given: what the loader knows by itself, where Windows
// puts the library for its Linux guests, and where containers mount it.
var names = []string{
	"libcuda.so.1",
	"/usr/lib/wsl/lib/libcuda.so.1",
	"/usr/local/nvidia/lib64/libcuda.so.1",
	"/run/opengl-driver/lib/libcuda.so.1",
}

// fn is an index of the table.
type fn int

const (
	cuInit fn = iota
	cuDriverGetVersion
	cuGetErrorName
	cuGetErrorString
	cuDeviceGetCount
	cuDeviceGet
	cuDeviceGetName
	cuDeviceGetUuid
	cuDeviceGetUuidV2
	cuDeviceGetPCIBusID
	cuDeviceTotalMem
	cuDeviceGetAttribute
	cuDevicePrimaryCtxSetFlags
	cuDevicePrimaryCtxRetain
	cuDevicePrimaryCtxRelease
	cuCtxSetCurrent
	cuCtxPushCurrent
	cuCtxPopCurrent
	cuCtxGetLimit
	cuMemGetInfo
	cuMemAlloc
	cuMemFree
	cuMemHostAlloc
	cuMemFreeHost
	cuMemHostGetDevicePointer
	cuMemGetHandleForAddressRange
	cuMemsetD8Async
	cuMemcpyHtoDAsync
	cuMemcpyDtoHAsync
	cuMemcpy2DAsync
	cuStreamCreate
	cuStreamDestroy
	cuStreamQuery
	cuStreamSynchronize
	cuEventCreate
	cuEventDestroy
	cuEventRecord
	cuEventQuery
	cuEventSynchronize
	cuEventElapsedTime
	cuModuleLoadDataEx
	cuModuleUnload
	cuModuleGetFunction
	cuFuncLoad
	cuFuncGetAttribute
	cuFuncSetAttribute
	cuFuncGetParamInfo
	cuOccupancyMaxActiveBlocksPerMultiprocessor
	cuLaunchKernel
	cuLaunchKernelEx
	cuLinkCreate
	cuLinkAddData
	cuLinkComplete
	cuLinkDestroy
	functions
)

// symbol is one function of the library: its name is that of the binary interface.
type symbol struct {
	name     string
	optional bool // newer than the oldest driver we work with
}

var symbols = [functions]symbol{
	cuInit:                        {name: "cuInit"},
	cuDriverGetVersion:            {name: "cuDriverGetVersion"},
	cuGetErrorName:                {name: "cuGetErrorName"},
	cuGetErrorString:              {name: "cuGetErrorString"},
	cuDeviceGetCount:              {name: "cuDeviceGetCount"},
	cuDeviceGet:                   {name: "cuDeviceGet"},
	cuDeviceGetName:               {name: "cuDeviceGetName"},
	cuDeviceGetUuid:               {name: "cuDeviceGetUuid"},
	cuDeviceGetUuidV2:             {name: "cuDeviceGetUuid_v2", optional: true},
	cuDeviceGetPCIBusID:           {name: "cuDeviceGetPCIBusId"},
	cuDeviceTotalMem:              {name: "cuDeviceTotalMem_v2"},
	cuDeviceGetAttribute:          {name: "cuDeviceGetAttribute"},
	cuDevicePrimaryCtxSetFlags:    {name: "cuDevicePrimaryCtxSetFlags_v2"},
	cuDevicePrimaryCtxRetain:      {name: "cuDevicePrimaryCtxRetain"},
	cuDevicePrimaryCtxRelease:     {name: "cuDevicePrimaryCtxRelease_v2"},
	cuCtxSetCurrent:               {name: "cuCtxSetCurrent"},
	cuCtxPushCurrent:              {name: "cuCtxPushCurrent_v2"},
	cuCtxPopCurrent:               {name: "cuCtxPopCurrent_v2"},
	cuCtxGetLimit:                 {name: "cuCtxGetLimit"},
	cuMemGetInfo:                  {name: "cuMemGetInfo_v2"},
	cuMemAlloc:                    {name: "cuMemAlloc_v2"},
	cuMemFree:                     {name: "cuMemFree_v2"},
	cuMemHostAlloc:                {name: "cuMemHostAlloc"},
	cuMemFreeHost:                 {name: "cuMemFreeHost"},
	cuMemHostGetDevicePointer:     {name: "cuMemHostGetDevicePointer_v2"},
	cuMemGetHandleForAddressRange: {name: "cuMemGetHandleForAddressRange", optional: true},
	cuMemsetD8Async:               {name: "cuMemsetD8Async"},
	cuMemcpyHtoDAsync:             {name: "cuMemcpyHtoDAsync_v2"},
	cuMemcpyDtoHAsync:             {name: "cuMemcpyDtoHAsync_v2"},
	cuMemcpy2DAsync:               {name: "cuMemcpy2DAsync_v2"},
	cuStreamCreate:                {name: "cuStreamCreate"},
	cuStreamDestroy:               {name: "cuStreamDestroy_v2"},
	cuStreamQuery:                 {name: "cuStreamQuery"},
	cuStreamSynchronize:           {name: "cuStreamSynchronize"},
	cuEventCreate:                 {name: "cuEventCreate"},
	cuEventDestroy:                {name: "cuEventDestroy_v2"},
	cuEventRecord:                 {name: "cuEventRecord"},
	cuEventQuery:                  {name: "cuEventQuery"},
	cuEventSynchronize:            {name: "cuEventSynchronize"},
	cuEventElapsedTime:            {name: "cuEventElapsedTime"},
	cuModuleLoadDataEx:            {name: "cuModuleLoadDataEx"},
	cuModuleUnload:                {name: "cuModuleUnload"},
	cuModuleGetFunction:           {name: "cuModuleGetFunction"},
	cuFuncLoad:                    {name: "cuFuncLoad", optional: true},
	cuFuncGetAttribute:            {name: "cuFuncGetAttribute"},
	cuFuncSetAttribute:            {name: "cuFuncSetAttribute"},
	cuFuncGetParamInfo:            {name: "cuFuncGetParamInfo", optional: true},
	cuOccupancyMaxActiveBlocksPerMultiprocessor: {name: "cuOccupancyMaxActiveBlocksPerMultiprocessor"},
	cuLaunchKernel:   {name: "cuLaunchKernel"},
	cuLaunchKernelEx: {name: "cuLaunchKernelEx", optional: true},
	cuLinkCreate:     {name: "cuLinkCreate_v2"},
	cuLinkAddData:    {name: "cuLinkAddData_v2"},
	cuLinkComplete:   {name: "cuLinkComplete"},
	cuLinkDestroy:    {name: "cuLinkDestroy"},
}

// Load returns the driver. It is loaded once, later calls return the same.
func Load() (api.Driver, error) {
	d, err := loaded()
	if err != nil {
		return nil, err
	}
	return d, nil
}

var loaded = sync.OnceValues(func() (*driver, error) { return open(names) })

// open loads the first library of the list that there is.
func open(names []string) (*driver, error) {
	var faults []string
	for _, name := range names {
		lib, err := purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_GLOBAL)
		if err != nil {
			if text := err.Error(); !strings.Contains(text, "cannot open shared object file") {
				faults = append(faults, text) // it is there, but does not load
			}
			continue
		}
		return lookup(lib)
	}
	if len(faults) > 0 {
		return nil, fmt.Errorf("%w: %s", ErrAbsent, strings.Join(faults, "; "))
	}
	return nil, ErrAbsent
}

func lookup(lib uintptr) (*driver, error) {
	d := &driver{pins: make(map[api.Handle]*pinned)}
	var lacks []error
	for i, s := range symbols {
		p, err := purego.Dlsym(lib, s.name)
		if err != nil && !s.optional {
			lacks = append(lacks, errors.New(s.name))
		}
		d.fn[i] = p
	}
	if len(lacks) > 0 {
		return nil, fmt.Errorf("%w: it lacks %w", ErrTooOld, errors.Join(lacks...))
	}
	return d, nil
}
