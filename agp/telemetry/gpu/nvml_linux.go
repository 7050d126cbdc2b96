//go:build linux && (amd64 || arm64)

package gpu

import (
	"fmt"
	"strings"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
)

var names = []string{"libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1", "/usr/local/nvidia/lib64/libnvidia-ml.so.1", "/run/opengl-driver/lib/libnvidia-ml.so.1"}

// fn is an index of the table of functions.
type fn int

const (
	nvmlInit fn = iota
	nvmlShutdown
	nvmlErrorString
	nvmlDeviceGetCount
	nvmlDeviceGetHandleByIndex
	nvmlDeviceGetHandleByUUID
	nvmlDeviceGetIndex
	nvmlDeviceGetUUID
	nvmlDeviceGetName
	nvmlDeviceGetPowerUsage
	nvmlDeviceGetTotalEnergyConsumption
	nvmlDeviceGetClockInfo
	nvmlDeviceGetMemoryInfo
	nvmlDeviceGetPcieThroughput
	nvmlDeviceGetUtilizationRates
	nvmlDeviceGetTemperature
	nvmlDeviceGetTotalEccErrors
	nvmlDeviceGetComputeRunningProcesses
	nvmlDeviceRegisterEvents
	nvmlEventSetCreate
	nvmlEventSetWait
	nvmlEventSetFree
	functions
)

// symbols are the names of the binary interface. What a library lacks is a reading
// that is not supported.
var symbols = [functions]string{
	nvmlInit: "nvmlInit_v2", nvmlShutdown: "nvmlShutdown", nvmlErrorString: "nvmlErrorString", nvmlDeviceGetCount: "nvmlDeviceGetCount_v2",
	nvmlDeviceGetHandleByIndex: "nvmlDeviceGetHandleByIndex_v2", nvmlDeviceGetHandleByUUID: "nvmlDeviceGetHandleByUUID",
	nvmlDeviceGetIndex: "nvmlDeviceGetIndex", nvmlDeviceGetUUID: "nvmlDeviceGetUUID", nvmlDeviceGetName: "nvmlDeviceGetName",
	nvmlDeviceGetPowerUsage: "nvmlDeviceGetPowerUsage", nvmlDeviceGetTotalEnergyConsumption: "nvmlDeviceGetTotalEnergyConsumption",
	nvmlDeviceGetClockInfo: "nvmlDeviceGetClockInfo", nvmlDeviceGetMemoryInfo: "nvmlDeviceGetMemoryInfo",
	nvmlDeviceGetPcieThroughput: "nvmlDeviceGetPcieThroughput", nvmlDeviceGetUtilizationRates: "nvmlDeviceGetUtilizationRates",
	nvmlDeviceGetTemperature: "nvmlDeviceGetTemperature", nvmlDeviceGetTotalEccErrors: "nvmlDeviceGetTotalEccErrors",
	nvmlDeviceGetComputeRunningProcesses: "nvmlDeviceGetComputeRunningProcesses_v3", nvmlDeviceRegisterEvents: "nvmlDeviceRegisterEvents",
	nvmlEventSetCreate: "nvmlEventSetCreate", nvmlEventSetWait: "nvmlEventSetWait_v2", nvmlEventSetFree: "nvmlEventSetFree",
}

// shared is the library.
type shared struct{ fn [functions]uintptr }

var loaded = sync.OnceValues(func() (*shared, error) { return find(names) })

func load() (library, error) {
	n, err := loaded()
	if err != nil {
		return nil, err
	}
	return n, nil
}

// find loads the first library of the list that there is. It stays loaded.
func find(names []string) (*shared, error) {
	for _, name := range names {
		lib, err := purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_GLOBAL)
		if err != nil {
			if text := err.Error(); !strings.Contains(text, "cannot open shared object file") {
				return nil, fmt.Errorf("%w: %s", ErrAbsent, text)
			}
			continue
		}
		n := new(shared)
		for i, s := range symbols {
			n.fn[i], _ = purego.Dlsym(lib, s)
		}
		for _, f := range []fn{nvmlInit, nvmlShutdown} {
			if n.fn[f] == 0 {
				return nil, fmt.Errorf("%w: %s lacks %s", ErrAbsent, name, symbols[f])
			}
		}
		return n, nil
	}
	return nil, ErrAbsent
}

// call keeps what its arguments point to where it is: see package cuda's.
//
//go:uintptrescapes
func (n *shared) call(f fn, args ...uintptr) status {
	if n.fn[f] == 0 {
		return notSupported
	}
	r, _, _ := purego.SyscallN(n.fn[f], args...)
	return status(int32(r))
}

func (n *shared) Init() status     { return n.call(nvmlInit) }
func (n *shared) Shutdown() status { return n.call(nvmlShutdown) }

func (n *shared) ErrorString(s status) string {
	if n.fn[nvmlErrorString] == 0 {
		return fmt.Sprintf("error %d", int(s))
	}
	var text func(int32) string
	purego.RegisterFunc(&text, n.fn[nvmlErrorString])
	return text(int32(s))
}

func (n *shared) DeviceCount() (int, status) {
	var v uint32
	s := n.call(nvmlDeviceGetCount, uintptr(unsafe.Pointer(&v)))
	return int(v), s
}

func (n *shared) DeviceByIndex(i int) (device, status) {
	var h uintptr
	s := n.call(nvmlDeviceGetHandleByIndex, uintptr(i), uintptr(unsafe.Pointer(&h)))
	return &handle{n, h}, s
}

func (n *shared) DeviceByUUID(uuid string) (device, status) {
	var h uintptr
	c := append([]byte(uuid), 0)
	s := n.call(nvmlDeviceGetHandleByUUID, uintptr(unsafe.Pointer(&c[0])), uintptr(unsafe.Pointer(&h)))
	return &handle{n, h}, s
}

// handle is a nvmlDevice_t.
type handle struct {
	n *shared
	h uintptr
}

func (d *handle) number(f fn) (uint32, status) {
	var v uint32
	s := d.n.call(f, d.h, uintptr(unsafe.Pointer(&v)))
	return v, s
}

func (d *handle) numberOf(f fn, kind int) (uint32, status) {
	var v uint32
	s := d.n.call(f, d.h, uintptr(kind), uintptr(unsafe.Pointer(&v)))
	return v, s
}

func (d *handle) text(f fn) (string, status) {
	buf := new([96]byte)
	s := d.n.call(f, d.h, uintptr(unsafe.Pointer(buf)), uintptr(len(buf)))
	text, _, _ := strings.Cut(string(buf[:]), "\x00")
	return text, s
}

func (d *handle) Index() (int, status) {
	v, s := d.number(nvmlDeviceGetIndex)
	return int(v), s
}

func (d *handle) UUID() (string, status)       { return d.text(nvmlDeviceGetUUID) }
func (d *handle) Name() (string, status)       { return d.text(nvmlDeviceGetName) }
func (d *handle) PowerUsage() (uint32, status) { return d.number(nvmlDeviceGetPowerUsage) }

func (d *handle) TotalEnergyConsumption() (uint64, status) {
	var v uint64
	s := d.n.call(nvmlDeviceGetTotalEnergyConsumption, d.h, uintptr(unsafe.Pointer(&v)))
	return v, s
}

func (d *handle) ClockInfo(kind int) (uint32, status) {
	return d.numberOf(nvmlDeviceGetClockInfo, kind)
}

// memoryInfo is nvmlMemory_t.
type memoryInfo struct{ total, free, used uint64 }

func (d *handle) MemoryInfo() (total, used uint64, s status) {
	m := new(memoryInfo)
	s = d.n.call(nvmlDeviceGetMemoryInfo, d.h, uintptr(unsafe.Pointer(m)))
	return m.total, m.used, s
}

func (d *handle) PcieThroughput(kind int) (uint32, status) {
	return d.numberOf(nvmlDeviceGetPcieThroughput, kind)
}

// utilization is nvmlUtilization_t.
type utilization struct{ gpu, memory uint32 }

func (d *handle) UtilizationRates() (uint32, status) {
	u := new(utilization)
	s := d.n.call(nvmlDeviceGetUtilizationRates, d.h, uintptr(unsafe.Pointer(u)))
	return u.gpu, s
}

func (d *handle) Temperature() (uint32, status) { return d.numberOf(nvmlDeviceGetTemperature, 0) }

func (d *handle) TotalEccErrors(kind int) (uint64, status) {
	var v uint64
	s := d.n.call(nvmlDeviceGetTotalEccErrors, d.h, uintptr(kind), 0, uintptr(unsafe.Pointer(&v)))
	return v, s
}

// processInfo is nvmlProcessInfo_t.
type processInfo struct {
	pid                          uint32
	memory                       uint64
	gpuInstance, computeInstance uint32
}

func (d *handle) ComputeRunningProcesses() ([]process, status) {
	for n := uint32(64); ; {
		infos := make([]processInfo, n)
		s := d.n.call(nvmlDeviceGetComputeRunningProcesses, d.h, uintptr(unsafe.Pointer(&n)), uintptr(unsafe.Pointer(&infos[0])))
		switch {
		case s == insufficientSize && int(n) > len(infos) && n < 1<<16:
			n += 16 // more may come
			continue
		case s != success:
			return nil, s
		}
		list := make([]process, min(int(n), len(infos)))
		for i := range list {
			list[i] = process{infos[i].pid, infos[i].memory}
		}
		return list, success
	}
}

func (d *handle) RegisterEvents(kinds uint64, set eventSet) status {
	return d.n.call(nvmlDeviceRegisterEvents, d.h, uintptr(kinds), set.(*events).h)
}

// events is a nvmlEventSet_t.
type events struct {
	n *shared
	h uintptr
}

func (n *shared) EventSetCreate() (eventSet, status) {
	e := &events{n: n}
	s := n.call(nvmlEventSetCreate, uintptr(unsafe.Pointer(&e.h)))
	return e, s
}

// eventData is nvmlEventData_t.
type eventData struct {
	device                       uintptr
	kind, data                   uint64
	gpuInstance, computeInstance uint32
}

func (e *events) Wait(ms uint32) (event, status) {
	d := new(eventData)
	s := e.n.call(nvmlEventSetWait, e.h, uintptr(unsafe.Pointer(d)), uintptr(ms))
	if s != success {
		return event{}, s
	}
	uuid, s := (&handle{e.n, d.device}).UUID()
	return event{uuid, d.kind, d.data}, s
}

func (e *events) Free() status { return e.n.call(nvmlEventSetFree, e.h) }
