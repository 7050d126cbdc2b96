package testcap

import (
	"os"
	"path/filepath"
	"runtime"
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

// verdict records how a test ended.
type verdict struct {
	testing.TB
	failed, skipped bool
}

func (*verdict) Helper()                 {}
func (v *verdict) Fatalf(string, ...any) { v.failed = true; runtime.Goexit() }
func (v *verdict) Skipf(string, ...any)  { v.skipped = true; runtime.Goexit() }

func TestMissingProgramSkipsAndFailsWhereRequired(t *testing.T) {
	t.Setenv("AGP_PYTHON", "agp-there-is-no-such-program")
	for value, required := range map[string]bool{"": false, "0": false, "1": true} {
		t.Setenv(RequireEnv, value)
		for _, ask := range []func(testing.TB){
			func(t testing.TB) { Program(t, "agp-there-is-no-such-program") },
			func(t testing.TB) { Python(t, "json") },
		} {
			v, ended := verdict{TB: t}, make(chan struct{})
			go func() {
				defer close(ended)
				ask(&v)
			}()
			<-ended
			require.Equal(t, required, v.failed, "%s=%q", RequireEnv, value)
			require.Equal(t, !required, v.skipped, "%s=%q", RequireEnv, value)
		}
	}
	require.NotEmpty(t, Program(t, "go"))
}
