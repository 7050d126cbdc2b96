package model

import (
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/stretchr/testify/require"
)

func version(v string) []byte {
	return classifier(HeadSet, []float32{0, 1, 2}, map[string]string{"agp.version": v, "agp.threshold": "0"}).encode()
}

func appVersion(v string) []byte {
	return classifier(HeadSet, []float32{0, 1, 2}, map[string]string{"agp.version": v, "agp.name": "other", "agp.field": "app"}).encode()
}

// replace writes a file the safe way: beside it, then renamed.
func replace(t *testing.T, path string, b []byte) {
	tmp := path + ".tmp"
	require.NoError(t, os.WriteFile(tmp, b, 0o600))
	require.NoError(t, os.Rename(tmp, path))
}

type refusals struct {
	mu   sync.Mutex
	list []error
}

func (r *refusals) add(_ string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, err)
}

func (r *refusals) all() []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]error{}, r.list...)
}

func ids(s *Set) (list []string) {
	for _, m := range s.Models() {
		list = append(list, m.ID())
	}
	return list
}

func registry(t *testing.T, opt Options, paths ...string) *Registry {
	opt.Settle = 5 * time.Millisecond
	if opt.Patience == 0 {
		opt.Patience = 50 * time.Millisecond
	}
	r, err := NewRegistry(paths, opt)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

func eventually(t *testing.T, f func() bool, what string) {
	t.Helper()
	require.Eventually(t, f, 20*time.Second, time.Millisecond, what)
}

func is(r *Registry, want string) func() bool {
	return func() bool { l := ids(r.Set()); return len(l) > 0 && l[0] == want }
}

func TestChangedFileIsSwappedWithoutAGap(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.onnx")
	replace(t, path, version("1"))
	var swaps atomic.Int32
	r := registry(t, Options{OnSwap: func(*Set) { swaps.Add(1) }}, path)
	require.Equal(t, []string{"test@1"}, ids(r.Set()))
	require.Zero(t, swaps.Load(), "the first set is not a swap")

	// Workers score all the time; each answer must come from the set that the worker holds.
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var scored atomic.Int64
	problems := make(chan string, 4)
	flows := randomFlows(8)
	for range 4 {
		wg.Go(func() {
			s := NewScorer()
			for {
				select {
				case <-stop:
					return
				default:
				}
				if set := r.Set(); set != s.Set() {
					s.Use(set)
				}
				for i := range flows {
					s.Add(1, flows[i].features())
				}
				s.Run()
				for i := range flows {
					outs := s.Outputs(i)
					if len(outs) != 1 || outs[0].Model != s.Set().Models()[0].ID() || outs[0].Label == Unknown {
						select {
						case problems <- "flow without an answer of the model in force":
						default:
						}
						return
					}
				}
				s.Reset()
				scored.Add(1)
			}
		})
	}
	for i := range 20 {
		v := string(rune('a' + i))
		replace(t, path, version(v))
		eventually(t, is(r, "test@"+v), "version "+v)
		before := scored.Load()
		eventually(t, func() bool { return scored.Load() > before+4 || len(problems) > 0 }, "scoring goes on")
	}
	close(stop)
	wg.Wait()
	require.Empty(t, problems)
	require.EqualValues(t, 20, swaps.Load())
}

func TestRefusedFileLeavesTheOldModelRunning(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.onnx")
	replace(t, path, version("1"))
	var bad refusals
	r := registry(t, Options{OnRefused: bad.add}, path)
	old := r.Set()

	replace(t, path, []byte("this is not a model"))
	eventually(t, func() bool { return len(bad.all()) == 1 }, "refusal is reported")
	require.ErrorIs(t, bad.all()[0], ErrFormat)
	require.Contains(t, bad.all()[0].Error(), path)
	require.Same(t, old, r.Set())

	// The same content is reported once, however often the folder changes.
	replace(t, filepath.Join(filepath.Dir(path), "unrelated"), nil)
	nan := classifier(HeadSet, []float32{0, 1, 2}, map[string]string{"agp.version": "2", "agp.threshold": "7"}).encode()
	replace(t, path, nan)
	eventually(t, func() bool { return len(bad.all()) == 2 }, "the next refusal is reported")
	require.ErrorIs(t, bad.all()[1], ErrMetadata)
	require.Same(t, old, r.Set())

	replace(t, path, version("3"))
	eventually(t, is(r, "test@3"), "repaired file is taken")
	require.Len(t, bad.all(), 2)
}

func TestRemovedFileLeavesTheModelRunning(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.onnx")
	replace(t, path, version("1"))
	var bad refusals
	r := registry(t, Options{OnRefused: bad.add}, path)
	require.NoError(t, os.Remove(path))
	eventually(t, func() bool { return len(bad.all()) == 1 }, "absence is reported")
	require.ErrorIs(t, bad.all()[0], os.ErrNotExist)
	require.Equal(t, []string{"test@1"}, ids(r.Set()))
	replace(t, path, version("2"))
	eventually(t, is(r, "test@2"), "new file is taken")
}

// A file that is written in place, slowly: looked at while it is half there, not reported, taken when whole.
func TestHalfWrittenFileIsWaitedFor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.onnx")
	replace(t, path, version("1"))
	var bad refusals
	r := registry(t, Options{OnRefused: bad.add, Patience: time.Hour}, path)
	b := version("2")
	f, err := os.Create(path)
	require.NoError(t, err)
	defer f.Close()
	for at := 0; at < len(b); {
		n := min(len(b)/3+1, len(b)-at)
		_, err := f.Write(b[at : at+n])
		require.NoError(t, err)
		at += n
		seen := xxhash.Sum64(b[:at])
		eventually(t, func() bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.files[0].seen == seen
		}, "registry has looked at the part")
		if at < len(b) {
			require.Equal(t, []string{"test@1"}, ids(r.Set()))
		}
	}
	eventually(t, is(r, "test@2"), "whole file is taken")
	require.Empty(t, bad.all())
}

func TestRegistryStartsWithTheGoodFiles(t *testing.T) {
	dir := t.TempDir()
	good, broken, absent := filepath.Join(dir, "good"), filepath.Join(dir, "broken"), filepath.Join(dir, "absent")
	replace(t, good, version("1"))
	replace(t, broken, nil)
	var bad refusals
	r, err := NewRegistry([]string{good, broken, absent}, Options{Settle: time.Millisecond, Patience: time.Millisecond, OnRefused: bad.add})
	require.ErrorIs(t, err, ErrFormat)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NotNil(t, r)
	defer r.Close()
	require.Len(t, bad.all(), 2)
	require.Equal(t, []string{"test@1"}, ids(r.Set()))
	replace(t, broken, appVersion("1"))
	eventually(t, func() bool { return len(ids(r.Set())) == 2 }, "repaired file joins")
	require.Equal(t, []string{"test@1", "other@1"}, ids(r.Set()), "in the order of the list")
}

func TestModelsThatFillTheSameFieldAreRefusedTogether(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	replace(t, a, version("1"))
	replace(t, b, appVersion("1"))
	var bad refusals
	r := registry(t, Options{OnRefused: bad.add}, a, b)
	replace(t, b, version("2"))
	eventually(t, func() bool { return len(bad.all()) == 1 }, "refusal is reported")
	require.ErrorIs(t, bad.all()[0], ErrDuplicate)
	require.Equal(t, []string{"test@1", "other@1"}, ids(r.Set()))
}

func TestReloadReportsAndSwapsAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.onnx")
	replace(t, path, version("1"))
	r, err := NewRegistry([]string{path}, Options{Settle: time.Hour}) // the watcher will not be first
	require.NoError(t, err)
	defer r.Close()
	old := r.Set()
	require.NoError(t, r.Reload())
	require.Same(t, old, r.Set(), "nothing changed")
	replace(t, path, version("2"))
	require.NoError(t, r.Reload())
	require.Equal(t, []string{"test@2"}, ids(r.Set()))
	replace(t, path, []byte{1})
	for range 2 { // an explicit reload says it every time
		require.ErrorIs(t, r.Reload(), ErrFormat)
	}
	require.Equal(t, []string{"test@2"}, ids(r.Set()))
}

// A model file may be a symbolic link that is switched, as configuration managers do.
func TestSwitchedSymlinkIsFollowed(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "v1"), 0o700))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "v2"), 0o700))
	replace(t, filepath.Join(dir, "v1", "m"), version("1"))
	replace(t, filepath.Join(dir, "v2", "m"), version("2"))
	link := filepath.Join(dir, "m.onnx")
	require.NoError(t, os.Symlink("v1/m", link))
	r := registry(t, Options{}, link)
	require.NoError(t, os.Symlink("v2/m", link+".new"))
	require.NoError(t, os.Rename(link+".new", link))
	eventually(t, is(r, "test@2"), "link is followed")
}

func TestRegistryLifecycle(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.onnx")
	replace(t, path, version("1"))
	for range 2 {
		r, err := NewRegistry([]string{path}, Options{})
		require.NoError(t, err)
		require.NoError(t, r.Close())
		require.NoError(t, r.Close())
		require.Equal(t, []string{"test@1"}, ids(r.Set()), "readable after Close")
	}
	r, err := NewRegistry(nil, Options{})
	require.NoError(t, err)
	require.Empty(t, r.Set().Models())
	require.NoError(t, r.Close())

	r, err = NewRegistry([]string{filepath.Join(t.TempDir(), "no", "such", "folder")}, Options{})
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, r.Close())
}
