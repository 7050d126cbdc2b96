package rig

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
)

// Built builds main packages of this project, each once.
type Built struct {
	mu    sync.Mutex
	dir   string
	paths map[string]string
}

// Path returns the program of a main package.
func (b *Built) Path(name, pkg string) (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if path, ok := b.paths[name]; ok {
		return path, nil
	}
	if b.dir == "" {
		dir, err := os.MkdirTemp("", "agp-live-")
		if err != nil {
			return "", err
		}
		if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // another user runs it too
			return "", err
		}
		b.dir, b.paths = dir, map[string]string{}
	}
	path := filepath.Join(b.dir, name)
	cmd := exec.Command("go", "build", "-trimpath", "-o", path, "github.com/agp-net/telegraf-agp/"+pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building %s: %w: %s", pkg, err, out)
	}
	b.paths[name] = path
	return path, nil
}

// Remove removes what was built.
func (b *Built) Remove() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.dir != "" {
		_ = os.RemoveAll(b.dir)
		b.dir, b.paths = "", nil
	}
}
