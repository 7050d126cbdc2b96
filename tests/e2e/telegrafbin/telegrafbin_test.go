package telegrafbin

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestVersionIsThatOfTheModule(t *testing.T) {
	root, err := moduleRoot()
	require.NoError(t, err)
	mod, err := os.ReadFile(filepath.Join(root, "tests", "telegraf", "go.mod"))
	require.NoError(t, err)
	require.Contains(t, string(mod), "require github.com/influxdata/telegraf "+Version+"\n")
	ours, err := os.ReadFile(filepath.Join(root, "go.mod"))
	require.NoError(t, err)
	require.Contains(t, string(ours), "github.com/influxdata/telegraf "+Version+"\n")
}

// Callers that come together get one binary from one build.
func TestPathBuildsOnce(t *testing.T) {
	t.Setenv("AGP_TELEGRAF", "")
	// The compiler's cache stays where it is, else everything is compiled anew.
	cache, err := exec.Command("go", "env", "GOCACHE").Output()
	require.NoError(t, err)
	t.Setenv("GOCACHE", strings.TrimSpace(string(cache)))
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	var callers sync.WaitGroup
	paths, progress := make([]string, 4), make([]bytes.Buffer, 4)
	for i := range paths {
		callers.Go(func() {
			path, err := Path(t.Context(), &progress[i])
			if err == nil {
				paths[i] = path
			} else {
				progress[i].WriteString(err.Error())
			}
		})
	}
	callers.Wait()
	builds := 0
	for i := range paths {
		require.Equal(t, paths[0], paths[i], progress[i].String())
		builds += strings.Count(progress[i].String(), "Building telegraf")
	}
	require.Equal(t, 1, builds)
	version, err := exec.Command(paths[0], "version").Output()
	require.NoError(t, err)
	require.Equal(t, "Telegraf "+strings.TrimPrefix(Version, "v")+"\n", string(version))
}

func TestPathCanBeGiven(t *testing.T) {
	t.Setenv("AGP_TELEGRAF", "/opt/telegraf")
	path, err := Path(t.Context(), os.Stderr)
	require.NoError(t, err)
	require.Equal(t, "/opt/telegraf", path)
}
