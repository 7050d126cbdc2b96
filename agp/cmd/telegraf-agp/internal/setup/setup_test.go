package setup

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	sectionText = "# ours\n[[inputs.execd]]\n  command = [\"" + Program + "\", \"run\"]\n"
	configText  = "[[inputs.agp]]\n"
	mainText    = "[[inputs.cpu]]\n[[outputs.file]]\n"
)

// fake is a root with telegraf, whose program accepts a configuration unless a file of
// it has the word "broken" or the variable that the service would have is not set.
type fake struct {
	*testing.T
	Site
	out *bytes.Buffer
}

func newFake(t *testing.T) *fake {
	out := &bytes.Buffer{}
	f := &fake{t, Site{Root: t.TempDir(), Out: out}, out}
	f.put(configTemplate, configText)
	f.put(sectionTemplate, sectionText)
	f.put(mainFile, mainText)
	f.put(environ, "# for the service\nTOKEN=\"secret\"\n")
	f.put(telegraf, `#!/bin/sh
[ "$1 $2 $3 $5" = "config check --config --config-directory" ] || { echo "odd arguments: $*"; exit 2; }
[ "$TOKEN" = secret ] || { echo "no token"; exit 1; }
! grep -q broken "$4" "$6"/*.conf 2>/dev/null || { echo "2026-01-01T00:00:00Z E! broken section"; exit 1; }
`)
	require.NoError(t, os.Chmod(f.path(telegraf), 0o755))
	require.NoError(t, os.MkdirAll(f.path(filepath.Dir(Section)), 0o755))
	return f
}

func (f *fake) put(name, text string) {
	f.Helper()
	require.NoError(f, os.MkdirAll(filepath.Dir(f.path(name)), 0o755))
	require.NoError(f, os.WriteFile(f.path(name), []byte(text), 0o644))
}

func (f *fake) has(name, text string) {
	f.Helper()
	have, err := os.ReadFile(f.path(name))
	require.NoError(f, err)
	require.Equal(f, text, string(have))
}

func (f *fake) hasNo(name string) {
	f.Helper()
	require.NoFileExists(f, f.path(name))
}

// files are all below etc, to see that nothing else was left there.
func (f *fake) files() (names []string) {
	require.NoError(f, filepath.WalkDir(f.path("/etc"), func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			name, _ := filepath.Rel(f.Root, path)
			names = append(names, "/"+name)
		}
		return err
	}))
	return names
}

func TestEnableAndDisableAreOppositesAndCanBeRepeated(t *testing.T) {
	f, ctx := newFake(t), context.Background()
	before := f.files()
	for range 2 {
		require.NoError(t, f.Enable(ctx))
		require.NoError(t, f.Enable(ctx))
		f.has(Section, sectionText)
		info, err := os.Stat(f.path(Section))
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o644), info.Mode())
		require.NoError(t, f.Disable(ctx, false))
		require.NoError(t, f.Disable(ctx, false))
		require.ElementsMatch(t, append([]string{record}, before...), f.files())
	}
	require.Contains(t, f.out.String(), "enabled already")
	require.Contains(t, f.out.String(), "nothing to disable")
}

func TestDryRunChangesNothing(t *testing.T) {
	f, ctx := newFake(t), context.Background()
	f.DryRun = true
	before := f.files()
	require.NoError(t, f.Enable(ctx))
	require.Equal(t, before, f.files())
	require.Equal(t, "would write "+Section+"\n"+sectionText, f.out.String())

	f.put(Section, sectionText+"# mine\n")
	before = f.files()
	f.put(Disabled, "older\n")
	require.NoError(t, f.Disable(ctx, false))
	require.ElementsMatch(t, append([]string{Disabled}, before...), f.files())
	require.Contains(t, f.out.String(), "would rename "+Section)
}

func TestSectionThatWasChangedIsKeptAndComesBack(t *testing.T) {
	f, ctx := newFake(t), context.Background()
	require.NoError(t, f.Enable(ctx))
	for i, text := range []string{sectionText + "# first\n", sectionText + "# second\n"} {
		f.put(Section, text)
		require.NoError(t, f.Enable(ctx))
		f.has(Section, text)
		require.NoError(t, f.Disable(ctx, false))
		f.hasNo(Section)
		f.has(Disabled, text)
		if i == 1 { // the one before was not written over
			f.has(Disabled+".1", sectionText+"# first\n")
			require.NoError(t, f.Enable(ctx))
			f.has(Section, text)
			f.hasNo(Disabled)
			break
		}
	}
}

func TestFileOfTheSameNameThatIsNotOursStays(t *testing.T) {
	f, ctx := newFake(t), context.Background()
	f.put(Section, "[[inputs.mem]]\n")
	err := f.Enable(ctx)
	require.ErrorIs(t, err, ErrForeign)
	require.ErrorContains(t, err, Section)
	require.NoError(t, f.Remove(ctx))
	f.has(Section, "[[inputs.mem]]\n")
}

func TestLinkIsNotWrittenThrough(t *testing.T) {
	f, ctx := newFake(t), context.Background()
	f.put("/srv/agp.conf", sectionText)
	require.NoError(t, os.Symlink(f.path("/srv/agp.conf"), f.path(Section)))
	f.put(sectionTemplate, sectionText+"# new\n")
	require.NoError(t, f.Enable(ctx))
	require.NoError(t, f.Configure(ctx))
	f.has("/srv/agp.conf", sectionText)
	require.NoError(t, f.Disable(ctx, false))
	f.has("/srv/agp.conf", sectionText)
}

func TestSecondSectionIsRefused(t *testing.T) {
	for name, line := range map[string]string{
		"path": `command = ["` + Program + `", "run"]`,
		"link": `command = ["/usr/bin/telegraf-agp", "run"]`,
		"name": `command = ["telegraf-agp", "run"]`,
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			f.put(mainFile, mainText+"# "+line+"\n[[inputs.execd]]\n  "+line+"\n")
			err := f.Enable(context.Background())
			require.ErrorIs(t, err, ErrForeign)
			require.ErrorContains(t, err, mainFile+":5 ")
			f.hasNo(Section)
		})
	}
}

func TestSectionThatDoesNotLoadIsTakenBack(t *testing.T) {
	f, ctx := newFake(t), context.Background()
	good := f.files()
	f.put(sectionTemplate, sectionText+"broken = true\n")
	err := f.Enable(ctx)
	require.ErrorIs(t, err, ErrBroken)
	require.ErrorContains(t, err, "broken section")
	require.ErrorContains(t, err, "taken back")
	require.ElementsMatch(t, append([]string{record}, good...), f.files())

	// An upgrade: the old text comes back, and is still known as ours.
	f.put(sectionTemplate, sectionText)
	require.NoError(t, f.Enable(ctx))
	f.put(sectionTemplate, sectionText+"broken = true\n")
	require.ErrorIs(t, f.Configure(ctx), ErrBroken)
	f.has(Section, sectionText)
	f.put(sectionTemplate, sectionText+"# new\n")
	require.NoError(t, f.Configure(ctx))
	f.has(Section, sectionText+"# new\n")

	// A changed one that is put back.
	f.put(Section, sectionText+"broken = true\n")
	require.NoError(t, os.Rename(f.path(Section), f.path(Disabled)))
	require.ErrorIs(t, f.Enable(ctx), ErrBroken)
	f.hasNo(Section)
	f.has(Disabled, sectionText+"broken = true\n")
}

func TestNothingIsEnabledWhereTelegrafIsBrokenAlready(t *testing.T) {
	f := newFake(t)
	f.put(mainFile, mainText+"broken = true\n")
	err := f.Enable(context.Background())
	require.ErrorIs(t, err, ErrBroken)
	require.ErrorContains(t, err, "nothing was changed")
	f.hasNo(Section)
}

// What is broken anyway must not keep the section, whose program is about to go.
func TestSectionCanBeTakenOutWhereTelegrafIsBrokenAlready(t *testing.T) {
	f, ctx := newFake(t), context.Background()
	require.NoError(t, f.Enable(ctx))
	f.put(mainFile, mainText+"broken = true\n")
	require.NoError(t, f.Remove(ctx))
	f.hasNo(Section)
	require.Contains(t, f.out.String(), "broken section")
}

func TestTheOnlyInputIsNotTakenOutUnlessForced(t *testing.T) {
	f, ctx := newFake(t), context.Background()
	f.put(mainFile, "# [[inputs.cpu]]\n[[outputs.file]]\n")
	require.NoError(t, f.Enable(ctx))
	err := f.Remove(ctx)
	require.ErrorIs(t, err, ErrNeeded)
	require.ErrorContains(t, err, "no inputs")
	f.has(Section, sectionText)
	require.NoError(t, f.Disable(ctx, true))
	f.hasNo(Section)
	require.NoError(t, f.Remove(ctx))
}

func TestPackageStaysWhileAnotherSectionStartsTheProgram(t *testing.T) {
	f, ctx := newFake(t), context.Background()
	require.NoError(t, f.Enable(ctx))
	f.put("/etc/telegraf/telegraf.d/own.conf", sectionText)
	err := f.Remove(ctx)
	require.ErrorIs(t, err, ErrReferenced)
	require.ErrorContains(t, err, "own.conf:3")
	f.has(Section, sectionText)
	// Under a name that telegraf does not read it does not matter.
	require.NoError(t, os.Rename(f.path("/etc/telegraf/telegraf.d/own.conf"), f.path("/etc/telegraf/telegraf.d/own.conf.off")))
	require.NoError(t, f.Remove(ctx))
	f.hasNo(Section)
}

func TestConfigurationIsRenewedOnlyWhereNobodyChangedIt(t *testing.T) {
	f, ctx := newFake(t), context.Background()
	require.NoError(t, f.Configure(ctx))
	f.has(Config, configText)
	info, err := os.Stat(f.path(Config))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o640), info.Mode())

	f.put(configTemplate, configText+"# 2\n")
	require.NoError(t, f.Configure(ctx))
	f.has(Config, configText+"# 2\n")

	f.put(Config, "[[inputs.agp]] # mine\n")
	f.put(configTemplate, configText+"# 3\n")
	require.NoError(t, f.Configure(ctx))
	f.has(Config, "[[inputs.agp]] # mine\n")

	require.NoError(t, os.Remove(f.path(Config)))
	require.NoError(t, f.Configure(ctx))
	f.hasNo(Config)
	f.hasNo(Section) // not enabled by an upgrade either
}

// Without the record, which somebody may have removed, nothing is taken for ours.
func TestWithoutTheRecordFilesCountAsChanged(t *testing.T) {
	f, ctx := newFake(t), context.Background()
	require.NoError(t, f.Configure(ctx))
	require.NoError(t, os.Remove(f.path(record)))
	f.put(configTemplate, configText+"# 2\n")
	require.NoError(t, f.Configure(ctx))
	f.has(Config, configText)
}

func TestWithoutTelegraf(t *testing.T) {
	f, ctx := newFake(t), context.Background()
	require.NoError(t, os.RemoveAll(f.path(filepath.Dir(mainFile))))
	require.NoError(t, os.Remove(f.path(telegraf)))
	require.ErrorIs(t, f.Enable(ctx), ErrNoTelegraf)
	require.NoError(t, f.Configure(ctx))
	require.NoError(t, f.Remove(ctx))
}
