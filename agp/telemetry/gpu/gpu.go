package gpu

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// ErrAbsent says that there is no library, or no driver for it: nothing is
// measured then, which is no fault.
var ErrAbsent = errors.New("no NVIDIA management library")

// defaultInterval is how often the library is asked.
const defaultInterval = time.Second

// Options of a Reader.
type Options struct {
	// UUIDs are the GPUs to read, as CUDA names them; all if there is none.
	UUIDs []string
	// Interval is how often, a second by default.
	Interval time.Duration
}

// status is nvmlReturn_t.
type status int32

const (
	success             status = 0
	notSupported        status = 3
	insufficientSize    status = 7
	driverNotLoaded     status = 9
	libraryNotFound     status = 12
	gpuIsLost           status = 15
	gpuNotFound         status = 28
	clockSM                    = 1 // nvmlClockType_t
	clockMemory                = 2
	toHost                     = 0 // nvmlPcieUtilCounter_t, from the GPU
	toGPU                      = 1
	errorCorrected             = 0 // nvmlMemoryErrorType_t
	errorUncorrected           = 1
	eventXid            uint64 = 8 // nvmlEventTypeXidCriticalError
	valueNotAvailable          = ^uint64(0)
	maxEventsPerReading        = 100
)

// library is what is asked of NVML, with the names of its functions. It is used by
// one goroutine at a time.
type library interface {
	Init() status
	Shutdown() status
	ErrorString(status) string
	DeviceCount() (int, status)
	DeviceByIndex(i int) (device, status)
	DeviceByUUID(uuid string) (device, status)
	EventSetCreate() (eventSet, status)
}

// device is one GPU or slice.
type device interface {
	Index() (int, status)
	UUID() (string, status)
	Name() (string, status)
	PowerUsage() (uint32, status)               // mW
	TotalEnergyConsumption() (uint64, status)   // mJ
	ClockInfo(kind int) (uint32, status)        // MHz
	MemoryInfo() (total, used uint64, s status) // bytes
	PcieThroughput(kind int) (uint32, status)   // KB/s
	UtilizationRates() (gpu uint32, s status)   // percent
	Temperature() (uint32, status)              // °C
	TotalEccErrors(kind int) (uint64, status)
	ComputeRunningProcesses() ([]process, status)
	RegisterEvents(kinds uint64, set eventSet) status
}

// eventSet collects events of the GPUs that are registered.
type eventSet interface {
	Wait(ms uint32) (event, status)
	Free() status
}

type event struct {
	uuid string
	kind uint64
	data uint64 // number of the Xid
}

type process struct {
	pid    uint32
	memory uint64
}

// Reader reads GPUs.
type Reader struct {
	lib  library
	pid  uint32
	devs []gpu
	set  eventSet // nil: there are no events

	stop chan struct{}
	done chan struct{}
	once sync.Once
	err  error

	mu   sync.Mutex
	rows []telemetry.GPURow
}

type gpu struct {
	device
	row  telemetry.GPURow // what does not change
	xids *xids            // nil: not told of
}

type xids struct{ count, last uint64 }

// Open finds the library and reads for the first time. The error is ErrAbsent where
// there is none.
func Open(o Options) (*Reader, error) {
	lib, err := load()
	if err != nil {
		return nil, err
	}
	return open(lib, o)
}

func open(lib library, o Options) (*Reader, error) {
	switch s := lib.Init(); s {
	case success:
	case driverNotLoaded, libraryNotFound, gpuNotFound:
		return nil, fmt.Errorf("%w: %s", ErrAbsent, lib.ErrorString(s))
	default:
		return nil, fmt.Errorf("NVML: %s", lib.ErrorString(s))
	}
	r := &Reader{lib: lib, pid: uint32(os.Getpid()), stop: make(chan struct{}), done: make(chan struct{})}
	if err := r.find(o.UUIDs); err != nil {
		lib.Shutdown() // the first error counts
		return nil, err
	}
	r.register()
	r.sample()
	if o.Interval <= 0 {
		o.Interval = defaultInterval
	}
	go r.run(o.Interval)
	return r, nil
}

// find looks the GPUs up.
func (r *Reader) find(uuids []string) error {
	failed := func(what string, s status) error { return fmt.Errorf("NVML: %s: %s", what, r.lib.ErrorString(s)) }
	for _, u := range uuids {
		d, s := r.lib.DeviceByUUID(u)
		if s != success {
			return failed(u, s)
		}
		r.devs = append(r.devs, gpu{device: d})
	}
	if len(uuids) == 0 {
		n, s := r.lib.DeviceCount()
		if s != success {
			return failed("number of GPUs", s)
		}
		for i := range n {
			d, s := r.lib.DeviceByIndex(i)
			if s != success {
				return failed(fmt.Sprintf("GPU %d", i), s)
			}
			r.devs = append(r.devs, gpu{device: d})
		}
	}
	for i := range r.devs {
		d := &r.devs[i]
		var s status
		if d.row.UUID, s = d.UUID(); s != success {
			return failed("identifier of a GPU", s)
		}
		if d.row.Name, s = d.Name(); s != success {
			return failed("name of "+d.row.UUID, s)
		}
		n, s := d.Index()
		if s != success && s != notSupported { // slices have none
			return failed("number of "+d.row.UUID, s)
		}
		d.row.Index = uint32(n)
	}
	return nil
}

// register asks to be told of errors that the driver logs. Not every GPU does that.
func (r *Reader) register() {
	set, s := r.lib.EventSetCreate()
	if s != success {
		return
	}
	told := false
	for i := range r.devs {
		if r.devs[i].RegisterEvents(eventXid, set) == success {
			r.devs[i].xids, told = new(xids), true
		}
	}
	if !told {
		set.Free() // nothing was registered
		return
	}
	r.set = set
}

// Read appends what the last reading gave. A row of the same GPU that is there
// already, with what the pipeline knows, is completed.
func (r *Reader) Read(s *telemetry.Snapshot) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, row := range r.rows {
		i := slices.IndexFunc(s.GPUs, func(g telemetry.GPURow) bool { return g.UUID == row.UUID })
		if i < 0 {
			s.GPUs = append(s.GPUs, row)
			continue
		}
		row.EngineWarps, row.EngineSMs = s.GPUs[i].EngineWarps, s.GPUs[i].EngineSMs
		s.GPUs[i] = row
	}
}

// Close ends the goroutine and gives the library back. It can be called twice.
func (r *Reader) Close() error {
	r.once.Do(func() {
		close(r.stop)
		<-r.done
		if r.set != nil {
			r.set.Free()
		}
		if s := r.lib.Shutdown(); s != success {
			r.err = fmt.Errorf("NVML: %s", r.lib.ErrorString(s))
		}
	})
	return r.err
}

func (r *Reader) run(interval time.Duration) {
	defer close(r.done)
	t := time.NewTicker(interval)
	defer t.Stop()
	for {
		select {
		case <-r.stop:
			return
		case <-t.C:
			r.sample()
		}
	}
}

// sample asks every GPU everything.
func (r *Reader) sample() {
	r.events()
	rows := make([]telemetry.GPURow, len(r.devs))
	for i := range r.devs {
		rows[i] = r.devs[i].read(r.pid)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rows = rows
}

// events counts those that have come.
func (r *Reader) events() {
	if r.set == nil {
		return
	}
	for range maxEventsPerReading {
		e, s := r.set.Wait(0)
		if s != success {
			return
		}
		for i := range r.devs {
			if d := &r.devs[i]; d.xids != nil && d.row.UUID == e.uuid && e.kind == eventXid {
				d.xids.count++
				d.xids.last = e.data
			}
		}
	}
}

// read asks one GPU.
func (g *gpu) read(pid uint32) telemetry.GPURow {
	row := g.row
	// put sets a reading that exists.
	put := func(to **uint64, v uint64, s status) {
		if s == gpuIsLost {
			row.Lost = true
		}
		if s == success && v != valueNotAvailable {
			*to = &v
		}
	}
	put32 := func(to **uint64, v uint32, s status) { put(to, uint64(v), s) }

	power, s := g.PowerUsage()
	put32(&row.PowerMilliwatts, power, s)
	energy, s := g.TotalEnergyConsumption()
	put(&row.EnergyMillijoules, energy, s)
	clock, s := g.ClockInfo(clockSM)
	put32(&row.SMClockMHz, clock, s)
	clock, s = g.ClockInfo(clockMemory)
	put32(&row.MemoryClockMHz, clock, s)
	total, used, s := g.MemoryInfo()
	put(&row.MemoryTotalBytes, total, s)
	put(&row.MemoryUsedBytes, used, s)
	rate, s := g.PcieThroughput(toGPU)
	put(&row.PCIeRXBytesPerSecond, uint64(rate)*1000, s)
	rate, s = g.PcieThroughput(toHost)
	put(&row.PCIeTXBytesPerSecond, uint64(rate)*1000, s)
	share, s := g.UtilizationRates()
	put32(&row.UtilizationPercent, share, s)
	temperature, s := g.Temperature()
	put32(&row.TemperatureCelsius, temperature, s)
	count, s := g.TotalEccErrors(errorCorrected)
	put(&row.EccCorrected, count, s)
	count, s = g.TotalEccErrors(errorUncorrected)
	put(&row.EccUncorrected, count, s)
	list, s := g.ComputeRunningProcesses()
	put(&row.Processes, uint64(len(list)), s)
	for _, p := range list {
		if p.pid == pid {
			put(&row.EngineMemoryBytes, p.memory, s)
		}
	}
	if g.xids != nil {
		put(&row.XidErrors, g.xids.count, success)
		if g.xids.count > 0 {
			put(&row.LastXid, g.xids.last, success)
		}
	}
	return row
}
