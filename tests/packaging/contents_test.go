package packaging

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/tests/testcap"
)

func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(testcap.Program(t, name), args...).CombinedOutput()
	require.NoError(t, err, "%s %v: %s", name, args, out)
	return string(out)
}

// tree describes the files below a folder: mode, and target or sum.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		if d.Type() == fs.ModeSymlink {
			files[name], err = os.Readlink(path)
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		text, err := os.ReadFile(path)
		files[name] = fmt.Sprintf("%v %x", info.Mode(), sha256.Sum256(text))
		return err
	}))
	return files
}

// unpacked is the deb's content.
func unpacked(t *testing.T) string {
	t.Helper()
	require.NoError(t, built())
	dir := t.TempDir()
	output(t, "dpkg-deb", "-x", packages.deb, dir)
	return dir
}

func TestRPMHasWhatTheDebHas(t *testing.T) {
	fromDeb := unpacked(t)
	dir, db := t.TempDir(), t.TempDir()
	query := func(args ...string) string {
		return output(t, "rpm", append([]string{"--dbpath", db, "-qp"}, append(args, packages.rpm)...)...)
	}
	require.Equal(t, "telegraf-agp 1.0.0-1 x86_64 Apache-2.0", query("--qf", "%{NAME} %{VERSION}-%{RELEASE} %{ARCH} %{LICENSE}"))
	owners := query("--qf", `[%{FILEMODES:perms} %{FILEUSERNAME} %{FILEGROUPNAME} %{FILENAMES}\n]`)
	require.Contains(t, owners, "-rwxr-x--- root telegraf "+program+"\n")
	require.Contains(t, owners, "drwxrwx--- root telegraf /var/lib/telegraf-agp\n")
	require.Contains(t, owners, "drwxr-xr-x root root /usr/lib/telegraf-agp\n")
	require.Contains(t, query("--recommends"), "libcap\n")
	for _, s := range []string{"preinstall", "postinstall", "preremove", "postremove"} {
		text, err := os.ReadFile("../../packaging/scripts/" + s + ".sh")
		require.NoError(t, err)
		require.Contains(t, query("--scripts"), strings.TrimSpace(string(text)))
	}
	testcap.Program(t, "cpio")
	// Names in the archive are absolute, and must not be taken at their word.
	cmd := exec.Command("sh", "-ec", `"$1" "$2" | cpio -idm --quiet --no-absolute-filenames`, "sh", testcap.Program(t, "rpm2cpio"), packages.rpm)
	cmd.Dir = dir
	extracted, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", extracted)
	files := tree(t, dir)
	require.Contains(t, files, strings.TrimPrefix(program, "/"))
	require.Equal(t, tree(t, fromDeb), files)
}

// The same scripts, with the arguments that rpm has for them.
func TestRPMFromInstallToErase(t *testing.T) {
	testcap.Program(t, "rpm")
	r := newRoot(t)
	require.NoError(t, built())
	r.bring(packages.rpm, "/tmp/telegraf-agp.rpm", 0o644)
	r.stockTelegraf()
	r.run("rpm -i --nodeps /tmp/telegraf-agp.rpm </dev/null")
	require.Contains(t, r.capabilities(), "cap_bpf")
	r.run("telegraf-agp enable")
	r.write(config, r.read(config)+"# mine\n")

	r.run("rpm -U --nodeps --force /tmp/telegraf-agp.rpm </dev/null")
	require.Contains(t, r.capabilities(), "cap_bpf")
	require.Contains(t, r.read(config), "# mine\n")
	require.FileExists(t, r.path(section))

	r.run("rpm -e telegraf-agp </dev/null")
	require.NoFileExists(t, r.path(section))
	require.NoFileExists(t, r.path(program))
	require.Contains(t, r.read(config), "# mine\n")
	r.run(check)
}

// Another folder, umask, time zone and time give the same bytes.
func TestPackagesAreReproducible(t *testing.T) {
	require.NoError(t, built())
	dir := t.TempDir()
	again := exec.Command("sh", "-c", `umask 077; exec ../../packaging/build.sh "$1"`, "sh", filepath.Join(dir, "out"))
	again.Env = append(os.Environ(), "AGP_VERSION=1.0.0", "TZ=Asia/Tokyo", "LC_ALL=C.UTF-8", "TMPDIR="+dir)
	text, err := again.CombinedOutput()
	require.NoError(t, err, "%s", text)
	first, second := tree(t, packages.dir), tree(t, filepath.Join(dir, "out"))
	require.Len(t, first, 3)
	for name := range first {
		require.Equal(t, first[name][len("-rw-------"):], second[name][len("-rw-------"):], name)
	}
}

func TestBillOfMaterialsAndLicencesNameEveryModule(t *testing.T) {
	dir := unpacked(t)
	info, err := buildinfo.ReadFile(filepath.Join(dir, program))
	require.NoError(t, err)
	require.NotEmpty(t, info.Deps)
	doc := filepath.Join(dir, "usr/share/doc/telegraf-agp")
	text, err := os.ReadFile(filepath.Join(doc, "telegraf-agp.cdx.json"))
	require.NoError(t, err)
	var bom cdx.BOM
	require.NoError(t, json.Unmarshal(text, &bom))
	require.Equal(t, "1.0.0", bom.Metadata.Component.Version)
	listed := map[string]string{}
	for _, c := range *bom.Components {
		listed[c.Name] = c.Version
	}
	licences, err := os.ReadFile(filepath.Join(doc, "third-party-licences.txt"))
	require.NoError(t, err)
	require.Len(t, listed, len(info.Deps)+1)
	require.Equal(t, strings.TrimPrefix(info.GoVersion, "go"), listed["std"])
	for _, m := range info.Deps {
		require.Equal(t, m.Version, listed[m.Path])
		require.Contains(t, string(licences), "\n"+m.Path+" "+m.Version+": ")
	}
}

// systemd takes the drop-in together with the service that telegraf's package has.
func TestDropInSuitsTheService(t *testing.T) {
	const unit = `[Unit]
Description=Telegraf
[Service]
Type=notify
NotifyAccess=all
ExecStart=/bin/true
KillMode=mixed
LimitMEMLOCK=8M:8M
PrivateMounts=true
`
	dir := unpacked(t)
	units := filepath.Join(dir, "usr/lib/systemd/system")
	path := filepath.Join(units, "telegraf.service")
	require.NoError(t, os.WriteFile(path, []byte(unit), 0o644))
	require.Empty(t, output(t, "systemd-analyze", "verify", "--man=no", path))

	// What it says about a mistake, to know that it looks.
	dropIn := filepath.Join(units, "telegraf.service.d/50-agp.conf")
	text, err := os.ReadFile(dropIn)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(dropIn, []byte(strings.ReplaceAll(string(text), "=infinity", "=much")), 0o644))
	require.Contains(t, output(t, "systemd-analyze", "verify", "--man=no", path), "50-agp.conf")
}
