package netns

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// Objects are the BPF objects of the whole machine.
type Objects struct {
	programs, maps, links map[string]bool // "id name"
	pinned                []string
}

// BPF lists the objects. Objects that go meanwhile are left out.
func BPF() (Objects, error) {
	o := Objects{programs: map[string]bool{}, maps: map[string]bool{}, links: map[string]bool{}}
	for id, err := ebpf.ProgramGetNextID(0); ; id, err = ebpf.ProgramGetNextID(id) {
		if errors.Is(err, os.ErrNotExist) {
			break
		}
		if err != nil {
			return o, err
		}
		p, err := ebpf.NewProgramFromID(id)
		if err != nil {
			continue
		}
		if info, err := p.Info(); err == nil {
			o.programs[fmt.Sprintf("program %d %s", id, info.Name)] = true
		}
		p.Close()
	}
	for id, err := ebpf.MapGetNextID(0); ; id, err = ebpf.MapGetNextID(id) {
		if errors.Is(err, os.ErrNotExist) {
			break
		}
		if err != nil {
			return o, err
		}
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			continue
		}
		if info, err := m.Info(); err == nil {
			o.maps[fmt.Sprintf("map %d %s", id, info.Name)] = true
		}
		m.Close()
	}
	it := new(link.Iterator)
	defer it.Close()
	for it.Next() {
		info, err := it.Link.Info()
		if err == nil {
			o.links[fmt.Sprintf("link %d of program %d", info.ID, info.Program)] = true
		}
	}
	if err := it.Err(); err != nil {
		return o, err
	}
	_ = filepath.WalkDir("/sys/fs/bpf", func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			o.pinned = append(o.pinned, path)
		}
		return nil
	})
	return o, nil
}

// Since names the objects that are here and were not in an earlier list.
func (o Objects) Since(before Objects) []string {
	var list []string
	for _, pair := range [][2]map[string]bool{{o.programs, before.programs}, {o.maps, before.maps}, {o.links, before.links}} {
		for name := range pair[0] {
			if !pair[1][name] {
				list = append(list, name)
			}
		}
	}
	for _, path := range o.pinned {
		if !slices.Contains(before.pinned, path) {
			list = append(list, path)
		}
	}
	slices.Sort(list)
	return list
}

// NothingLeft checks, when the test ends, that no BPF object has been left. Call
// it before what makes them is set up.
func NothingLeft(t testing.TB) {
	t.Helper()
	before, err := BPF()
	if err != nil {
		t.Fatalf("BPF objects: %v", err)
	}
	t.Cleanup(func() {
		left, err := Gone(before, 10*time.Second)
		if err != nil {
			t.Errorf("BPF objects: %v", err)
		}
		if len(left) > 0 {
			t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
		}
	})
}

// Gone waits until there is no object that was not there before, and returns those
// that remain after the time.
func Gone(before Objects, within time.Duration) (left []string, err error) {
	for deadline := time.Now().Add(within); ; time.Sleep(5 * time.Millisecond) {
		now, err := BPF()
		if err != nil {
			return nil, err
		}
		if left = now.Since(before); len(left) == 0 || time.Now().After(deadline) {
			return left, nil
		}
	}
}
