package kernel61

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/tests/testcap"
)

const (
	metapackage = "linux-image-cloud-amd64" // of Debian 12, which keeps 6.1
	// limit is for an emulator without acceleration on a busy machine.
	limit = 6 * time.Minute
)

// modules, in the order in which they are loaded.
var modules = []string{
	"drivers/net/veth.ko", "drivers/net/macvlan.ko", "drivers/net/tun.ko",
	"net/sched/sch_ingress.ko", "net/sched/cls_bpf.ko",
	"net/llc/llc.ko", "net/802/stp.ko", "net/bridge/bridge.ko", "net/802/garp.ko", "net/802/mrp.ko", "net/8021q/8021q.ko",
}

// What runs in the guest. Left out are tests of memory sizes that the guest does not have, and
// of a compiler.
var guestTests = []string{
	"/bpf.test -test.short -test.v -test.skip=Objects",
	"/steer.test -test.short -test.v -test.skip=Million",
}

func root(t *testing.T) string {
	t.Helper()
	_, file, _, ok := runtime.Caller(0)
	require.True(t, ok)
	return filepath.Join(filepath.Dir(file), "..", "..", "..")
}

// kernel returns the folder of an unpacked kernel package.
func kernel(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(root(t), "build", "kernel61")
	if found, _ := filepath.Glob(filepath.Join(dir, "root", "boot", "vmlinuz-6.1.*")); len(found) == 1 {
		return filepath.Join(dir, "root")
	}
	testcap.Program(t, "apt-get")
	testcap.Program(t, "dpkg-deb")
	require.NoError(t, os.RemoveAll(dir))
	require.NoError(t, os.MkdirAll(dir, 0o755))
	out, err := exec.Command("apt-cache", "depends", metapackage).Output()
	name := regexp.MustCompile(`linux-image-6\.1\.\S+-cloud-amd64`).FindString(string(out))
	if err != nil || name == "" {
		testcap.Missing(t, "the package manager has no Linux 6.1 (%s): %v %s", metapackage, err, out)
	}
	get := exec.Command("apt-get", "download", name)
	get.Dir = dir
	if out, err := get.CombinedOutput(); err != nil {
		testcap.Missing(t, "downloading %s: %v %s", name, err, out)
	}
	debs, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	require.NoError(t, err)
	require.Len(t, debs, 1)
	out, err = exec.Command("dpkg-deb", "-x", debs[0], filepath.Join(dir, "root")).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NoError(t, os.Remove(debs[0]))
	return filepath.Join(dir, "root")
}

// archive writes a cpio archive, "newc", as the kernel unpacks it.
type archive struct {
	bytes.Buffer
	inode int
}

func (a *archive) add(name string, mode int, data []byte) {
	a.inode++
	fmt.Fprintf(a, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X",
		a.inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name)+1, 0)
	a.WriteString(name + "\x00")
	a.pad()
	a.Write(data)
	a.pad()
}

func (a *archive) pad() {
	for a.Len()%4 != 0 {
		a.WriteByte(0)
	}
}

// build compiles something static and returns it.
func build(t *testing.T, args ...string) []byte {
	t.Helper()
	out := filepath.Join(t.TempDir(), "out")
	cmd := exec.Command("go", append(append([]string{}, args[0], "-o", out), args[1:]...)...)
	cmd.Dir = root(t)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	text, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", text)
	b, err := os.ReadFile(out)
	require.NoError(t, err)
	return b
}

func TestSteeringProgramsPassTheVerifierOfLinux61(t *testing.T) {
	qemu := testcap.Program(t, "qemu-system-x86_64")
	dir := kernel(t)
	images, err := filepath.Glob(filepath.Join(dir, "boot", "vmlinuz-6.1.*"))
	require.NoError(t, err)
	require.Len(t, images, 1)

	a := &archive{}
	const directory, executable, file = 0o040755, 0o100755, 0o100644
	for _, d := range []string{"proc", "sys", "dev", "tmp", "modules"} {
		a.add(d, directory, nil)
	}
	a.add("init", executable, build(t, "build", "-trimpath", "./tests/live/kernel61/guest"))
	a.add("bpf.test", executable, build(t, "test", "-c", "./agp/steer/bpf"))
	a.add("steer.test", executable, build(t, "test", "-c", "./agp/steer"))
	var list []string
	for _, m := range modules {
		found, err := filepath.Glob(filepath.Join(dir, "lib", "modules", "*", "kernel", m))
		require.NoError(t, err)
		require.Len(t, found, 1, m)
		b, err := os.ReadFile(found[0])
		require.NoError(t, err)
		name := "modules/" + filepath.Base(m)
		a.add(name, file, b)
		list = append(list, "/"+name)
	}
	a.add("modules.list", file, []byte(strings.Join(list, "\n")))
	a.add("tests.list", file, []byte(strings.Join(guestTests, "\n")))
	a.add("TRAILER!!!", 0, nil)
	initrd := filepath.Join(t.TempDir(), "initrd")
	require.NoError(t, os.WriteFile(initrd, a.Bytes(), 0o600))

	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, qemu, "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "1024",
		"-nodefaults", "-no-reboot", "-display", "none", "-serial", "stdio",
		"-kernel", images[0], "-initrd", initrd, "-append", "console=ttyS0 quiet panic=-1")
	var out bytes.Buffer
	w := io.Writer(&out)
	if testing.Verbose() {
		w = io.MultiWriter(&out, os.Stdout)
	}
	cmd.Stdout, cmd.Stderr = w, w
	start := time.Now()
	err = cmd.Run()
	t.Logf("the guest ran for %.0f s", time.Since(start).Seconds())
	require.NoError(t, err, "%s", out.String())
	require.Contains(t, out.String(), "GUEST: kernel 6.1.")
	require.Contains(t, out.String(), "GUEST: PASSED", "%s", out.String())
}
