// Package telegrafbin builds the stock telegraf of tests/telegraf once and keeps
// it in the user's cache directory. It may be called from several test processes
// at once and reads no clock.
package telegrafbin

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/agp-net/telegraf-agp/tests/e2e/cached"
)

// Version is the release of telegraf that tests/telegraf/go.mod requires.
const Version = "v1.37.2"

// Path returns the path of a telegraf binary, which it builds unless a build of
// the same version, plugins, toolchain and dependencies is cached. Environment
// variable AGP_TELEGRAF names a binary to use instead. Concurrent callers, also
// in other processes, wait for one build.
func Path(ctx context.Context, progress io.Writer) (string, error) {
	if path := os.Getenv("AGP_TELEGRAF"); path != "" {
		return path, nil
	}
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	module := filepath.Join(root, "tests", "telegraf")
	sums, err := os.ReadFile(filepath.Join(module, "go.sum"))
	if err != nil {
		return "", fmt.Errorf("telegraf's module: %w", err)
	}
	list, err := os.ReadFile(filepath.Join(module, "tags"))
	if err != nil {
		return "", fmt.Errorf("telegraf's build tags: %w", err)
	}
	tags := strings.TrimSpace(string(list))
	id := sha256.Sum256([]byte(strings.Join([]string{
		Version, tags, runtime.Version(), runtime.GOOS, runtime.GOARCH, string(sums),
	}, "\n")))
	return cached.Program("telegraf-"+Version+"-"+hex.EncodeToString(id[:6]), "telegraf", func(temporary string) error {
		fmt.Fprintf(progress, "Building telegraf %s once, for %s\n", Version, temporary)
		cmd := exec.CommandContext(ctx, "go", "build", "-C", module, "-mod=readonly", "-trimpath", "-tags", tags,
			"-ldflags", "-s -w -X github.com/influxdata/telegraf/internal.Version="+strings.TrimPrefix(Version, "v"), "-o", temporary, "github.com/influxdata/telegraf/cmd/telegraf")
		// The race detector and coverage of a calling test are not wanted here.
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
		cmd.Stdout, cmd.Stderr = progress, progress
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("building telegraf %s: %w", Version, err)
		}
		return nil
	})
}

// moduleRoot is the directory of the project's go.mod: the first one upwards
// from the working directory that has tests/telegraf.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "tests", "telegraf", "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("not below the project's directory, cannot find tests/telegraf")
		}
		dir = parent
	}
}
