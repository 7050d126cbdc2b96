package rig

import (
	"errors"

	"golang.org/x/sys/unix"
)

// onCPUs calls start on the calling thread, which the caller has locked, while it
// is bound to the CPUs and goes before all that is not urgent there: a process that start
// starts inherits that with all its threads. Without CPUs nothing is changed.
func onCPUs(cpus []int, start func() error) error {
	if len(cpus) == 0 {
		return start()
	}
	var before, set unix.CPUSet
	for _, c := range cpus {
		set.Set(c)
	}
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return err
	}
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return err
	}
	urgent := unix.Setpriority(unix.PRIO_PROCESS, 0, -20) == nil
	err := errors.Join(start(), unix.SchedSetaffinity(0, &before))
	if urgent {
		err = errors.Join(err, unix.Setpriority(unix.PRIO_PROCESS, 0, 0))
	}
	return err
}
