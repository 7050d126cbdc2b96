package main

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agp-net/telegraf-agp/agp/steer"
	"github.com/agp-net/telegraf-agp/agp/steer/port"
)

// kernelFeatures says what the kernel has for live capture. Captures need none of it.
func kernelFeatures(list []steer.Feature) finding {
	var have, lack []string
	required := false
	for _, f := range list {
		switch {
		case f.Err == nil:
			have = append(have, f.Name)
		case errors.Is(f.Err, steer.ErrPermission):
			return finding{levelWarn, "live capture", "not known without privileges", f.Err.Error()}
		default:
			lack = append(lack, f.Name+" ("+f.Use+")")
			required = required || f.Required
		}
	}
	out := finding{levelOK, "live capture", strings.Join(have, ", "), ""}
	if len(lack) > 0 {
		out.level, out.hint = levelWarn, "without "+strings.Join(lack, ", ")
		if required {
			out.hint += ": frames are taken by AF_PACKET, without steering"
		}
	}
	return out
}

// memlockNeed is what the buffers of a few AF_XDP queues and the BPF maps take where the
// kernel counts them against the limit.
const memlockNeed = 64 << 20

// memlock judges the limit of locked memory. CAP_IPC_LOCK lifts it.
func memlock(limit uint64, lifted bool) finding {
	text := fmt.Sprintf("%d KiB", limit>>10)
	if limit == unix.RLIM_INFINITY {
		text = "unlimited"
	}
	f := finding{levelOK, "memlock", text, ""}
	switch {
	case lifted:
		f.found += ", lifted by ipc_lock"
	case limit < memlockNeed:
		f.level, f.hint = levelWarn, `source "divert" needs more: LimitMEMLOCK=infinity in the service, or CAP_IPC_LOCK`
	}
	return f
}

func (m *machine) memlock() finding {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l); err != nil {
		return finding{levelWarn, "memlock", "unknown", err.Error()}
	}
	set, _ := m.field("proc/self/status", "CapEff")
	return memlock(l.Cur, set&(1<<unix.CAP_IPC_LOCK) != 0)
}

// interfaceFindings says what can be done with an interface that was asked about.
func interfaceFindings(name string) []finding {
	what := "interface"
	i, err := net.InterfaceByName(name)
	if err != nil {
		return []finding{{levelMissing, what, name + ": no such interface", "ip link lists them"}}
	}
	var list []finding
	if lack, err := steer.MissingCapabilities(); err == nil && len(lack) > 0 {
		list = append(list, finding{levelMissing, "privileges", name + ": cannot be captured from", "lacks " + strings.Join(lack, ", ")})
	}
	list = append(list, portFinding(name))
	x, err := port.XDPFeatures(i.Index)
	switch {
	case errors.Is(err, port.ErrNotSupported):
		list = append(list, finding{levelOK, "xdp", name + ": the kernel does not tell, modes are tried", ""})
	case err != nil:
		list = append(list, finding{levelWarn, "xdp", name + ": unknown", err.Error()})
	default:
		list = append(list, xdpFinding(name, x))
	}
	return list
}

// portFinding describes a port. Nothing of a running plugin is touched.
func portFinding(name string) finding {
	info, err := port.Look(name)
	if err != nil {
		return finding{levelWarn, "interface", name + ": not readable", err.Error()}
	}
	text := fmt.Sprintf("%s: driver %s, MTU %d", name, cmp.Or(info.Driver, "not named"), info.MTU)
	if n := info.Channels.RX + info.Channels.Combined; n > 0 {
		text += fmt.Sprintf(", %d of %d receive queues", n, info.MaxChannels.RX+info.MaxChannels.Combined)
	}
	if info.MaxRings.RX > 0 {
		text += fmt.Sprintf(", receive ring %d of %d", info.Rings.RX, info.MaxRings.RX)
	}
	if info.RSSSupported() {
		text += fmt.Sprintf(", RSS table of %d", len(info.RSS.Indirection))
	}
	f := finding{levelOK, "interface", text, ""}
	if !info.Up {
		f.level, f.hint = levelWarn, "it is down or has no carrier"
	}
	return f
}

func xdpFinding(name string, x port.XDP) finding {
	if !x.Native {
		return finding{levelWarn, "xdp", name + ": not in the driver", `source "divert" works in generic mode, slower; "mirror" does not need it`}
	}
	text := name + ": native"
	for _, f := range []struct {
		has  bool
		name string
	}{{x.Redirect, "redirect"}, {x.ZeroCopy, "zero copy"}, {x.Buffers, "frames of several buffers"}, {x.Timestamps, "hardware timestamps"}} {
		if f.has {
			text += ", " + f.name
		}
	}
	return finding{levelOK, "xdp", text, ""}
}
