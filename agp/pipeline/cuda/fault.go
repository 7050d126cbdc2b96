package cuda

import (
	"errors"
	"fmt"

	"github.com/agp-net/telegraf-agp/cuda"
)

// ErrDevice says that the GPU has failed under the kernel. What it had in its memory is lost, and only
// another process can use it again, if at all.
var ErrDevice = errors.New("the GPU has failed")

const (
	kernelLog = "the kernel log (dmesg | grep Xid) says more"
	deviceBug = "a fault of the device code or of the hardware, XID 13, 31 or 43; " + kernelLog + "; if it comes again, report it and use pipeline = \"cpu\""
	memoryBad = "see nvidia-smi -q -d ECC,ROW_REMAPPER; the GPU may need a reset (nvidia-smi -r) or to be replaced; " + kernelLog
)

// advice says what a result means to who runs the pipeline and what can be done.
var advice = map[cuda.Result]string{
	cuda.EccUncorrectable:          "memory of the GPU has an error that ECC cannot correct, XID 48, 63, 64 or 95; " + memoryBad,
	cuda.Contained:                 "memory of the GPU had an error that ECC cannot correct and that only this process had to do with, XID 94; a restart suffices; " + memoryBad,
	cuda.NvlinkUncorrectable:       "an NVLink has failed, XID 74; see nvidia-smi nvlink -e; " + kernelLog,
	cuda.IllegalAddress:            "the kernel used memory that is not there: " + deviceBug,
	cuda.LaunchFailed:              "the kernel met an exception: " + deviceBug,
	cuda.HardwareStackError:        "the call stack of the kernel is damaged: " + deviceBug,
	cuda.IllegalInstruction:        "the kernel came to an illegal instruction: " + deviceBug,
	cuda.MisalignedAddress:         "the kernel used a misaligned address: " + deviceBug,
	cuda.InvalidAddressSpace:       "the kernel used an address of the wrong kind of memory: " + deviceBug,
	cuda.InvalidPC:                 "the kernel went astray: " + deviceBug,
	cuda.Assert:                    "an assertion of the device code failed: report it",
	cuda.LaunchTimeout:             "the driver ended the kernel because it ran too long, XID 8: a GPU with a display has such a limit; use one without, or switch the display off",
	cuda.ContextIsDestroyed:        "something else in this process has given the GPU's context back",
	cuda.Unknown:                   "the driver has lost the GPU, often XID 79 (fallen off the bus) or 119, 120 (its firmware does not answer): check power, cooling and PCIe, reset or reboot; " + kernelLog,
	cuda.DeviceUnavailable:         "another process has the GPU, or its compute mode is exclusive or prohibited: see nvidia-smi and nvidia-smi -q -d COMPUTE",
	cuda.SystemNotReady:            "the NVSwitch fabric is not ready: see systemctl status nvidia-fabricmanager and nvidia-smi -q (Fabric)",
	cuda.SystemDriverMismatch:      "libcuda and the kernel module are of different versions, as after an update: reload the module or reboot",
	cuda.OutOfMemory:               "other processes have the GPU's memory: see nvidia-smi; or ask for fewer rings, flows or sketches",
	cuda.CooperativeLaunchTooLarge: "the kernel's blocks cannot all run at once on this GPU or MIG slice: ask for fewer rings",
	cuda.LaunchOutOfResources:      "a block needs more registers or shared memory than this GPU has",
	cuda.NoDevice:                  "no GPU is visible to this process: see nvidia-smi -L and CUDA_VISIBLE_DEVICES",
	cuda.NotPermitted:              "the process may not do this: see the rights of /dev/nvidia* and the container's device rules",
}

// Explain adds to an error of the driver what it means and what can be done. If the GPU has failed
// it is ErrDevice as well.
func Explain(err error) error {
	var r cuda.Result
	if err == nil || !errors.As(err, &r) {
		return err
	}
	if text := advice[r]; text != "" {
		err = fmt.Errorf("%w: %s", err, text)
	}
	if cuda.Poisoned(err) || r == cuda.Unknown {
		err = fmt.Errorf("%w: %w", ErrDevice, err)
	}
	return err
}
