package oracle

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/tests/testcap"
)

// oracles returns the captures that have an nDPI report, as path -> report,
// and their paths in order. Of two equal names the one in the main folder stays.
func oracles(t *testing.T) (map[string]string, []string) {
	t.Helper()
	dir := testcap.Dir(t)
	reports := map[string]string{}
	var paths []string
	seen := map[string]bool{}
	for _, sub := range []string{"", "ndpi"} {
		files, err := filepath.Glob(filepath.Join(dir, sub, "*.ndpi.out"))
		require.NoError(t, err)
		for _, f := range files {
			capture := strings.TrimSuffix(f, ".ndpi.out")
			if _, err := os.Stat(capture); err != nil || seen[filepath.Base(capture)] {
				continue
			}
			seen[filepath.Base(capture)] = true
			reports[capture] = f
			paths = append(paths, capture)
		}
	}
	require.NotEmpty(t, paths)
	slices.Sort(paths)
	return reports, paths
}
