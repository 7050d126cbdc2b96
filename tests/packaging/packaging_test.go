package packaging

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/tests/e2e/influx"
	"github.com/agp-net/telegraf-agp/tests/e2e/telegrafbin"
	"github.com/agp-net/telegraf-agp/tests/traffic"
)

const (
	patience = time.Minute
	tick     = 20 * time.Millisecond

	section  = "/etc/telegraf/telegraf.d/agp.conf"
	disabled = section + ".disabled"
	config   = "/etc/telegraf-agp/agp.conf"
	program  = "/usr/lib/telegraf-agp/telegraf-agp"
	asUser   = "setpriv --reuid telegraf --regid telegraf --init-groups "
	check    = asUser + "telegraf config check --config /etc/telegraf/telegraf.conf --config-directory /etc/telegraf/telegraf.d"
)

// packages are the ones that "make packages" makes, of version 1.0.0.
var packages struct {
	dir      string
	deb, rpm string
}

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "packages")
	if err != nil {
		panic(err)
	}
	packages.dir = dir
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// build runs packaging/build.sh.
func build(out string, env ...string) error {
	cmd := exec.Command("../../packaging/build.sh", out)
	cmd.Env = append(os.Environ(), env...)
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build.sh: %w: %s", err, text)
	}
	return nil
}

var built = sync.OnceValue(func() error {
	err := build(packages.dir, "AGP_VERSION=1.0.0")
	packages.deb = filepath.Join(packages.dir, "telegraf-agp_1.0.0-1_amd64.deb")
	packages.rpm = filepath.Join(packages.dir, "telegraf-agp-1.0.0-1.x86_64.rpm")
	return err
})

// next makes a later version of the deb with other defaults, inside the root.
func (r *root) next(version string) string {
	r.t.Helper()
	deb := "/tmp/telegraf-agp_" + version + ".deb"
	r.run(`dpkg-deb -R /tmp/first.deb /tmp/next
		sed -i 's/^Version: .*/Version: %[1]s/' /tmp/next/DEBIAN/control
		echo '# default of %[1]s' >>/tmp/next/usr/share/telegraf-agp/agp.conf
		echo '# section of %[1]s' >>/tmp/next/usr/share/telegraf-agp/telegraf.d/agp.conf
		dpkg-deb -Znone -b /tmp/next %[2]s
		rm -r /tmp/next`, version, deb)
	return deb
}

// stockTelegraf does what telegraf's own package does.
func (r *root) stockTelegraf() {
	r.t.Helper()
	path, err := telegrafbin.Path(r.t.Context(), os.Stderr)
	require.NoError(r.t, err)
	r.bring(path, "/usr/bin/telegraf", 0o755)
	r.run(`getent group telegraf >/dev/null || groupadd -r telegraf
		id telegraf >/dev/null 2>&1 || useradd -r -M telegraf -s /bin/false -d /etc/telegraf -g telegraf
		mkdir -p /etc/telegraf/telegraf.d /var/log/telegraf
		chown telegraf:telegraf /var/log/telegraf`)
	r.write("/etc/telegraf/telegraf.conf", `[agent]
  interval = "1s"
  flush_interval = "1s"
[[inputs.internal]]
[[outputs.file]]
  files = ["/var/log/telegraf/points"]
`)
}

// start runs telegraf as its service does, until the test or the returned function ends it.
func (r *root) start() (stop func()) {
	r.t.Helper()
	cmd := r.command(append(strings.Fields(asUser), "telegraf", "--config", "/etc/telegraf/telegraf.conf", "--config-directory", "/etc/telegraf/telegraf.d")...)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.WaitDelay = time.Second
	require.NoError(r.t, cmd.Start())
	stop = sync.OnceFunc(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if r.t.Failed() {
			r.t.Logf("log of telegraf:\n%s", &log)
		}
	})
	r.t.Cleanup(stop)
	return stop
}

// collect runs telegraf until a measurement arrives.
func (r *root) collect(measurement string) {
	r.t.Helper()
	r.run("rm -f /var/log/telegraf/points")
	stop := r.start()
	eventually(r.t, "no "+measurement, func() bool {
		points, _ := os.ReadFile(r.path("/var/log/telegraf/points"))
		return bytes.Contains(append([]byte("\n"), points...), []byte("\n"+measurement+","))
	})
	stop()
}

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !done(); time.Sleep(tick) {
		if time.Now().After(end) {
			require.Fail(t, what)
		}
	}
}

// processes are the numbers of those that run the program inside with a command.
func (r *root) processes(command string) (pids []int) {
	root, err := os.Stat(r.path("/"))
	require.NoError(r.t, err)
	found, err := filepath.Glob("/proc/[0-9]*")
	require.NoError(r.t, err)
	for _, dir := range found {
		line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		own, err := os.Stat(filepath.Join(dir, "root"))
		if err == nil && os.SameFile(root, own) && bytes.HasPrefix(line, []byte(program+"\x00"+command+"\x00")) {
			pid, err := strconv.Atoi(filepath.Base(dir))
			require.NoError(r.t, err)
			pids = append(pids, pid)
		}
	}
	return pids
}

// demo puts a capture where the default configuration looks for some.
func (r *root) demo() {
	r.t.Helper()
	path := "/var/lib/captures/demo.pcap"
	require.NoError(r.t, os.MkdirAll(filepath.Dir(r.path(path)), 0o755))
	capture, err := os.Create(r.path(path))
	require.NoError(r.t, err)
	require.NoError(r.t, traffic.Demo(1).WritePcap(capture))
	require.NoError(r.t, capture.Close())
}

// capabilities are what the program may have here.
func (r *root) capabilities() string { return r.run("getcap %s", program) }

// A machine on which everything happens that an administrator does with the deb, in one life.
func TestDebFromInstallToPurge(t *testing.T) {
	r := newRoot(t)
	require.NoError(t, built())
	r.bring(packages.deb, "/tmp/first.deb", 0o644)

	// Before telegraf is there.
	r.run("dpkg -i /tmp/first.deb </dev/null")
	require.Equal(t, "750 root telegraf\n", r.run("stat -c '%%a %%U %%G' "+program))
	require.Equal(t, "640 root telegraf\n", r.run("stat -c '%%a %%U %%G' "+config))
	require.Equal(t, "770 root telegraf\n", r.run("stat -c '%%a %%U %%G' /var/lib/telegraf-agp"))
	const all = program + " cap_net_admin,cap_net_raw,cap_ipc_lock,cap_perfmon,cap_bpf=ep\n"
	require.Equal(t, all, r.capabilities())
	require.Contains(t, r.fails("setpriv --reuid nobody --regid nogroup --clear-groups sh -c \"telegraf-agp version\""), "Permission denied")
	require.Contains(t, r.fails("telegraf-agp enable"), "install telegraf first")

	r.stockTelegraf()
	r.demo()

	// Enabled, it runs as telegraf's user with what the file grants.
	dry := r.run("telegraf-agp enable --dry-run")
	require.Contains(t, dry, "would write "+section)
	require.Contains(t, dry, "[[inputs.execd]]")
	require.NoFileExists(t, r.path(section))
	require.Contains(t, r.run("telegraf-agp enable"), "write "+section)
	require.Contains(t, r.run("telegraf-agp enable"), "enabled already")
	r.run(check)
	r.collect("agp_traffic")
	doctor := r.run(asUser + program + " doctor")
	require.Regexp(t, `ok +capabilities +net_raw net_admin bpf perfmon ipc_lock`, doctor)
	require.Regexp(t, `ok +configuration +`+config, doctor)

	// Upgrade of what nobody changed.
	r.run("dpkg -i %s </dev/null", r.next("1.1.0"))
	require.Equal(t, all, r.capabilities())
	require.Contains(t, r.read(config), "# default of 1.1.0")
	require.Contains(t, r.read(section), "# section of 1.1.0")
	r.collect("agp_traffic")

	// Upgrade of what somebody changed: no question, and the changes stay.
	for _, f := range []string{config, section} {
		r.write(f, r.read(f)+"# mine\n")
	}
	require.Contains(t, r.run("dpkg -i %s </dev/null", r.next("1.2.0")), "has changes that were made here")
	for _, f := range []string{config, section} {
		require.Contains(t, r.read(f), "# mine\n")
		require.NotContains(t, r.read(f), "of 1.2.0")
	}
	require.Equal(t, "install ok installed 1.2.0", r.run("dpkg-query -W -f '${Status} ${Version}' telegraf-agp"))

	r.run("telegraf-agp disable")
	require.NoFileExists(t, r.path(section))
	require.Contains(t, r.read(disabled), "# mine\n")
	r.run("telegraf-agp enable")
	require.Contains(t, r.read(section), "# mine\n")

	// A section elsewhere would keep telegraf from starting: the package stays.
	main := r.read("/etc/telegraf/telegraf.conf")
	r.write("/etc/telegraf/telegraf.conf", main+"[[inputs.execd]]\n  command = [\""+program+"\", \"run\"]\n  data_format = \"influx\"\n")
	require.Contains(t, r.fails("dpkg -r telegraf-agp"), "telegraf would still start the plugin: /etc/telegraf/telegraf.conf:8")
	require.FileExists(t, r.path(program))
	r.write("/etc/telegraf/telegraf.conf", main)

	r.run("dpkg -r telegraf-agp </dev/null")
	require.NoFileExists(t, r.path(section))
	require.NoFileExists(t, r.path(program))
	require.Contains(t, r.read(disabled), "# mine\n")
	require.Contains(t, r.read(config), "# mine\n")
	r.collect("internal_agent")

	// Back again, with what was mine.
	r.run("dpkg -i /tmp/first.deb </dev/null")
	require.Contains(t, r.read(config), "# mine\n")
	require.NoFileExists(t, r.path(section))
	r.run("telegraf-agp enable")
	require.Contains(t, r.read(section), "# mine\n")

	r.run("dpkg -P telegraf-agp </dev/null")
	require.Empty(t, r.run("find /etc /usr/bin /usr/lib /usr/share /var /run -xdev -name 'agp.conf*' -o -xdev -name '*telegraf-agp*' -o -xdev -name '50-agp*'"))
	r.fails("dpkg-query -W telegraf-agp")
	r.collect("internal_agent")
}

// A container often does not grant what the file asks for; the kernel then refuses to
// start it at all.
func TestProgramStartsWhereCapabilitiesAreNotGranted(t *testing.T) {
	r := newRoot(t)
	require.NoError(t, built())
	r.bring(packages.deb, "/tmp/first.deb", 0o644)
	require.Contains(t, r.run("setpriv --bounding-set=-bpf dpkg -i /tmp/first.deb </dev/null"), "does not grant the capabilities")
	require.Empty(t, r.capabilities())
	r.run("setpriv --bounding-set=-bpf telegraf-agp version")
}

// The kernel clears the signal at a parent's death when it grants capabilities; the
// engine must not outlive the plugin all the same.
func TestEngineWithCapabilitiesEndsWithThePlugin(t *testing.T) {
	r := newRoot(t)
	require.NoError(t, built())
	r.stockTelegraf()
	r.demo()
	r.bring(packages.deb, "/tmp/first.deb", 0o644)
	r.run("dpkg -i /tmp/first.deb </dev/null && telegraf-agp enable")
	r.write(config, "[[inputs.agp]]\n  files = [\"/var/lib/captures/demo.pcap\"]\n  speed = 1.0\n")
	r.start()
	eventually(t, "no engine", func() bool { return len(r.processes("engine")) == 1 })
	engine, plugin := r.processes("engine")[0], r.processes("run")
	require.Len(t, plugin, 1)
	require.NotContains(t, r.run("grep CapEff /proc/%d/status", engine), "0000000000000000")
	require.NoError(t, syscall.Kill(plugin[0], syscall.SIGKILL))
	begin := time.Now()
	eventually(t, "the engine goes on", func() bool { return !slices.Contains(r.processes("engine"), engine) })
	require.Less(t, time.Since(begin), 10*time.Second)
}

// A newcomer beside whom telegraf and InfluxDB run: three commands.
func TestNewcomerSeesPointsInInfluxDB(t *testing.T) {
	r := newRoot(t, true)
	require.NoError(t, built())
	db := influx.Start(t)
	db.Create("telegraf")
	r.stockTelegraf()
	r.write("/etc/telegraf/telegraf.conf", fmt.Sprintf("[agent]\n  interval = \"1s\"\n  flush_interval = \"1s\"\n[[inputs.internal]]\n[[outputs.influxdb]]\n  urls = [%q]\n  database = \"telegraf\"\n", db.URL))
	r.demo()
	r.bring(packages.deb, "/tmp/telegraf-agp.deb", 0o644)

	begin := time.Now()
	r.run("dpkg -i /tmp/telegraf-agp.deb </dev/null")
	r.run("telegraf-agp enable")
	stop := r.start() // systemctl restart telegraf
	require.Positive(t, db.WaitInt("telegraf", `SELECT max("packets_seen") FROM "agp_engine"`, 1000))
	require.Less(t, time.Since(begin), 5*time.Minute)
	eventually(t, "no alerts", func() bool { return db.Int("telegraf", `SELECT count("count") FROM "agp_alert"`) > 0 })
	stop()
}
