package ethtool

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Errors of this package, matched with errors.Is.
var (
	ErrNotSupported = errors.New("not supported by the driver")
	ErrPermission   = errors.New("permission denied")
	ErrNoDevice     = errors.New("no such interface")
	ErrRule         = errors.New("rule cannot be expressed")
)

// PermissionError names the capability that a call lacks. It is ErrPermission.
type PermissionError struct {
	Op         string
	Capability string // CAP_NET_ADMIN
}

func (e *PermissionError) Error() string {
	return e.Op + ": permission denied: the process needs " + e.Capability
}

// Is makes every PermissionError match ErrPermission.
func (e *PermissionError) Is(target error) bool { return target == ErrPermission }

// wrap says what was tried and turns the errno into an error of this package.
func wrap(op string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return &PermissionError{Op: op, Capability: "CAP_NET_ADMIN"}
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("%s: %w", op, ErrNotSupported)
	case errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		return fmt.Errorf("%s: %w", op, ErrNoDevice)
	}
	return fmt.Errorf("%s: %w", op, err)
}
