//go:build !linux

package modelcmd

import "time"

// threadCPU is not known here; rates per CPU second are then rates per second.
func threadCPU() time.Duration { return 0 }
