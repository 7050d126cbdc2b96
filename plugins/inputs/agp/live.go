package agp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/influxdata/telegraf/config"

	"github.com/agp-net/telegraf-agp/agp/options"
	"github.com/agp-net/telegraf-agp/agp/telemetry/agppb"
)

// LiveConfig is the table "live": how frames are taken from running interfaces.
type LiveConfig struct {
	SnapLen       int         `toml:"snap_len"`
	RingSize      config.Size `toml:"ring_size"`
	AtXDP         bool        `toml:"at_xdp"`
	XDPMode       string      `toml:"xdp_mode"`
	ZeroCopy      string      `toml:"zero_copy"`
	UMEMFrames    int         `toml:"umem_frames"`
	Peer          string      `toml:"peer"`
	Promiscuous   bool        `toml:"promiscuous"`
	RSS           bool        `toml:"rss"`
	Channels      int         `toml:"channels"`
	RingEntries   int         `toml:"ring_entries"`
	EngineClasses []string    `toml:"engine_classes"`
	KernelClasses []string    `toml:"kernel_classes"`
	SampleEvery   int         `toml:"sample_every"`
	SharePermille int         `toml:"share_permille"`
	MaxBlocked    int         `toml:"max_blocked"`
	RebalanceSkew float64     `toml:"rebalance_skew"`
	StateDir      string      `toml:"state_dir"`
}

// Kinds of source.
const (
	sourcePcap   = "pcap"
	sourceMirror = "mirror"
	sourceDivert = "divert"
)

const maxInterfaceName = 15 // IFNAMSIZ - 1

func defaultLive() LiveConfig {
	return LiveConfig{
		SnapLen: 256, RingSize: 4 << 20, XDPMode: "auto", ZeroCopy: "auto", UMEMFrames: 8192,
		SampleEvery: 1, SharePermille: 1000, MaxBlocked: 1 << 20, RebalanceSkew: 1.3, StateDir: "/var/lib/telegraf-agp",
	}
}

// live says whether packets come from running interfaces.
func (a *AGP) live() bool { return a.Source == sourceMirror || a.Source == sourceDivert }

// checkLive validates interfaces and the table "live".
func (a *AGP) checkLive() error {
	if !a.live() {
		if len(a.Interfaces) > 0 {
			return bad("interfaces", a.Interfaces, `none with source = "pcap"`)
		}
		return nil
	}
	l := &a.Live
	var errs []error
	within := func(key string, v, low, high int) {
		if v < low || v > high {
			errs = append(errs, bad("live."+key, v, fmt.Sprintf("%d to %d", low, high)))
		}
	}
	if len(a.Files) > 0 {
		errs = append(errs, bad("files", a.Files, fmt.Sprintf("none with source = %q", a.Source)))
	}
	if len(a.Interfaces) == 0 {
		errs = append(errs, bad("interfaces", a.Interfaces, "at least one interface"))
	}
	if a.Source == sourceDivert && len(a.Interfaces) > 1 {
		errs = append(errs, bad("interfaces", a.Interfaces, `one with source = "divert", and live.peer for a pair`))
	}
	seen := map[string]bool{}
	for i, name := range a.Interfaces {
		key := fmt.Sprintf("interfaces[%d]", i)
		if err := interfaceName(key, name); err != nil {
			errs = append(errs, err)
		}
		if seen[name] {
			errs = append(errs, bad(key, name, "each interface once"))
		}
		seen[name] = true
	}
	within("snap_len", l.SnapLen, 64, 256)
	if n := int64(l.RingSize); n < 64<<10 || n > 1<<30 || n&(n-1) != 0 {
		errs = append(errs, bad("live.ring_size", n, "a power of two from 64KiB to 1GiB"))
	}
	errs = append(errs, oneOf("live.xdp_mode", l.XDPMode, "auto", "native", "generic"), oneOf("live.zero_copy", l.ZeroCopy, "auto", "on", "off"))
	if n := l.UMEMFrames; n < 256 || n > 1<<20 || n&(n-1) != 0 {
		errs = append(errs, bad("live.umem_frames", n, "a power of two from 256 to 1048576"))
	}
	if l.Peer != "" {
		switch {
		case a.Source != sourceDivert:
			errs = append(errs, bad("live.peer", l.Peer, `only with source = "divert"`))
		case len(a.Interfaces) != 1 || l.Peer == a.Interfaces[0]:
			errs = append(errs, bad("live.peer", l.Peer, "another interface than the one in interfaces"))
		default:
			errs = append(errs, interfaceName("live.peer", l.Peer))
		}
	}
	within("channels", l.Channels, 0, 1024)
	within("ring_entries", l.RingEntries, 0, 1<<16)
	if a.Source != sourceDivert && (l.RSS || l.Channels > 0 || l.RingEntries > 0) {
		errs = append(errs, fmt.Errorf("%w: live.rss, live.channels, live.ring_entries, allowed: only with source = %q; mirror never changes the port", ErrConfig, sourceDivert))
	}
	for key, list := range map[string][]string{"engine_classes": l.EngineClasses, "kernel_classes": l.KernelClasses} {
		for i, text := range list {
			if _, err := options.ParseClass(text); err != nil {
				errs = append(errs, fmt.Errorf("%w: live.%s[%d]: %w", ErrConfig, key, i, err))
			}
		}
	}
	if n := len(l.EngineClasses) + len(l.KernelClasses); n > options.MaxClasses {
		errs = append(errs, bad("live.engine_classes and live.kernel_classes", n, fmt.Sprintf("%d classes together", options.MaxClasses)))
	}
	within("sample_every", l.SampleEvery, 1, 1<<30)
	within("share_permille", l.SharePermille, 1, 1000)
	within("max_blocked", l.MaxBlocked, 1, 1<<24)
	if s := l.RebalanceSkew; s != 0 && !(s >= 1.01 && s <= 256) {
		errs = append(errs, bad("live.rebalance_skew", s, "0 or 1.01 to 256"))
	}
	if !filepath.IsAbs(l.StateDir) {
		errs = append(errs, bad("live.state_dir", l.StateDir, "an absolute path"))
	}
	return errors.Join(errs...)
}

func interfaceName(key, name string) error {
	// What a name must not have for the kernel; after a zero byte it would read no further.
	if name == "" || len(name) > maxInterfaceName || strings.ContainsAny(name, "/: \t\n\v\f\r\x00") || name == "." || name == ".." {
		return bad(key, name, fmt.Sprintf("a name of 1 to %d characters without blanks, slashes and colons", maxInterfaceName))
	}
	return nil
}

// source returns what the engine opens.
func (a *AGP) source(files []string) *agppb.Source {
	if !a.live() {
		return &agppb.Source{Kind: a.Source, Files: files, Speed: a.Speed}
	}
	l := &a.Live
	return &agppb.Source{Kind: a.Source, Live: &agppb.Live{
		Interfaces: a.Interfaces, SnapLen: uint32(l.SnapLen), RingBytes: uint64(l.RingSize), Xdp: l.AtXDP,
		XdpMode: l.XDPMode, ZeroCopy: l.ZeroCopy, UmemFrames: uint32(l.UMEMFrames), Peer: l.Peer, Promiscuous: l.Promiscuous,
		Rss: l.RSS, Channels: uint32(l.Channels), RingEntries: uint32(l.RingEntries), MaxBlocked: uint32(l.MaxBlocked),
		Policy: &agppb.SteerPolicy{
			Engine: l.EngineClasses, Kernel: l.KernelClasses,
			SampleEvery: uint32(l.SampleEvery), SharePermille: uint32(l.SharePermille),
		},
		StateDir: l.StateDir, RebalanceSkew: l.RebalanceSkew,
	}}
}

// defaultWindow is what sketches of live traffic cover if nothing else is said: since the
// start would say less each day.
const defaultWindow = time.Minute

// takeBackLimit is what undoing may take: it is a few system calls.
const takeBackLimit = 1500 * time.Millisecond

// takeBack undoes what an engine that crashed has left at ports: settings, and filters where
// the kernel has no tcx. An engine that ended in order has done so itself, and then there
// is nothing to do.
func (a *AGP) takeBack() {
	ctx, cancel := context.WithTimeout(context.Background(), takeBackLimit)
	defer cancel()
	args := append(slices.Clone(a.EngineCommand[1:]), "--restore", a.Live.StateDir)
	for _, name := range append(slices.Clone(a.Interfaces), a.Live.Peer) {
		if name != "" {
			args = append(args, "--interface", name)
		}
	}
	if out, err := exec.CommandContext(ctx, a.EngineCommand[0], args...).CombinedOutput(); err != nil {
		a.Log.Errorf("Settings of %s are not restored, the next engine tries again: %v: %s", strings.Join(a.Interfaces, ", "), err, bytes.TrimSpace(out))
	}
}
