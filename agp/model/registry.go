package model

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/fsnotify/fsnotify"
)

// Options of a Registry. The zero value is usable. The callbacks must not call
// the registry's Reload or Close.
type Options struct {
	// Settle is how long a file must have been left alone before a change of it is
	// read. Default 250 ms.
	Settle time.Duration
	// Patience is how long a changed file that cannot be read as a model is taken for a
	// half-written one; after that it is reported. Default 2 s.
	Patience time.Duration
	// OnRefused is told of a file that was refused; the model loaded from it before, if
	// any, stays. Called from the goroutine that loads: the one of NewRegistry, of
	// Reload, or the registry's own.
	OnRefused func(path string, err error)
	// OnSwap is told of each set that is published after the first one, from the
	// registry's goroutine or from Reload's.
	OnSwap func(*Set)
}

// Registry keeps the models of a list of files and follows changes of the files. It
// publishes an immutable Set; readers never wait.
type Registry struct {
	opt     Options
	current atomic.Pointer[Set]
	watcher *fsnotify.Watcher
	stop    chan struct{}
	done    chan struct{}
	once    sync.Once

	mu    sync.Mutex // serialises loading; never held by readers
	files []file
}

type file struct {
	path   string
	model  *Model // last good one
	seen   uint64 // hash of the content that was last looked at, good or not
	looked bool
	failed time.Time // when the present content was first refused, zero if it was not
}

// NewRegistry loads the files and starts to watch them. The error names every file
// that was refused; the registry is usable all the same, with the files that were good,
// and picks up the others once they are repaired. Only when the files cannot be watched
// at all it is nil.
func NewRegistry(paths []string, opt Options) (*Registry, error) {
	if opt.Settle <= 0 {
		opt.Settle = 250 * time.Millisecond
	}
	if opt.Patience <= 0 {
		opt.Patience = 2 * time.Second
	}
	r := &Registry{opt: opt, stop: make(chan struct{}), done: make(chan struct{})}
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watching model files: %w", err)
	}
	r.watcher = w
	var errs []error
	// Folders are watched, not files: a file that is replaced by rename is another file.
	for _, p := range paths {
		dir := filepath.Dir(p)
		if err := w.Add(dir); err != nil {
			errs = append(errs, fmt.Errorf("watching %s: %w", dir, err))
		}
		r.files = append(r.files, file{path: p})
	}
	_, bad := r.load(0)
	errs = append(errs, bad)
	go r.watch()
	return r, errors.Join(errs...)
}

// Set returns the models in force, never nil.
func (r *Registry) Set() *Set { return r.current.Load() }

// Reload reads all files now, changed or not, and reports those that it refuses.
func (r *Registry) Reload() error {
	r.mu.Lock()
	for i := range r.files {
		r.files[i].looked = false
		_ = r.watcher.Add(filepath.Dir(r.files[i].path)) // a folder that was made anew; load reports what is missing
	}
	r.mu.Unlock()
	_, err := r.load(0)
	return err
}

// Close stops watching. The set stays readable. It may be called again.
func (r *Registry) Close() error {
	r.once.Do(func() { close(r.stop) })
	<-r.done
	return nil
}

func (r *Registry) watch() {
	defer close(r.done)
	defer r.watcher.Close()
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	for {
		select {
		case <-r.stop:
			return
		case _, ok := <-r.watcher.Events:
			if !ok {
				return
			}
			// Whatever happens in the folder may concern us (a symlink further up, for one);
			// contents are compared before anything is done.
			timer.Reset(r.opt.Settle)
		case err, ok := <-r.watcher.Errors:
			if !ok {
				return
			}
			// Most likely the queue of events ran over: look again.
			_ = err
			timer.Reset(r.opt.Settle)
		case <-timer.C:
			if again, _ := r.load(r.opt.Patience); again {
				timer.Reset(r.opt.Settle)
			}
		}
	}
}

// load looks at all files and publishes a new set if a model changed. A refused
// file is reported when its content has been the same for the given patience;
// again says that there is such a file to come back to.
func (r *Registry) load(patience time.Duration) (again bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	changed := false
	var errs []error
	refuse := func(f *file, err error) {
		errs = append(errs, err)
		f.failed = time.Time{}
		if r.opt.OnRefused != nil {
			r.opt.OnRefused(f.path, err)
		}
	}
	models := make([]*Model, len(r.files))
	for i := range r.files {
		f := &r.files[i]
		models[i] = f.model
		var hash uint64
		b, err := readFile(f.path)
		if err == nil {
			hash = xxhash.Sum64(b)
		}
		same := f.looked && f.seen == hash
		if same && f.failed.IsZero() {
			continue // as it was, good or reported
		}
		if !same {
			f.failed = now
		}
		f.looked, f.seen = true, hash
		var m *Model
		switch {
		case err != nil:
		case f.model != nil && f.model.hash == hash:
			f.failed = time.Time{}
			continue
		default:
			if m, err = LoadBytes(b); err != nil {
				err = fmt.Errorf("%s: %w", f.path, err)
			}
		}
		if err != nil {
			if now.Sub(f.failed) < patience {
				again = true
				continue
			}
			refuse(f, err)
			continue
		}
		// The set as a whole must hold, too.
		trial := slices.Clone(models)
		trial[i] = m
		for j := i + 1; j < len(r.files); j++ {
			trial[j] = r.files[j].model
		}
		if _, err := NewSet(compact(trial)...); err != nil {
			refuse(f, fmt.Errorf("%s: %w", f.path, err))
			continue
		}
		models[i], f.model, f.failed = m, m, time.Time{}
		changed = true
	}
	first := r.current.Load() == nil
	if changed || first {
		set, err := NewSet(compact(models)...)
		if err != nil {
			return again, errors.Join(append(errs, err)...)
		}
		r.current.Store(set)
		if !first && r.opt.OnSwap != nil {
			r.opt.OnSwap(set)
		}
	}
	return again, errors.Join(errs...)
}

func compact(list []*Model) []*Model {
	return slices.DeleteFunc(slices.Clone(list), func(m *Model) bool { return m == nil })
}
