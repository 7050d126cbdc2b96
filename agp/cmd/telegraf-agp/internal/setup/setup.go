// Package setup puts the plugin's section into telegraf's configuration and takes it
// out again, and keeps the package's own configuration up to date. It owns two files
// under /etc, each made from a template of the package: what it wrote it may replace
// and remove; what somebody has changed since it only moves aside. It is for one
// process at a time, starts no goroutine and reads no clock.
package setup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Where things are, below the root.
const (
	Config   = "/etc/telegraf-agp/agp.conf"         // of the plugin
	Section  = "/etc/telegraf/telegraf.d/agp.conf"  // by which telegraf starts it
	Disabled = Section + ".disabled"                // a section with changes that was taken out
	Program  = "/usr/lib/telegraf-agp/telegraf-agp" // what the section starts
	share    = "/usr/share/telegraf-agp"            // templates, under the names that follow
	record   = "/etc/telegraf-agp/.installed"       // see ledger
	telegraf = "/usr/bin/telegraf"                  // of the stock package
	mainFile = "/etc/telegraf/telegraf.conf"        // likewise
	environ  = "/etc/default/telegraf"              // likewise: variables of the service
	group    = "telegraf"                           // that telegraf runs in
)

var (
	configTemplate  = share + "/agp.conf"
	sectionTemplate = share + "/telegraf.d/agp.conf"
)

// Errors that a site is the reason for.
var (
	ErrNoTelegraf = errors.New("no telegraf here")
	ErrForeign    = errors.New("not ours to change")
	ErrBroken     = errors.New("telegraf's configuration does not load")
	ErrNeeded     = errors.New("telegraf would not start without this section")
	ErrReferenced = errors.New("telegraf would still start the plugin")
)

// Site is the machine, or a folder that looks like one.
type Site struct {
	Root   string // "/"
	Out    io.Writer
	DryRun bool // say what would be done
}

// Enable puts the section into telegraf's configuration, unless it is there.
func (s *Site) Enable(ctx context.Context) error {
	if _, err := os.Stat(s.path(filepath.Dir(mainFile))); err != nil {
		return fmt.Errorf("%w: %w; install telegraf first", ErrNoTelegraf, err)
	}
	want, err := os.ReadFile(s.path(sectionTemplate))
	if err != nil {
		return fmt.Errorf("the package's template: %w", err)
	}
	was, err := s.state(Section, want)
	if err != nil {
		return err
	}
	switch was {
	case current:
		s.say("%s is enabled already", Section)
		return s.remember(Section, want)
	case edited:
		if len(s.references(Section)) == 0 {
			return fmt.Errorf("%w: %s exists and does not start %s; move it away", ErrForeign, Section, Program)
		}
		s.say("%s is enabled already, with changes that were made here; the template is %s", Section, sectionTemplate)
		return nil
	case absent:
		if other := s.references(s.configs()...); len(other) > 0 {
			return fmt.Errorf("%w: %s starts the plugin already, a second section would count everything twice", ErrForeign, other[0])
		}
		if _, err := os.Lstat(s.path(Disabled)); err == nil {
			return s.apply(ctx, change{
				text: fmt.Sprintf("rename %s, which has changes that were made here, to %s", Disabled, Section),
				do:   func() error { return os.Rename(s.path(Disabled), s.path(Section)) },
				undo: func() error { return os.Rename(s.path(Section), s.path(Disabled)) },
			})
		}
	}
	return s.apply(ctx, s.write(Section, was, want, 0o644))
}

// Disable takes the section out. One that was changed is kept beside it, under a name
// that telegraf does not read. Without force nothing is done after which telegraf
// would not start.
func (s *Site) Disable(ctx context.Context, force bool) error {
	want, err := os.ReadFile(s.path(sectionTemplate))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	was, err := s.state(Section, want)
	if err != nil {
		return err
	}
	c := change{text: "remove " + Section}
	switch was {
	case absent:
		s.say("%s is not there: nothing to disable", Section)
		return nil
	case edited:
		if len(s.references(Section)) == 0 {
			s.say("%s does not start %s and stays", Section, Program)
			return nil
		}
		c.text = fmt.Sprintf("rename %s, which has changes that were made here, to %s", Section, Disabled)
		c.do = func() error {
			if err := s.moveAside(Disabled); err != nil {
				return err
			}
			return os.Rename(s.path(Section), s.path(Disabled))
		}
		c.undo = func() error { return os.Rename(s.path(Disabled), s.path(Section)) }
	default:
		old, err := os.ReadFile(s.path(Section))
		if err != nil {
			return err
		}
		c.do = func() error { return os.Remove(s.path(Section)) }
		c.undo = func() error { return s.replace(Section, old, 0o644) }
	}
	if force {
		return s.perform(c)
	}
	if kinds := s.missing(Section); len(kinds) > 0 && len(s.missing()) == 0 {
		return fmt.Errorf("%w: it would have no %s; add one to %s first, or use disable --force and stop telegraf",
			ErrNeeded, strings.Join(kinds, " and no "), mainFile)
	}
	if err := s.loads(ctx); err != nil { // without this section it is no worse
		s.say("%v", err)
		return s.perform(c)
	}
	return s.apply(ctx, c)
}

// Configure is what a package does after it has been installed or upgraded: files
// that are as an older version wrote them get this version's text. It asks nothing.
func (s *Site) Configure(ctx context.Context) error {
	want, err := os.ReadFile(s.path(configTemplate))
	if err != nil {
		return fmt.Errorf("the package's template: %w", err)
	}
	was, err := s.state(Config, want)
	if err != nil {
		return err
	}
	switch {
	case was == edited:
		s.say("%s has changes that were made here and stays; the new default is %s", Config, configTemplate)
	case was == absent && s.recorded(Config) != "":
		s.say("%s was removed here and stays so; the default is %s", Config, configTemplate)
	case was == absent || was == older:
		if err := s.perform(s.write(Config, was, want, 0o640)); err != nil {
			return err
		}
	default:
		if err := s.remember(Config, want); err != nil {
			return err
		}
	}
	if want, err = os.ReadFile(s.path(sectionTemplate)); err != nil {
		return fmt.Errorf("the package's template: %w", err)
	}
	if was, err = s.state(Section, want); err != nil || was != older {
		return err
	}
	return s.apply(ctx, s.write(Section, was, want, 0o644))
}

// Remove is what a package does before its files go: after it telegraf does not
// look for the program any more, or the package has to stay.
func (s *Site) Remove(ctx context.Context) error {
	var others []string
	for _, f := range s.configs() {
		if f != Section {
			others = append(others, f)
		}
	}
	if found := s.references(others...); len(found) > 0 {
		return fmt.Errorf("%w: %s; take that section out, then remove the package", ErrReferenced, strings.Join(found, ", "))
	}
	return s.Disable(ctx, false)
}

// change is a step that can be taken back.
type change struct {
	text     string // what is done, as an order
	show     []byte // text that is written, for a dry run
	do, undo func() error
}

// perform makes a change, or says that it would.
func (s *Site) perform(c change) error {
	if s.DryRun {
		s.say("would %s", c.text)
		if len(c.show) > 0 {
			s.say("%s", bytes.TrimSuffix(c.show, []byte("\n")))
		}
		return nil
	}
	s.say("%s", c.text)
	return c.do()
}

// apply makes a change to telegraf's configuration, which has to load before and after.
func (s *Site) apply(ctx context.Context, c change) error {
	if err := s.loads(ctx); err != nil {
		return fmt.Errorf("%w; nothing was changed", err)
	}
	if err := s.perform(c); err != nil || s.DryRun {
		return err
	}
	if err := s.loads(ctx); err != nil {
		if back := c.undo(); back != nil {
			return fmt.Errorf("%w; taking the change back failed as well: %w", err, back)
		}
		return fmt.Errorf("%w after this change, which was taken back", err)
	}
	return nil
}

// write is the change that gives a file of ours a new text. What it was is absent or older.
func (s *Site) write(name string, was state, text []byte, mode fs.FileMode) change {
	c := change{text: "write " + name, show: text}
	c.do = func() error {
		if err := s.replace(name, text, mode); err != nil {
			return err
		}
		return s.remember(name, text)
	}
	c.undo = func() error { return os.Remove(s.path(name)) }
	if was == older {
		old, err := os.ReadFile(s.path(name))
		c.do = func() error {
			return errors.Join(err, s.replace(name, text, mode), s.remember(name, text))
		}
		c.undo = func() error {
			return errors.Join(s.replace(name, old, mode), s.remember(name, old))
		}
	}
	return c
}

func (s *Site) path(name string) string { return filepath.Join(s.Root, name) }

func (s *Site) say(format string, args ...any) { fmt.Fprintf(s.Out, format+"\n", args...) }
