package live

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/tests/live/rig"
	"github.com/agp-net/telegraf-agp/tests/netns"
)

// host is a namespace with a veth pair "h0" whose settings must not change.
type host struct {
	*wire
	before string
}

func newHost(t *testing.T, queues, mtu int) *host {
	t.Helper()
	netns.NothingLeft(t)
	h := &host{wire: newWire(t, queues, max(mtu, busyMTU))}
	h.before = h.settings(t)
	return h
}

func (h *host) settings(t *testing.T) string {
	t.Helper()
	text, err := rig.Settings(h.host, "h0")
	require.NoError(t, err)
	return text
}

func (h *host) requireUntouched(t *testing.T) {
	t.Helper()
	require.Equal(t, h.before, h.settings(t))
}

// complaints are the lines of a plugin's log that are errors or warnings.
func complaints(p *rig.Process) []string {
	var list []string
	for line := range strings.Lines(p.Log()) {
		if strings.Contains(line, "E! ") || strings.Contains(line, "W! ") {
			list = append(list, strings.TrimSpace(line))
		}
	}
	return list
}

// complaint waits for a line that contains all of the words.
func complaint(t *testing.T, p *rig.Process, words ...string) string {
	t.Helper()
	var found string
	eventually(t, fmt.Sprintf("a complaint with %q", words), func() bool {
		for _, line := range complaints(p) {
			all := true
			for _, w := range words {
				all = all && strings.Contains(line, w)
			}
			if all {
				found = line
				return true
			}
		}
		return false
	})
	return found
}

// staysUp requires that the plugin lives on and does not repeat itself endlessly.
func staysUp(t *testing.T, p *rig.Process) {
	t.Helper()
	settle(time.Second)
	require.True(t, p.Alive(), p.Log())
	require.LessOrEqual(t, len(complaints(p)), 8, "with backoff there are few lines:\n%s", p.Log())
	t.Log(complaints(p)[0])
}

var kinds = []string{"mirror", "divert"}

func TestInterfaceThatIsMissingIsNamedAndTakenWhenItComes(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			h := newHost(t, 2, 0)
			p := startPlugin(t, h.host, pluginConfig(t, kind, "", "", "later0"))
			complaint(t, p, "later0")
			staysUp(t, p)
			require.NoError(t, netns.Veth(netns.End{NS: h.host, Name: "later0"}, netns.End{NS: h.far, Name: "later1"}, 1, 0))
			attached(t, h.host, "later0")
			h.requireUntouched(t)
		})
	}
}

func TestInterfaceThatGoesDownIsTakenAgainWhenItComesUp(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			h := newHost(t, 2, 0)
			p := startPlugin(t, h.host, pluginConfig(t, kind, "", "", "h0"))
			attached(t, h.host, "h0")
			require.NoError(t, h.host.Down("h0"))
			settle(time.Second)
			require.True(t, p.Alive(), p.Log())
			require.NoError(t, h.host.Up("h0"))
			captures(t, h, p, "h0")
			require.NoError(t, p.Stop())
			h.requireUntouched(t)
		})
	}
}

// captures sends frames until the plugin's metrics show more packets than before.
func captures(t *testing.T, h *host, p *rig.Process, name string) {
	t.Helper()
	frames := benchFrames(t, 1200, 100)
	first := seen(p)
	eventually(t, "packets of "+name, func() bool {
		_, err := h.sender.Send(frames)
		if err != nil {
			return false
		}
		_ = p.Gather()
		settle(300 * time.Millisecond)
		return seen(p) >= first+uint64(len(frames))
	})
}

// seen is the last packets_seen that a plugin has printed.
func seen(p *rig.Process) (n uint64) {
	for line := range strings.Lines(p.Out()) {
		if strings.HasPrefix(line, "agp_engine,") {
			if _, rest, ok := strings.Cut(line, "packets_seen="); ok {
				_, _ = fmt.Sscanf(rest, "%di", &n)
			}
		}
	}
	return n
}

func TestInterfaceThatIsRenamed(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			h := newHost(t, 2, 0)
			p := startPlugin(t, h.host, pluginConfig(t, kind, "", "", "h0"))
			attached(t, h.host, "h0")
			require.NoError(t, h.host.Down("h0"))
			require.NoError(t, h.host.Rename("h0", "other0"))
			require.NoError(t, h.host.Up("other0"))
			settle(1500 * time.Millisecond)
			require.True(t, p.Alive(), p.Log())
			t.Logf("%q", complaints(p))
			require.NoError(t, h.host.Down("other0"))
			require.NoError(t, h.host.Rename("other0", "h0"))
			require.NoError(t, h.host.Up("h0"))
			captures(t, h, p, "h0")
			require.NoError(t, p.Stop())
			h.requireUntouched(t)
		})
	}
}

func TestInterfaceThatIsRemovedAndAddedAgain(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			h := newHost(t, 2, 0)
			p := startPlugin(t, h.host, pluginConfig(t, kind, "", "", "h0"))
			attached(t, h.host, "h0")
			require.NoError(t, h.host.Remove("h0"))
			complaint(t, p, "h0")
			staysUp(t, p)
			require.NoError(t, netns.Veth(netns.End{NS: h.host, Name: "h0"}, netns.End{NS: h.far, Name: "out0"}, 2, busyMTU))
			attached(t, h.host, "h0")
			var err error
			h.sender, err = h.far.Sender("out0")
			require.NoError(t, err)
			defer h.sender.Close()
			captures(t, h, p, "h0")
		})
	}
}

// It keeps there what was changed for the engine, which can undo nothing in another namespace.
func TestInterfaceThatIsMovedToAnotherNamespaceAndBackIsPutBack(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			h := newHost(t, 2, 0)
			other := netns.Test(t)
			p := startPlugin(t, h.host, pluginConfig(t, kind, "", "    xdp_mode = \"generic\"\n", "h0"))
			attached(t, h.host, "h0")
			captures(t, h, p, "h0")
			require.NoError(t, h.host.Move("h0", other))
			complaint(t, p, "h0")
			require.NoError(t, other.Move("h0", h.host))
			require.NoError(t, h.host.Up("h0"))
			attached(t, h.host, "h0")
			captures(t, h, p, "h0")
			require.NoError(t, p.Stop())
			h.requireUntouched(t)
		})
	}
}

// A macvlan has no XDP of its own driver.
func TestDriverWithoutXDPIsRefusedOrReplacedByGenericMode(t *testing.T) {
	h := newHost(t, 2, 0)
	require.NoError(t, h.host.Macvlan("mv0", "h0"))
	h.before = h.settings(t)
	p := startPlugin(t, h.host, pluginConfig(t, "divert", "", "    xdp_mode = \"native\"\n", "mv0"))
	complaint(t, p, "mv0")
	staysUp(t, p)
	list, err := rig.Programs(h.host, "mv0")
	require.NoError(t, err)
	require.Empty(t, list)
	require.NoError(t, p.Stop())

	p = startPlugin(t, h.host, pluginConfig(t, "divert", "", "", "mv0"))
	attached(t, h.host, "mv0")
	require.Empty(t, errorsOf(p))
	require.NoError(t, p.Stop())
	h.requireUntouched(t)
}

// A tun interface has no Ethernet header.
func TestInterfaceWithoutEthernetHeader(t *testing.T) {
	h := newHost(t, 2, 0)
	require.NoError(t, h.host.Tun("t0"))
	p := startPlugin(t, h.host, pluginConfig(t, "mirror", "", "", "t0"))
	attached(t, h.host, "t0")
	require.Empty(t, errorsOf(p))
	require.NoError(t, p.Stop())
	h.requireUntouched(t)
}

func errorsOf(p *rig.Process) []string {
	var list []string
	for _, line := range complaints(p) {
		if strings.Contains(line, "E! ") {
			list = append(list, line)
		}
	}
	return list
}

// An MTU that is too large for a mode is refused in that mode or taken in another.
func TestMTUThatIsTooLargeForTheMode(t *testing.T) {
	h := newHost(t, 2, jumbo)
	p := startPlugin(t, h.host, pluginConfig(t, "divert", "", "    xdp_mode = \"native\"\n    zero_copy = \"on\"\n", "h0"))
	complaint(t, p, "h0")
	staysUp(t, p)
	require.NoError(t, p.Stop())
	h.requireUntouched(t)
}

func TestMoreQueuesThanTheInterfaceHas(t *testing.T) {
	h := newHost(t, 2, 0)
	p := startPlugin(t, h.host, pluginConfig(t, "divert", "", "    channels = 64\n", "h0"))
	line := complaint(t, p, "h0", "64", "2")
	staysUp(t, p)
	require.Contains(t, line, "queues")
	h.requireUntouched(t)
	require.NoError(t, p.Stop())
	h.requireUntouched(t)
}

// foreign attaches an XDP program that is not ours.
func foreign(t *testing.T, h *host) (id ebpf.ProgramID) {
	t.Helper()
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "somebody_elses", Type: ebpf.XDP, License: "MIT",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}, // XDP_PASS
	})
	require.NoError(t, err)
	l, err := h.host.Link("h0")
	require.NoError(t, err)
	var x link.Link
	require.NoError(t, h.host.Do(func() (err error) {
		x, err = link.AttachXDP(link.XDPOptions{Program: prog, Interface: l.Attrs().Index})
		return err
	}))
	t.Cleanup(func() {
		_ = x.Close()
		_ = prog.Close()
	})
	info, err := prog.Info()
	require.NoError(t, err)
	id, ok := info.ID()
	require.True(t, ok)
	return id
}

// Another XDP program is named with its number and never detached.
func TestForeignXDPProgramIsNamedAndStays(t *testing.T) {
	for name, c := range map[string]struct{ kind, live string }{
		"divert":        {"divert", ""},
		"mirror at XDP": {"mirror", "    at_xdp = true\n"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, 2, 0)
			id := foreign(t, h)
			h.before = h.settings(t)
			p := startPlugin(t, h.host, pluginConfig(t, c.kind, "", c.live, "h0"))
			complaint(t, p, "h0", "somebody_elses", fmt.Sprint(id))
			staysUp(t, p)
			h.requireUntouched(t)
			require.NoError(t, p.Stop())
			h.requireUntouched(t)
		})
	}
}

// Mirror at tc and a foreign XDP program do not concern each other.
func TestMirrorRunsBesideAForeignXDPProgram(t *testing.T) {
	h := newHost(t, 2, 0)
	foreign(t, h)
	h.before = h.settings(t)
	p := startPlugin(t, h.host, pluginConfig(t, "mirror", "", "", "h0"))
	eventually(t, "tc programs", func() bool {
		list, err := rig.Programs(h.host, "h0")
		return err == nil && len(list) >= 2
	})
	captures(t, h, p, "h0")
	require.Empty(t, complaints(p))
	require.NoError(t, p.Stop())
	h.requireUntouched(t)
}

// Without privileges the capability that is missing is named.
func TestWithoutPrivilegesTheCapabilityIsNamed(t *testing.T) {
	const nobody = 65534
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			h := newHost(t, 2, 0)
			config := pluginConfig(t, kind, "", "", "h0")
			require.NoError(t, os.Chmod(config, 0o644))                                               //nolint:gosec // nobody reads it
			for dir := filepath.Dir(config); strings.Contains(dir, "Test"); dir = filepath.Dir(dir) { // the folders of this test
				require.NoError(t, os.Chmod(dir, 0o777)) //nolint:gosec // nobody works in it
			}
			cmd := exec.Command(agpBinary(t), "run", "--config", config)
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
			p, err := rig.Run(h.host, cmd)
			require.NoError(t, err)
			t.Cleanup(func() {
				_ = p.Stop()
				if t.Failed() {
					t.Logf("log of the plugin:\n%s", p.Log())
				}
			})
			complaint(t, p, "CAP_BPF", "CAP_NET_ADMIN")
			staysUp(t, p)
			h.requireUntouched(t)
		})
	}
}

// The second plugin on a port names the first and waits for it.
func TestSecondPluginOnAPortWaits(t *testing.T) {
	for name, c := range map[string]struct {
		kind   string
		shared bool // state_dir
		words  string
	}{
		"mirror":                             {"mirror", true, "in use by process "},
		"mirror with a state_dir of its own": {"mirror", false, "in use by process "},
		"divert":                             {"divert", true, "in use by process "},
		"divert with a state_dir of its own": {"divert", false, "in use by process "},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, 2, 0)
			config := pluginConfig(t, c.kind, "", "", "h0")
			first := startPlugin(t, h.host, config)
			attached(t, h.host, "h0")
			captures(t, h, first, "h0")
			during := h.settings(t)
			if !c.shared {
				config = pluginConfig(t, c.kind, "", "", "h0")
			}
			second := startPlugin(t, h.host, config)
			complaint(t, second, "h0", c.words)
			staysUp(t, second)
			require.Equal(t, during, h.settings(t))
			require.True(t, first.Alive())
			require.Empty(t, complaints(first))
			captures(t, h, first, "h0")
			require.NoError(t, first.Stop())
			captures(t, h, second, "h0")
			require.NoError(t, second.Stop())
			h.requireUntouched(t)
		})
	}
}
