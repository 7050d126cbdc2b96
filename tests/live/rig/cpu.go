package rig

import (
	"errors"

	"golang.org/x/sys/unix"
)

// onCPUs calls start on the calling thread, which the caller has locked, while it
// is bound to the CPUs: a process that start starts inherits that with all its
// threads. Without CPUs nothing is bound.
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
	return errors.Join(start(), unix.SchedSetaffinity(0, &before))
}
