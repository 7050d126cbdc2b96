package setup

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
)

// state is what became of a file since it was written.
type state int

const (
	absent  state = iota
	current       // the template's text
	older         // the text of an earlier template, unchanged
	edited        // anything else
)

// state compares a file with its template and with what was written last.
func (s *Site) state(name string, want []byte) (state, error) {
	info, err := os.Lstat(s.path(name))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return absent, nil
	case err != nil:
		return absent, err
	case !info.Mode().IsRegular(): // a link was made by somebody else
		return edited, nil
	}
	have, err := os.ReadFile(s.path(name))
	switch {
	case err != nil:
		return absent, err
	case bytes.Equal(have, want):
		return current, nil
	case s.recorded(name) == sum(have):
		return older, nil
	}
	return edited, nil
}

func sum(text []byte) string {
	h := sha256.Sum256(text)
	return hex.EncodeToString(h[:])
}

// ledger has the sums of what was written, by name; the file is one for sha256sum -c.
func (s *Site) ledger() map[string]string {
	sums := map[string]string{}
	text, err := os.ReadFile(s.path(record))
	if err != nil {
		return sums // files are taken for edited then
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 2 {
			sums[f[1]] = f[0]
		}
	}
	return sums
}

func (s *Site) recorded(name string) string { return s.ledger()[name] }

// remember notes what was written.
func (s *Site) remember(name string, text []byte) error {
	sums := s.ledger()
	if s.DryRun || sums[name] == sum(text) {
		return nil
	}
	sums[name] = sum(text)
	var out bytes.Buffer
	for _, n := range []string{Section, Config} {
		if sums[n] != "" {
			fmt.Fprintf(&out, "%s  %s\n", sums[n], n)
		}
	}
	return s.replace(record, out.Bytes(), 0o644)
}

// replace gives a file a new text; whoever reads it sees the old or the new one, also
// after a power cut. The new name does not end in .conf before it is complete.
func (s *Site) replace(name string, text []byte, mode fs.FileMode) (err error) {
	path := s.path(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".new")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(text)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil && mode&0o007 == 0 {
		err = s.giveGroup(f)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil //nolint:nilerr // the file is there; only a power cut in the next seconds could undo it
	}
	defer dir.Close()
	_ = dir.Sync()
	return nil
}

// giveGroup lets telegraf read a file that not everybody may read. In a folder of a
// test there are no groups.
func (s *Site) giveGroup(f *os.File) error {
	if s.Root != "/" {
		return nil
	}
	g, err := user.LookupGroup(group)
	if err != nil {
		return err
	}
	gid, err := strconv.Atoi(g.Gid)
	if err != nil {
		return err
	}
	return f.Chown(-1, gid)
}

// moveAside makes room for a file by giving the one that has its name the next free
// number, so that no version of an administrator's is lost.
func (s *Site) moveAside(name string) error {
	if _, err := os.Lstat(s.path(name)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for i := 1; ; i++ {
		to := fmt.Sprintf("%s.%d", name, i)
		if _, err := os.Lstat(s.path(to)); errors.Is(err, fs.ErrNotExist) {
			s.say("rename %s to %s", name, to)
			return os.Rename(s.path(name), s.path(to))
		} else if err != nil {
			return err
		}
	}
}
