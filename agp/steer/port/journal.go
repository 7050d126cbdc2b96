package port

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
)

const (
	journalVersion = 1
	journalSuffix  = ".journal"
	newSuffix      = ".new"   // of a journal while it is written
	maxJournal     = 16 << 20 // bytes
)

// journal is what undoes the changes of one port. The file is one line that says
// version, length and CRC-32C of the rest, then JSON.
type journal struct {
	Boot    string `json:"boot"`
	Netns   uint64 `json:"netns"`
	Link    link   `json:"link"`
	LockDir string `json:"lock_dir"`
	// Before is the state before the first change.
	Before state `json:"before"`
	// Ours are, for each property, the values that we wrote or that our changes led to.
	Ours map[property][]value `json:"ours"`
	// Pending is the change that was under way, "" if none was.
	Pending property `json:"pending,omitempty"`
	// Moved says that the interface went to another network namespace, from where even
	// a virtual one can come back.
	Moved bool `json:"moved,omitempty"`

	rebooted bool // since it was written
}

// ours says whether v is there because of us.
func (j *journal) ours(p property, v value) bool {
	return slices.Contains(j.Ours[p], v)
}

// add notes that p may have the value v because of us.
func (j *journal) add(p property, v value) {
	if !j.ours(p, v) {
		j.Ours[p] = append(j.Ours[p], v)
	}
}

// touch notes that p is about to be changed, or has been, from the value was. The
// value before the first change counts, or a later one that somebody else has set.
func (j *journal) touch(p property, was value) {
	if _, known := j.Ours[p]; !known || !j.ours(p, was) {
		j.Before[p] = was
	}
}

func encodeJournal(j *journal) ([]byte, error) {
	body, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	body = append(body, '\n')
	head := fmt.Sprintf("agp-port-journal %d %d %08x\n", journalVersion, len(body), checksum(body))
	return append([]byte(head), body...), nil
}

func checksum(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

// decodeJournal accepts only what encodeJournal wrote, whole.
func decodeJournal(b []byte) (*journal, error) {
	head, body, ok := bytes.Cut(b, []byte{'\n'})
	if !ok {
		return nil, errors.New("it is cut off in its first line")
	}
	var version, length int
	var sum uint32
	if n, err := fmt.Sscanf(string(head), "agp-port-journal %d %d %x", &version, &length, &sum); n != 3 || err != nil {
		return nil, errors.New("its first line is not that of a journal")
	}
	switch {
	case version != journalVersion:
		return nil, fmt.Errorf("it is of version %d, this program writes %d", version, journalVersion)
	case length != len(body):
		return nil, fmt.Errorf("it has %d bytes instead of %d", len(body), length)
	case sum != checksum(body):
		return nil, errors.New("its checksum is wrong")
	}
	j := &journal{}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(j); err != nil {
		return nil, err
	}
	if j.Boot == "" || j.Link.Index <= 0 || j.Before == nil || j.Ours == nil {
		return nil, errors.New("it says nothing of its port")
	}
	for p, v := range j.Before {
		if err := p.check(v); err != nil {
			return nil, err
		}
	}
	for p, vs := range j.Ours {
		for _, v := range vs {
			if err := p.check(v); err != nil {
				return nil, err
			}
		}
	}
	return j, nil
}

// store is the directory of the journals. step, if set, is called after each step on
// the disk with its name; tests end the world there.
type store struct {
	dir  string
	step func(string)
}

// free returns the path of the journal of a port. Another interface may have had the
// same name and index before a power cut; its journal is not overwritten.
func (s store) free(netns uint64, l link) (string, error) {
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return "", fmt.Errorf("%s: journal: %w", l.Name, err)
	}
	name := fmt.Sprintf("%d-%d-%s", netns, l.Index, l.Name)
	path := filepath.Join(s.dir, name+journalSuffix)
	for i := 2; ; i++ {
		if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
			_ = os.Remove(path + newSuffix) // of a write that a power cut has ended
			return path, nil
		} else if err != nil {
			return "", fmt.Errorf("%s: journal: %w", l.Name, err)
		}
		path = filepath.Join(s.dir, fmt.Sprintf("%s-%d%s", name, i, journalSuffix))
	}
}

func (s store) at(name string) {
	if s.step != nil {
		s.step(name)
	}
}

// write replaces the journal. When it returns nil, the disk has it.
func (s store) write(path string, j *journal) error {
	b, err := encodeJournal(j)
	if err == nil {
		err = s.replace(path, b)
	}
	if err != nil {
		return fmt.Errorf("%s: journal %s: %w", j.Link.Name, path, err)
	}
	return nil
}

func (s store) replace(path string, b []byte) (err error) {
	tmp := path + newSuffix
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	s.at("created")
	_, err = f.Write(b)
	s.at("written")
	err = errors.Join(err, f.Sync(), f.Close())
	s.at("synced")
	if err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	s.at("renamed")
	return s.sync()
}

func (s store) sync() error {
	d, err := os.Open(s.dir)
	if err != nil {
		return err
	}
	err = errors.Join(d.Sync(), d.Close())
	s.at("directory synced")
	return err
}

// remove deletes a journal that has nothing left to undo.
func (s store) remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("journal: %w", err)
	}
	s.at("removed")
	if err := s.sync(); err != nil {
		return fmt.Errorf("journal %s: %w", path, err)
	}
	return nil
}

// read returns a journal. One that is damaged is kept, with a copy beside it.
func (s store) read(path string) (*journal, error) {
	b, err := readLimited(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrJournal, err)
	}
	j, err := decodeJournal(b)
	if err == nil {
		return j, nil
	}
	aside := fmt.Sprintf("%s.damaged-%08x", path, checksum(b))
	note := "a copy is in " + aside
	if werr := os.WriteFile(aside, b, 0o600); werr != nil {
		note = "it could not be copied: " + werr.Error()
	}
	return nil, fmt.Errorf("%w: %s: %w; %s. The port may still have settings of an earlier run: check it, then remove the file",
		ErrJournal, path, err, note)
}

func readLimited(path string) ([]byte, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Size() > maxJournal {
		return nil, fmt.Errorf("%s is not a file of at most %d bytes", path, maxJournal)
	}
	return os.ReadFile(path)
}

// list returns the paths of all journals.
func (s store) list() (paths []string, err error) {
	files, err := os.ReadDir(s.dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("journals: %w", err)
	}
	for _, f := range files {
		if filepath.Ext(f.Name()) == journalSuffix {
			paths = append(paths, filepath.Join(s.dir, f.Name()))
		}
	}
	return paths, nil
}
