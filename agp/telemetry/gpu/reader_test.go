//go:build cgo && linux

package gpu

import (
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh200"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// mockLibrary puts a server of go-nvml behind our interface.
type mockLibrary struct{ nvml.Interface }

func (m mockLibrary) Init() status     { return status(m.Interface.Init()) }
func (m mockLibrary) Shutdown() status { return status(m.Interface.Shutdown()) }
func (m mockLibrary) ErrorString(s status) string {
	return nvml.ERROR_UNKNOWN.String() + " " + nvml.Return(s).Error()
}

func (m mockLibrary) DeviceCount() (int, status) {
	n, r := m.DeviceGetCount()
	return n, status(r)
}

func (m mockLibrary) DeviceByIndex(i int) (device, status) {
	d, r := m.DeviceGetHandleByIndex(i)
	return mockDevice{d}, status(r)
}

func (m mockLibrary) DeviceByUUID(uuid string) (device, status) {
	d, r := m.DeviceGetHandleByUUID(uuid)
	return mockDevice{d}, status(r)
}

func (m mockLibrary) EventSetCreate() (eventSet, status) {
	s, r := m.Interface.EventSetCreate()
	return mockEvents{s}, status(r)
}

type mockDevice struct{ d nvml.Device }

func pass[T any](v T, r nvml.Return) (T, status) { return v, status(r) }

func (m mockDevice) Index() (int, status)         { return pass(m.d.GetIndex()) }
func (m mockDevice) UUID() (string, status)       { return pass(m.d.GetUUID()) }
func (m mockDevice) Name() (string, status)       { return pass(m.d.GetName()) }
func (m mockDevice) PowerUsage() (uint32, status) { return pass(m.d.GetPowerUsage()) }
func (m mockDevice) TotalEnergyConsumption() (uint64, status) {
	return pass(m.d.GetTotalEnergyConsumption())
}
func (m mockDevice) ClockInfo(kind int) (uint32, status) {
	return pass(m.d.GetClockInfo(nvml.ClockType(kind)))
}

func (m mockDevice) MemoryInfo() (total, used uint64, s status) {
	i, r := m.d.GetMemoryInfo()
	return i.Total, i.Used, status(r)
}

func (m mockDevice) PcieThroughput(kind int) (uint32, status) {
	return pass(m.d.GetPcieThroughput(nvml.PcieUtilCounter(kind)))
}

func (m mockDevice) UtilizationRates() (uint32, status) {
	u, r := m.d.GetUtilizationRates()
	return u.Gpu, status(r)
}

func (m mockDevice) Temperature() (uint32, status) {
	return pass(m.d.GetTemperature(nvml.TEMPERATURE_GPU))
}

func (m mockDevice) TotalEccErrors(kind int) (uint64, status) {
	return pass(m.d.GetTotalEccErrors(nvml.MemoryErrorType(kind), nvml.VOLATILE_ECC))
}

func (m mockDevice) ComputeRunningProcesses() ([]process, status) {
	list, r := m.d.GetComputeRunningProcesses()
	var out []process
	for _, p := range list {
		out = append(out, process{p.Pid, p.UsedGpuMemory})
	}
	return out, status(r)
}

func (m mockDevice) RegisterEvents(kinds uint64, set eventSet) status {
	return status(m.d.RegisterEvents(kinds, set.(mockEvents).EventSet))
}

type mockEvents struct{ nvml.EventSet }

func (m mockEvents) Wait(ms uint32) (event, status) {
	d, r := m.EventSet.Wait(ms)
	if r != nvml.SUCCESS {
		return event{}, status(r)
	}
	uuid, r := d.Device.GetUUID()
	return event{uuid, d.EventType, d.EventData}, status(r)
}

func (m mockEvents) Free() status { return status(m.EventSet.Free()) }

// machine is eight H200 whose readings are set here. xids has the events to come.
type machine struct {
	*server.Server
	xids             chan nvml.EventData
	freed, shut, ask atomic.Int32
}

const me = 4711

func newMachine() *machine {
	m := &machine{Server: dgxh200.New(), xids: make(chan nvml.EventData, 10)}
	m.ShutdownFunc = func() nvml.Return { m.shut.Add(1); return nvml.SUCCESS }
	m.EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) {
		return &mock.EventSet{
			WaitFunc: func(uint32) (nvml.EventData, nvml.Return) {
				select {
				case e := <-m.xids:
					return e, nvml.SUCCESS
				default:
					return nvml.EventData{}, nvml.ERROR_TIMEOUT
				}
			},
			FreeFunc: func() nvml.Return { m.freed.Add(1); return nvml.SUCCESS },
		}, nvml.SUCCESS
	}
	for i := range m.Devices {
		d := m.gpu(i)
		n := uint32(i)
		d.MemoryInfo.Used = uint64(i) << 20
		d.GetPowerUsageFunc = func() (uint32, nvml.Return) { m.ask.Add(1); return 81000 + n, nvml.SUCCESS }
		d.GetTotalEnergyConsumptionFunc = func() (uint64, nvml.Return) { return 5_000_000_000_000, nvml.SUCCESS }
		d.GetClockInfoFunc = func(c nvml.ClockType) (uint32, nvml.Return) {
			return map[nvml.ClockType]uint32{nvml.CLOCK_SM: 1980, nvml.CLOCK_MEM: 3201}[c], nvml.SUCCESS
		}
		d.GetPcieThroughputFunc = func(c nvml.PcieUtilCounter) (uint32, nvml.Return) {
			return map[nvml.PcieUtilCounter]uint32{nvml.PCIE_UTIL_RX_BYTES: 7, nvml.PCIE_UTIL_TX_BYTES: 9}[c], nvml.SUCCESS
		}
		d.GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) { return nvml.Utilization{Gpu: 99, Memory: 3}, nvml.SUCCESS }
		d.GetTemperatureFunc = func(nvml.TemperatureSensors) (uint32, nvml.Return) { return 41, nvml.SUCCESS }
		d.GetTotalEccErrorsFunc = func(k nvml.MemoryErrorType, _ nvml.EccCounterType) (uint64, nvml.Return) {
			return map[nvml.MemoryErrorType]uint64{nvml.MEMORY_ERROR_TYPE_CORRECTED: 2, nvml.MEMORY_ERROR_TYPE_UNCORRECTED: 1}[k], nvml.SUCCESS
		}
		d.GetComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) {
			return []nvml.ProcessInfo{{Pid: 1, UsedGpuMemory: 10}, {Pid: me, UsedGpuMemory: 512 << 20}}, nvml.SUCCESS
		}
		d.RegisterEventsFunc = func(kinds uint64, _ nvml.EventSet) nvml.Return {
			if kinds != nvml.EventTypeXidCriticalError {
				return nvml.ERROR_INVALID_ARGUMENT
			}
			return nvml.SUCCESS
		}
	}
	return m
}

func (m *machine) gpu(i int) *server.Device { return m.Devices[i].(*server.Device) }

func (m *machine) open(t *testing.T, o Options) *Reader {
	t.Helper()
	if o.Interval == 0 {
		o.Interval = time.Hour
	}
	r, err := open(mockLibrary{m.Server}, o)
	require.NoError(t, err)
	r.pid = me
	r.sample()
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

func rows(r *Reader) []telemetry.GPURow {
	var s telemetry.Snapshot
	r.Read(&s)
	return s.GPUs
}

func TestEveryReading(t *testing.T) {
	m := newMachine()
	list := rows(m.open(t, Options{}))
	require.Len(t, list, 8)
	require.Equal(t, telemetry.GPURow{
		Index: 3, UUID: m.gpu(3).UUID, Name: m.gpu(3).Config.Name, PowerMilliwatts: new(uint64(81003)), EnergyMillijoules: new(uint64(5_000_000_000_000)),
		SMClockMHz: new(uint64(1980)), MemoryClockMHz: new(uint64(3201)), MemoryUsedBytes: new(uint64(3 << 20)), MemoryTotalBytes: new(m.gpu(3).MemoryInfo.Total),
		PCIeRXBytesPerSecond: new(uint64(7000)), PCIeTXBytesPerSecond: new(uint64(9000)), UtilizationPercent: new(uint64(99)), TemperatureCelsius: new(uint64(41)),
		EccCorrected: new(uint64(2)), EccUncorrected: new(uint64(1)), XidErrors: new(uint64(0)), Processes: new(uint64(2)), EngineMemoryBytes: new(uint64(512 << 20)),
	}, list[3])
}

// TestOnlyTheGPUThatIsAskedFor also shows that a row of the pipeline is completed.
func TestOnlyTheGPUThatIsAskedFor(t *testing.T) {
	m := newMachine()
	r := m.open(t, Options{UUIDs: []string{m.gpu(5).UUID}})
	s := telemetry.Snapshot{GPUs: []telemetry.GPURow{{UUID: "GPU-other"}, {UUID: m.gpu(5).UUID, EngineWarps: new(uint64(16)), EngineSMs: new(uint64(4))}}}
	r.Read(&s)
	require.Len(t, s.GPUs, 2)
	require.EqualValues(t, 5, s.GPUs[1].Index)
	require.EqualValues(t, 16, *s.GPUs[1].EngineWarps)
	require.EqualValues(t, 4, *s.GPUs[1].EngineSMs)
	require.EqualValues(t, 81005, *s.GPUs[1].PowerMilliwatts)
}

func TestReadingsThatAreNotSupportedAreLeftOut(t *testing.T) {
	m := newMachine()
	d := m.gpu(0)
	d.GetPowerUsageFunc = func() (uint32, nvml.Return) { return 5, nvml.ERROR_NOT_SUPPORTED }
	d.GetTotalEccErrorsFunc = func(nvml.MemoryErrorType, nvml.EccCounterType) (uint64, nvml.Return) {
		return 5, nvml.ERROR_NOT_SUPPORTED
	}
	d.GetPcieThroughputFunc = func(nvml.PcieUtilCounter) (uint32, nvml.Return) { return 5, nvml.ERROR_NO_PERMISSION }
	d.RegisterEventsFunc = func(uint64, nvml.EventSet) nvml.Return { return nvml.ERROR_NOT_SUPPORTED }
	d.GetComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) {
		return []nvml.ProcessInfo{{Pid: me, UsedGpuMemory: ^uint64(0)}}, nvml.SUCCESS // as on Windows' guests
	}
	g := rows(m.open(t, Options{}))[0]
	for _, p := range []*uint64{g.PowerMilliwatts, g.EccCorrected, g.EccUncorrected, g.PCIeRXBytesPerSecond, g.PCIeTXBytesPerSecond, g.XidErrors, g.LastXid, g.EngineMemoryBytes} {
		require.Nil(t, p)
	}
	require.EqualValues(t, 1, *g.Processes)
	require.False(t, g.Lost)
}

func TestProcessOfAnotherNamespaceHasNoMemory(t *testing.T) {
	m := newMachine()
	r := m.open(t, Options{})
	r.pid = 9
	r.sample()
	require.Nil(t, rows(r)[0].EngineMemoryBytes)
}

func TestXidsAreCounted(t *testing.T) {
	m := newMachine()
	r := m.open(t, Options{})
	for _, e := range []nvml.EventData{
		{Device: m.Devices[2], EventType: nvml.EventTypeXidCriticalError, EventData: 31},
		{Device: m.Devices[2], EventType: nvml.EventTypeXidCriticalError, EventData: 79},
		{Device: m.Devices[2], EventType: nvml.EventTypeClock, EventData: 1},
	} {
		m.xids <- e
	}
	r.sample()
	list := rows(r)
	require.EqualValues(t, 2, *list[2].XidErrors)
	require.EqualValues(t, 79, *list[2].LastXid)
	require.EqualValues(t, 0, *list[1].XidErrors)
	require.Nil(t, list[1].LastXid)
}

func TestGPUThatFallsOffTheBus(t *testing.T) {
	m := newMachine()
	r := m.open(t, Options{})
	m.gpu(0).GetPowerUsageFunc = func() (uint32, nvml.Return) { return 0, nvml.ERROR_GPU_IS_LOST }
	r.sample()
	require.True(t, rows(r)[0].Lost)
	require.Nil(t, rows(r)[0].PowerMilliwatts)
	require.False(t, rows(r)[1].Lost)
}

func TestLibraryWithoutADriverIsAbsent(t *testing.T) {
	for r, absent := range map[nvml.Return]bool{
		nvml.ERROR_DRIVER_NOT_LOADED: true, nvml.ERROR_LIBRARY_NOT_FOUND: true, nvml.ERROR_LIB_RM_VERSION_MISMATCH: false, nvml.ERROR_NO_PERMISSION: false,
	} {
		m := newMachine()
		m.InitFunc = func() nvml.Return { return r }
		_, err := open(mockLibrary{m.Server}, Options{})
		require.Error(t, err)
		if absent {
			require.ErrorIs(t, err, ErrAbsent)
		} else {
			require.NotErrorIs(t, err, ErrAbsent)
		}
		require.Zero(t, m.shut.Load(), "it was not started")
	}
}

func TestUnknownGPUIsRefusedAndTheLibraryGivenBack(t *testing.T) {
	m := newMachine()
	_, err := open(mockLibrary{m.Server}, Options{UUIDs: []string{"GPU-none"}})
	require.ErrorContains(t, err, "GPU-none")
	require.EqualValues(t, 1, m.shut.Load())
}

func TestReaderGoesOnAndStops(t *testing.T) {
	m := newMachine()
	r := m.open(t, Options{Interval: time.Millisecond})
	n := m.ask.Load()
	require.Eventually(t, func() bool { return m.ask.Load() > n+16 }, 10*time.Second, time.Millisecond)
	for range 2 {
		require.NoError(t, r.Close())
	}
	n = m.ask.Load()
	require.EqualValues(t, 1, m.shut.Load())
	require.EqualValues(t, 1, m.freed.Load())
	again := newMachine().open(t, Options{})
	require.Len(t, rows(again), 8)
	require.Equal(t, n, m.ask.Load(), "the first has stopped")
}

// TestStructuresAreThoseOfTheHeader compares with what go-nvml generates from nvml.h.
func TestStructuresAreThoseOfTheHeader(t *testing.T) {
	require.Equal(t, unsafe.Sizeof(nvml.Memory{}), unsafe.Sizeof(memoryInfo{}))
	require.Equal(t, unsafe.Offsetof(nvml.Memory{}.Used), unsafe.Offsetof(memoryInfo{}.used))
	require.Equal(t, unsafe.Sizeof(nvml.Utilization{}), unsafe.Sizeof(utilization{}))
	require.Equal(t, unsafe.Sizeof(nvml.ProcessInfo{}), unsafe.Sizeof(processInfo{}))
	require.Equal(t, unsafe.Offsetof(nvml.ProcessInfo{}.UsedGpuMemory), unsafe.Offsetof(processInfo{}.memory))
	for ours, theirs := range map[int]int{
		int(notSupported): int(nvml.ERROR_NOT_SUPPORTED), int(insufficientSize): int(nvml.ERROR_INSUFFICIENT_SIZE), int(driverNotLoaded): int(nvml.ERROR_DRIVER_NOT_LOADED),
		int(libraryNotFound): int(nvml.ERROR_LIBRARY_NOT_FOUND), int(gpuIsLost): int(nvml.ERROR_GPU_IS_LOST), int(gpuNotFound): int(nvml.ERROR_GPU_NOT_FOUND),
	} {
		require.Equal(t, theirs, ours)
	}
	require.EqualValues(t, nvml.CLOCK_SM, clockSM)
	require.EqualValues(t, nvml.CLOCK_MEM, clockMemory)
	require.EqualValues(t, nvml.PCIE_UTIL_TX_BYTES, toHost)
	require.EqualValues(t, nvml.PCIE_UTIL_RX_BYTES, toGPU)
	require.EqualValues(t, nvml.MEMORY_ERROR_TYPE_CORRECTED, errorCorrected)
	require.EqualValues(t, nvml.MEMORY_ERROR_TYPE_UNCORRECTED, errorUncorrected)
	require.EqualValues(t, nvml.EventTypeXidCriticalError, eventXid)
}
