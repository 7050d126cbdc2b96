package testcap

import (
	"os"
	"path/filepath"
	"sort"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAllIsSortedAndCoversBothFolders(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(Env, dir)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "ndpi"), 0o755))
	for _, name := range []string{"b.pcap", "a.pcapng", "a.pcapng.ndpi.out", "MANIFEST.tsv", "ndpi/c.pcap", "ndpi/b.pcap.ndpi.out"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o644))
	}
	all := All(t)
	require.Len(t, all, 3)
	require.True(t, sort.StringsAreSorted(all))
	require.Equal(t, filepath.Join(dir, "a.pcapng.ndpi.out"), Oracle(filepath.Join(dir, "a.pcapng")))
	require.Equal(t, filepath.Join(dir, "ndpi", "b.pcap.ndpi.out"), Oracle(filepath.Join(dir, "b.pcap")))
	require.Empty(t, Oracle(filepath.Join(dir, "ndpi", "c.pcap")))
}
