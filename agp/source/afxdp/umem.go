package afxdp

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/agp-net/telegraf-agp/agp/internal/hugepage"
)

const hugePage = 2 << 20

// allocate maps n bytes for packet buffers. Without reserved huge pages, or if they
// are not asked for, the kernel may still join pages by itself.
func allocate(n int, huge bool) (mem []byte, gotHuge bool, err error) {
	if free, known := available("/proc/meminfo"); known && uint64(n) > free { //nolint:gosec // not negative
		return nil, false, fmt.Errorf("%w: %d MiB of buffers, %d MiB of memory are available: lower the number of buffers", ErrMemory, n>>20, free>>20)
	}
	const flags = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_POPULATE
	if huge {
		whole := (n + hugePage - 1) &^ (hugePage - 1)
		mem, err = unix.Mmap(-1, 0, whole, unix.PROT_READ|unix.PROT_WRITE, flags|unix.MAP_HUGETLB|unix.MAP_HUGE_2MB)
		if err == nil {
			return mem, true, nil
		}
	}
	mem, err = unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, flags&^unix.MAP_POPULATE)
	if err != nil {
		return nil, false, fmt.Errorf("%d bytes: %w", n, memoryError(os.NewSyscallError("mmap", err)))
	}
	hugepage.Advise(mem) // frames lie far apart: with small pages each one costs a TLB miss
	return mem, false, nil
}

// available returns the bytes that can be had without swapping. All of what is asked for
// would be pinned: the kernel ends processes rather than refuse it.
func available(meminfo string) (free uint64, known bool) {
	b, err := os.ReadFile(meminfo)
	if err != nil {
		return 0, false
	}
	_, rest, ok := strings.Cut(string(b), "MemAvailable:")
	if !ok {
		return 0, false
	}
	if _, err := fmt.Sscanf(rest, "%d kB", &free); err != nil {
		return 0, false
	}
	return free << 10, true
}

// register makes the source's buffers those of k.
func (s *Source) register(k *socket) error {
	reg := unix.XDPUmemReg{
		Addr: uint64(uintptr(unsafe.Pointer(&s.umem[0]))),
		Len:  uint64(s.frames()) * uint64(s.chunk),
		Size: uint32(s.chunk),
	}
	set := func() error {
		_, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(k.fd), unix.SOL_XDP, unix.XDP_UMEM_REG, uintptr(unsafe.Pointer(&reg)), unsafe.Sizeof(reg), 0)
		runtime.KeepAlive(&reg)
		if errno != 0 {
			return errno
		}
		return nil
	}
	err := set()
	if errors.Is(err, unix.ENOBUFS) && raiseMemlock() {
		err = set()
	}
	if err != nil {
		return k.q.errorf("%d bytes of buffers: %w", reg.Len, memoryError(err))
	}
	return nil
}

// raiseMemlock raises the limit of pinned memory as far as this process may.
func raiseMemlock() bool {
	var old unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &old) != nil {
		return false
	}
	all := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	if unix.Setrlimit(unix.RLIMIT_MEMLOCK, &all) == nil {
		return true
	}
	return old.Cur < old.Max && unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: old.Max, Max: old.Max}) == nil
}

// memoryError says what to do if memory cannot be allocated or pinned.
func memoryError(err error) error {
	switch {
	case errors.Is(err, unix.ENOBUFS):
		return fmt.Errorf("%w: raise RLIMIT_MEMLOCK (LimitMEMLOCK= of systemd) or give CAP_IPC_LOCK: %w", ErrMemory, err)
	case errors.Is(err, unix.ENOMEM), errors.Is(err, unix.EAGAIN):
		return fmt.Errorf("%w: lower the number of buffers: %w", ErrMemory, err)
	}
	return err
}
