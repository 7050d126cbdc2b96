package steer

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// What can be wrong. Errors of this package wrap one of these or a system error.
var (
	ErrAttached    = errors.New("another program is attached")   // see AttachedError
	ErrPermission  = errors.New("not permitted")                 // see PermissionError
	ErrUnsupported = errors.New("not supported by this kernel")  // see UnsupportedError
	ErrNoDriverXDP = errors.New("the driver does not have XDP")  //
	ErrMTU         = errors.New("the MTU is too large for XDP")  //
	ErrNoInterface = errors.New("no such interface")             //
	ErrLinkType    = errors.New("unsupported kind of interface") //
	ErrConfig      = errors.New("bad setting")                   //
	ErrRule        = errors.New("bad rule")                      //
	ErrFull        = errors.New("the block list is full")        //
	ErrInUse       = errors.New("the interface is attached")     // by this Datapath
	ErrClosed      = errors.New("the datapath is closed")        //
)

// AttachedError names the program that is attached where ours should be. It is an ErrAttached.
type AttachedError struct {
	ID   uint32 // of the program, 0 if the kernel does not tell
	Name string
}

func (e *AttachedError) Error() string {
	return fmt.Sprintf("another XDP program is attached: id %d, name %q", e.ID, e.Name)
}

// Is makes the error match ErrAttached.
func (*AttachedError) Is(target error) bool { return target == ErrAttached }

// PermissionError names the capabilities that the process lacks. It is an ErrPermission.
type PermissionError struct {
	Capability string // one, or several separated by commas; empty if it has them all
	Err        error  // what the kernel said
}

func (e *PermissionError) Error() string {
	if e.Capability == "" {
		return fmt.Sprintf("not permitted although the process has every capability (a container or lockdown may forbid it): %v", e.Err)
	}
	return fmt.Sprintf("not permitted: the process lacks %s: %v", e.Capability, e.Err)
}

// Is makes the error match ErrPermission.
func (*PermissionError) Is(target error) bool { return target == ErrPermission }

func (e *PermissionError) Unwrap() error { return e.Err }

// UnsupportedError names what the kernel lacks. It is an ErrUnsupported.
type UnsupportedError struct {
	Feature string
	Err     error
}

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("this kernel does not support %s: %v", e.Feature, e.Err)
}

// Is makes the error match ErrUnsupported.
func (*UnsupportedError) Is(target error) bool { return target == ErrUnsupported }

func (e *UnsupportedError) Unwrap() error { return e.Err }

// needed are the capabilities of everything that a Datapath does.
var needed = []struct {
	name string
	bit  uint
}{
	{"CAP_BPF", unix.CAP_BPF},
	{"CAP_PERFMON", unix.CAP_PERFMON},
	{"CAP_NET_ADMIN", unix.CAP_NET_ADMIN},
}

// MissingCapabilities returns those of the needed capabilities that the calling thread lacks.
func MissingCapabilities() ([]string, error) {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&head, &data[0]); err != nil {
		return nil, fmt.Errorf("reading capabilities: %w", err)
	}
	has := func(bit uint) bool { return data[bit/32].Effective&(1<<(bit%32)) != 0 }
	var missing []string
	for _, c := range needed {
		// CAP_SYS_ADMIN stands for the first two, which are split off from it.
		if !has(c.bit) && (c.bit == unix.CAP_NET_ADMIN || !has(unix.CAP_SYS_ADMIN)) {
			missing = append(missing, c.name)
		}
	}
	return missing, nil
}

// explain turns EPERM into a PermissionError and leaves other errors as they are.
func explain(err error) error {
	if err == nil || !(errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES)) {
		return err
	}
	missing, capErr := MissingCapabilities()
	if capErr != nil {
		return errors.Join(err, capErr)
	}
	var verifier *ebpf.VerifierError
	if len(missing) == 0 && errors.As(err, &verifier) {
		return err // the verifier refuses with the same numbers
	}
	if len(missing) > 0 { // what is said beside the number guesses at other reasons
		var errno unix.Errno
		if errors.As(err, &errno) {
			err = errno
		}
	}
	return &PermissionError{Capability: strings.Join(missing, ", "), Err: err}
}
