// Package cached keeps programs that tests build once in the user's cache
// directory. It may be called from several test processes at once and reads no clock.
package cached

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Program returns the path of a program in a folder of the cache, whose name says
// everything that the program depends on. If it is not there, build makes it under the
// temporary path that it is given. Concurrent callers, also in other processes, wait
// for one build.
func Program(folder, name string, build func(temporary string) error) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "telegraf-agp", folder)
	path := filepath.Join(dir, name)
	if usable(path) {
		return path, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // the caller's own cache folder
		return "", err
	}
	unlock, err := lock(filepath.Join(dir, "lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	if usable(path) {
		return path, nil
	}
	temporary := path + ".new"
	if err := build(temporary); err != nil {
		return "", err
	}
	return path, os.Rename(temporary, path) //nolint:gosec // the caller's own cache folder
}

func usable(path string) bool {
	info, err := os.Stat(path) //nolint:gosec // the caller's own cache folder
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// lock waits for the exclusive lock of a file. The kernel releases it if the
// holder dies.
func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { _ = f.Close() }, nil
}
