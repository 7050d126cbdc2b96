package port

import (
	"errors"
	"fmt"

	"github.com/agp-net/telegraf-agp/agp/steer/ethtool"
)

// Errors of this package, matched with errors.Is. Those of ethtool have a name here
// too, so that callers need not know where they came from.
var (
	ErrNoInterface  = ethtool.ErrNoDevice
	ErrNotSupported = ethtool.ErrNotSupported
	ErrPermission   = ethtool.ErrPermission
	ErrBusy         = errors.New("port is in use")
	ErrLimit        = errors.New("more than the interface has")
	ErrJournal      = errors.New("journal cannot be used")
	ErrNotApplied   = errors.New("the driver took another value")
	ErrNotRestored  = errors.New("not as before")
	ErrClosed       = errors.New("port is closed")
)

// PermissionError names the capability that the process lacks. It is ErrPermission.
type PermissionError = ethtool.PermissionError

// BusyError says who holds a port. It is ErrBusy.
type BusyError struct {
	Interface string
	Pid       int // 0 if the holder has not written it
	Woken     bool
}

func (e *BusyError) Error() string {
	if e.Pid == 0 {
		return e.Interface + ": port is in use by another process"
	}
	if e.Woken {
		return fmt.Sprintf("%s: port is in use by process %d, which was stopped and has been continued", e.Interface, e.Pid)
	}
	return fmt.Sprintf("%s: port is in use by process %d", e.Interface, e.Pid)
}

// Is makes every BusyError match ErrBusy.
func (e *BusyError) Is(target error) bool { return target == ErrBusy }

// LimitError says what the interface has at most. It is ErrLimit.
type LimitError struct {
	Interface string
	What      string // "receive queues", "receive ring entries", …
	Want, Max int
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("%s: %d %s, but the interface has at most %d", e.Interface, e.Want, e.What, e.Max)
}

// Is makes every LimitError match ErrLimit.
func (e *LimitError) Is(target error) bool { return target == ErrLimit }
