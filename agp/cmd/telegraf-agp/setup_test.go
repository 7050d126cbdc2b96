package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// The commands reach the files, say what they do, and end with 1 where they do nothing.
func TestEnableAndDisableCommands(t *testing.T) {
	root := t.TempDir()
	put := func(name, text string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(root, name), []byte(text), 0o644))
	}
	section := filepath.Join(root, "etc/telegraf/telegraf.d/agp.conf")
	put("usr/share/telegraf-agp/telegraf.d/agp.conf", "[[inputs.execd]]\n  command = [\"/usr/lib/telegraf-agp/telegraf-agp\", \"run\"]\n")
	put("usr/share/telegraf-agp/agp.conf", "[[inputs.agp]]\n  files = [\"/var/lib/captures/*.pcap\"]\n")

	_, stderr, code := call(t, "enable", "--root", root)
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "install telegraf first")

	put("etc/telegraf/telegraf.conf", "[[outputs.discard]]\n")
	_, _, code = call(t, "setup", "configure", "--root", root)
	require.Zero(t, code)
	stdout, _, code := call(t, "enable", "--root", root, "--dry-run")
	require.Zero(t, code)
	require.Contains(t, stdout, "would write")
	require.NoFileExists(t, section)

	stdout, _, code = call(t, "enable", "--root", root)
	require.Zero(t, code)
	require.Equal(t, "write /etc/telegraf/telegraf.d/agp.conf\ntelegraf reads it when it starts: systemctl restart telegraf\n", stdout)
	require.FileExists(t, section)

	// Options that the plugin would not start with are said here, not only in telegraf's log.
	put("etc/telegraf-agp/agp.conf", "[[inputs.agp]]\n  sauce = \"pcap\"\n")
	stdout, _, code = call(t, "enable", "--root", root)
	require.Zero(t, code)
	require.Regexp(t, `missing +configuration .*sauce`, stdout)

	_, stderr, code = call(t, "disable", "--root", root)
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "would have no inputs")
	_, _, code = call(t, "disable", "--root", root, "--force")
	require.Zero(t, code)
	require.NoFileExists(t, section)
}
