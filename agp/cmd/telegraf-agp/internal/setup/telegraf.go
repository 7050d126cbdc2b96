package setup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// checkLimit is how long telegraf may take to look at its configuration.
const checkLimit = time.Minute

// configs are the files that the service reads, as names below the root.
func (s *Site) configs() []string {
	names := []string{mainFile}
	found, _ := filepath.Glob(s.path(filepath.Join(filepath.Dir(Section), "*.conf"))) // the pattern is a good one
	for _, f := range found {
		names = append(names, filepath.Join(filepath.Dir(Section), filepath.Base(f)))
	}
	return names
}

// lines calls with the lines of a file that are no comments, and their numbers.
func (s *Site) lines(name string, f func(number int, line string)) {
	text, err := os.ReadFile(s.path(name))
	if err != nil {
		return // telegraf cannot read it either, and says so
	}
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			f(number, line)
		}
	}
}

// references are the lines, as file:number, that name the program: by the path that the
// section has, or by the link in /usr/bin.
func (s *Site) references(names ...string) (found []string) {
	for _, name := range names {
		s.lines(name, func(number int, line string) {
			if strings.Contains(line, Program) || strings.Contains(line, `["telegraf-agp"`) || strings.Contains(line, "/usr/bin/telegraf-agp") {
				found = append(found, fmt.Sprintf("%s:%d", name, number))
			}
		})
	}
	return found
}

// missing are the kinds of plugins of which telegraf needs one to start, and has none
// in its configuration without the files that are left out.
func (s *Site) missing(without ...string) (kinds []string) {
	have := map[string]bool{}
	for _, name := range s.configs() {
		if slices.Contains(without, name) {
			continue
		}
		s.lines(name, func(_ int, line string) {
			kind, _, _ := strings.Cut(strings.TrimLeft(line, "[ "), ".")
			if line[0] == '[' {
				have[kind] = true
			}
		})
	}
	for _, kind := range []string{"inputs", "outputs"} {
		if !have[kind] {
			kinds = append(kinds, kind)
		}
	}
	return kinds
}

// loads asks telegraf whether its configuration loads, with the variables that the
// service has. Where there is no telegraf there is nothing to break.
func (s *Site) loads(ctx context.Context) error {
	program := s.path(telegraf)
	if _, err := os.Stat(program); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	args := []string{"config", "check"}
	if _, err := os.Stat(s.path(mainFile)); err == nil {
		args = append(args, "--config", s.path(mainFile))
	}
	if dir := s.path(filepath.Dir(Section)); isDir(dir) {
		args = append(args, "--config-directory", dir)
	}
	if len(args) == 2 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = os.Environ()
	s.lines(environ, func(_ int, line string) {
		if name, value, ok := strings.Cut(line, "="); ok {
			cmd.Env = append(cmd.Env, name+"="+strings.Trim(value, `"'`))
		}
	})
	out, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	// What telegraf says about errors, or all that it says.
	var why []string
	for line := range strings.Lines(string(out)) {
		if _, text, ok := strings.Cut(line, " E! "); ok {
			why = append(why, strings.TrimSpace(text))
		}
	}
	if len(why) == 0 {
		why = []string{strings.TrimSpace(string(out))}
	}
	return fmt.Errorf("%w (%w): %s", ErrBroken, err, strings.Join(why, "; "))
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
