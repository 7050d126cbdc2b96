package cuda

import (
	"fmt"
	"strings"

	"github.com/agp-net/telegraf-agp/cuda/internal/api"
	"github.com/agp-net/telegraf-agp/cuda/internal/libcuda"
)

// Driver is the loaded driver. Safe for concurrent use.
type Driver struct {
	api     api.Driver
	version Version
}

// Version is a version of CUDA, 1000 * major + 10 * minor.
type Version int

// String returns "13.0".
func (v Version) String() string { return fmt.Sprintf("%d.%d", int(v)/1000, int(v)%1000/10) }

// Open loads and initialises the driver. It can be called again. Without a driver
// the error is ErrNoDriver, without a device NoDevice.
func Open() (*Driver, error) {
	a, err := libcuda.Load()
	if err != nil {
		return nil, err
	}
	return With(a)
}

// With is Open for another implementation, see cudatest.
func With(a api.Driver) (*Driver, error) {
	if err := failed(a, "cuInit", a.Init()); err != nil {
		return nil, err
	}
	v, r := a.DriverGetVersion()
	if err := failed(a, "cuDriverGetVersion", r); err != nil {
		return nil, err
	}
	return &Driver{api: a, version: Version(v)}, nil
}

// Version returns the newest CUDA that the driver can run.
func (d *Driver) Version() Version { return d.version }

// Devices returns all devices that the process may use.
func (d *Driver) Devices() ([]*Device, error) {
	n, r := d.api.DeviceGetCount()
	if err := failed(d.api, "cuDeviceGetCount", r); err != nil {
		return nil, err
	}
	list := make([]*Device, n)
	for i := range list {
		dev, err := d.Device(i)
		if err != nil {
			return nil, err
		}
		list[i] = dev
	}
	return list, nil
}

// Device returns a device by its index, as CUDA_VISIBLE_DEVICES leaves it.
func (d *Driver) Device(index int) (*Device, error) {
	dev, r := d.api.DeviceGet(int32(index))
	if err := failed(d.api, "cuDeviceGet", r); err != nil {
		return nil, fmt.Errorf("device %d: %w", index, err)
	}
	return &Device{driver: d, id: dev, index: index}, nil
}

// Device is one GPU, or one MIG slice of it. Safe for concurrent use.
type Device struct {
	driver *Driver
	id     int32
	index  int
}

// Index returns the number of the device.
func (d *Device) Index() int { return d.index }

// Ordering says to whom a peer's writes into the device's memory are in order:
// CUGPUDirectRDMAWritesOrdering.
type Ordering int

// Orderings. Below OrderingOwner a kernel that polls what a NIC writes may see a
// completion before its payload, unless the writes are flushed.
const (
	OrderingNone       Ordering = 0
	OrderingOwner      Ordering = 100
	OrderingAllDevices Ordering = 200
)

// String names the ordering.
func (o Ordering) String() string {
	switch o {
	case OrderingNone:
		return "none"
	case OrderingOwner:
		return "owner"
	case OrderingAllDevices:
		return "all devices"
	}
	return fmt.Sprintf("unknown (%d)", int(o))
}

// ComputeMode says who may use a device: CUcomputemode.
type ComputeMode int

// Compute modes.
const (
	ComputeDefault          ComputeMode = 0
	ComputeProhibited       ComputeMode = 2
	ComputeExclusiveProcess ComputeMode = 3
)

// String names the mode.
func (m ComputeMode) String() string {
	switch m {
	case ComputeDefault:
		return "default"
	case ComputeProhibited:
		return "prohibited"
	case ComputeExclusiveProcess:
		return "exclusive process"
	}
	return fmt.Sprintf("unknown (%d)", int(m))
}

// Info is what a device says of itself, without a context.
type Info struct {
	Index int
	Name  string // "NVIDIA H200"
	UUID  string // "GPU-..." or, of a slice, "MIG-..."
	PCI   string // "0000:1b:00.0"
	MIG   bool   // a slice of a GPU

	Major, Minor int // compute capability
	SMs          int
	ThreadsPerSM int
	SharedBytes  int // per block at most
	L2Bytes      int
	MemoryBytes  uint64
	ClockKHz     int
	MemoryKHz    int
	Ecc          bool
	Mode         ComputeMode
	Cooperative  bool // cooperative launches
	HostMemory   bool // memory of the host can be mapped

	DirectRDMA bool     // peers can write into its memory
	Flush      int      // who can flush such writes: CUflushGPUDirectRDMAWritesOptions, a set of bits
	Ordering   Ordering // of such writes
	DMABuf     bool     // its memory can be exported as dma-buf
}

// Capability returns "9.0".
func (i *Info) Capability() string { return fmt.Sprintf("%d.%d", i.Major, i.Minor) }

// Info asks the device. Attributes that its driver does not know yet are zero.
func (d *Device) Info() (Info, error) {
	i, err := d.info()
	if err != nil {
		return Info{}, fmt.Errorf("device %d: %w", d.index, err)
	}
	return i, nil
}

func (d *Device) info() (i Info, err error) {
	a := d.driver.api
	i.Index = d.index
	var r Result
	if i.Name, r = a.DeviceGetName(d.id); r != api.Success {
		return i, failed(a, "cuDeviceGetName", r)
	}
	if i.MemoryBytes, r = a.DeviceTotalMem(d.id); r != api.Success {
		return i, failed(a, "cuDeviceTotalMem", r)
	}
	if i.PCI, r = a.DeviceGetPCIBusID(d.id); r != api.Success {
		return i, failed(a, "cuDeviceGetPCIBusId", r)
	}
	i.PCI = strings.ToLower(i.PCI)
	gpu, r := a.DeviceGetUuid(d.id)
	if r != api.Success {
		return i, failed(a, "cuDeviceGetUuid", r)
	}
	i.UUID = uuid("GPU", gpu)
	switch slice, r := a.DeviceGetUuidV2(d.id); {
	case r == api.NotSupported: // before slices had one of their own
	case r != api.Success:
		return i, failed(a, "cuDeviceGetUuid_v2", r)
	case slice != gpu:
		i.UUID, i.MIG = uuid("MIG", slice), true
	}
	get := func(attr api.Attribute) int {
		v, r := a.DeviceGetAttribute(attr, d.id)
		switch {
		case r == api.InvalidValue: // newer than the driver
			return 0
		case r != api.Success && err == nil:
			err = fmt.Errorf("attribute %d: %w", attr, failed(a, "cuDeviceGetAttribute", r))
		}
		return int(v)
	}
	i.Major, i.Minor = get(api.ComputeMajor), get(api.ComputeMinor)
	i.SMs, i.ThreadsPerSM = get(api.Multiprocessors), get(api.MaxThreadsPerSM)
	i.SharedBytes, i.L2Bytes = get(api.MaxSharedBytesPerBlock), get(api.L2CacheBytes)
	i.ClockKHz, i.MemoryKHz = get(api.ClockRateKHz), get(api.MemoryClockRateKHz)
	i.Ecc, i.Mode = get(api.EccEnabled) != 0, ComputeMode(get(api.ComputeModeOf))
	i.Cooperative, i.HostMemory = get(api.CooperativeLaunch) != 0, get(api.CanMapHostMemory) != 0
	i.DirectRDMA, i.Flush = get(api.DirectRDMA) != 0, get(api.DirectRDMAFlush)
	i.Ordering, i.DMABuf = Ordering(get(api.DirectRDMAOrdering)), get(api.DMABuf) != 0
	return i, err
}

// uuid writes an identifier as NVIDIA's tools do.
func uuid(kind string, u [16]byte) string {
	return fmt.Sprintf("%s-%x-%x-%x-%x-%x", kind, u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}
