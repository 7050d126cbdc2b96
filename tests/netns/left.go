package netns

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Objects are the BPF objects of the whole machine.
type Objects struct {
	programs, maps, links map[string]bool // "id name"
	pinned                []string
}

// BPF lists the objects. Objects that go meanwhile are left out.
func BPF() (o Objects, err error) {
	for range 20 {
		// A link that is just going cannot be opened, which ends the list.
		if o, err = list(); !errors.Is(err, unix.EAGAIN) {
			break
		}
		time.Sleep(time.Millisecond)
	}
	return o, err
}

func list() (Objects, error) {
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
		if left = now.Since(before); len(left) > 0 {
			held := heldByOthers()
			left = slices.DeleteFunc(left, func(name string) bool {
				// Maps inside maps are held by no process.
				return held[handle(name)] || len(held) > 0 && strings.HasPrefix(name, "map ")
			})
		}
		if len(left) == 0 || time.Now().After(deadline) {
			return left, nil
		}
	}
}

// handle is the first two words of an object's name: its kind and number.
func handle(name string) string {
	f := strings.Fields(name)
	return strings.Join(f[:min(2, len(f))], " ")
}

// heldByOthers are the objects that processes hold which neither are of this test nor
// have lost their parent: another test that runs at the same time.
func heldByOthers() map[string]bool {
	held := map[string]bool{}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil || ours(pid) {
			continue
		}
		fds, _ := filepath.Glob(dir + "/fd/*")
		for _, fd := range fds {
			if to, err := os.Readlink(fd); err != nil || !strings.Contains(to, "bpf") {
				continue
			}
			text, err := os.ReadFile(filepath.Join(dir, "fdinfo", filepath.Base(fd)))
			if err != nil {
				continue
			}
			for line := range strings.Lines(string(text)) {
				for label, kind := range map[string]string{"prog_id:": "program", "map_id:": "map", "link_id:": "link"} {
					if id, ok := strings.CutPrefix(line, label); ok {
						held[kind+" "+strings.TrimSpace(id)] = true
					}
				}
			}
		}
	}
	return held
}

// ours says whether a process is this one, a descendant or an orphan.
func ours(pid int) bool {
	first := true
	for pid > 1 {
		if pid == os.Getpid() {
			return true
		}
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return false
		}
		_, rest, _ := strings.Cut(string(b), ") ")
		f := strings.Fields(rest)
		if len(f) < 2 {
			return false
		}
		if pid, err = strconv.Atoi(f[1]); err != nil {
			return false
		}
		if first && pid == 1 {
			return true
		}
		first = false
	}
	return false
}
