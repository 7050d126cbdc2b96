package enforce

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/cespare/xxhash/v2"
	"golang.org/x/sys/unix"
)

// ErrState says that a state file is damaged.
var ErrState = errors.New("state file is damaged")

// The state file is lines of JSON: a header, then one per rule. Times are wall clock.
const stateVersion = 1

type stateHeader struct {
	Version int    `json:"version"`
	Rules   int    `json:"rules"`
	Hash    string `json:"xxhash64"` // of the lines after this one
}

type stateRule struct {
	Prefix  string `json:"prefix"`
	Rate    uint64 `json:"packets_per_second,omitempty"`
	Created int64  `json:"created_ns"`
	Expires int64  `json:"expires_ns"`
	Reason  string `json:"reason,omitempty"`
	By      string `json:"by,omitempty"`
}

// maxState bounds what is read: a rule has at most 2 texts, escaped.
const maxState = 1 << 30

// Saving takes at most one part in saveShare of the time.
const (
	saveInterval = time.Second
	saveShare    = 20
)

func encodeState(rules []Rule) ([]byte, error) {
	var body bytes.Buffer
	enc := json.NewEncoder(&body)
	for i := range rules {
		r := &rules[i]
		if err := enc.Encode(stateRule{
			Prefix: r.Prefix.String(), Rate: r.PacketsPerSecond, Created: r.Created.UnixNano(), Expires: r.Expires.UnixNano(),
			Reason: r.Reason, By: r.By,
		}); err != nil {
			return nil, err
		}
	}
	header, err := json.Marshal(stateHeader{stateVersion, len(rules), fmt.Sprintf("%016x", xxhash.Sum64(body.Bytes()))})
	if err != nil {
		return nil, err
	}
	return append(append(header, '\n'), body.Bytes()...), nil
}

func decodeState(data []byte) ([]Rule, error) {
	first, body, _ := bytes.Cut(data, []byte{'\n'})
	var h stateHeader
	if err := json.Unmarshal(first, &h); err != nil {
		return nil, fmt.Errorf("%w: header: %w", ErrState, err)
	}
	if h.Version != stateVersion {
		return nil, fmt.Errorf("%w: version %d, this program reads %d", ErrState, h.Version, stateVersion)
	}
	if sum := fmt.Sprintf("%016x", xxhash.Sum64(body)); sum != h.Hash {
		return nil, fmt.Errorf("%w: checksum is %s, the header says %s", ErrState, sum, h.Hash)
	}
	var rules []Rule
	dec := json.NewDecoder(bytes.NewReader(body))
	for {
		var s stateRule
		if err := dec.Decode(&s); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("%w: rule %d: %w", ErrState, len(rules)+1, err)
		}
		p, err := ParsePrefix(s.Prefix)
		if err != nil || s.Rate > MaxRate || s.Expires <= s.Created || len(s.Reason) > MaxText || len(s.By) > MaxText {
			return nil, fmt.Errorf("%w: rule %d is impossible", ErrState, len(rules)+1)
		}
		rules = append(rules, Rule{
			Prefix: p, PacketsPerSecond: s.Rate, Created: time.Unix(0, s.Created), Expires: time.Unix(0, s.Expires),
			Reason: clean(s.Reason), By: clean(s.By),
		})
	}
	if len(rules) != h.Rules {
		return nil, fmt.Errorf("%w: %d rules, the header says %d", ErrState, len(rules), h.Rules)
	}
	return rules, nil
}

// readState reads what is a file; to open a pipe would wait for its writer.
func readState(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) //nolint:gosec // the configured file
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file", path)
	}
	return io.ReadAll(io.LimitReader(bufio.NewReader(f), maxState))
}

// load takes over the rules of the state file. What the allow list forbids goes
// when that is known, before anything is sent.
func (m *Manager) load() {
	data, err := readState(m.cfg.StateFile)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		m.cfg.Log.Errorf("Rules of an earlier run are not loaded: %v", err)
		return
	}
	rules, err := decodeState(data)
	if err != nil {
		aside := m.cfg.StateFile + ".damaged"
		m.cfg.Log.Errorf("Rules of an earlier run are not loaded: %s: %v; kept as %s", m.cfg.StateFile, err, aside)
		if err := os.Rename(m.cfg.StateFile, aside); err != nil {
			m.cfg.Log.Errorf("%v", err)
		}
		return
	}
	now := m.cfg.Now()
	dropped := 0
	for i := range rules {
		r := &rules[i]
		// A clock that was set back does not lengthen a lifetime.
		if ttl := min(r.Expires.Sub(r.Created), MaxTTL); r.Created.After(now) || r.Expires.Sub(now) > ttl {
			r.Created, r.Expires = now, now.Add(ttl)
		}
		if !now.Before(r.Expires) {
			m.stats.Expired++
			continue
		}
		err := m.permitted(r.Prefix)
		if err == nil {
			err = m.insert(r)
		}
		if err != nil {
			m.refused(err)
			if dropped++; dropped <= maxLines {
				m.cfg.Log.Warnf("Rule of an earlier run left out: %v", err)
			}
		}
	}
	if dropped > maxLines {
		m.cfg.Log.Warnf("%d more rules of an earlier run left out", dropped-maxLines)
	}
	m.cfg.Log.Infof("%d rules of an earlier run loaded", len(m.rules))
}

// save writes the state file; readers see the old one or the new one.
func (m *Manager) save() {
	m.mu.Lock()
	m.unsaved = false
	m.mu.Unlock()
	begin := m.cfg.Now()
	data, err := encodeState(m.List())
	if err == nil {
		err = replaceFile(m.cfg.StateFile, data)
	}
	now := m.cfg.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.nextSave = now.Add(max(saveInterval, saveShare*now.Sub(begin)))
	if err == nil {
		m.saveErr = ""
		return
	}
	m.unsaved = true
	if text := err.Error(); text != m.saveErr {
		m.saveErr = text
		m.cfg.Log.Errorf("Rules are not saved: %v", err)
	}
}

// replaceFile puts data into path for good: after it returns, no crash brings the old
// content back.
func replaceFile(path string, data []byte) error {
	dir := filepath.Dir(path)
	// What a crash has left there goes, and a link is not followed.
	if err := os.Remove(path + ".new"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	temp, err := os.OpenFile(path+".new", os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600) //nolint:gosec // the configured file
	if err != nil {
		return err
	}
	_, err = temp.Write(data)
	if err == nil {
		err = temp.Sync()
	}
	if err = errors.Join(err, temp.Close()); err == nil {
		err = os.Rename(temp.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temp.Name()))
	}
	d, err := os.Open(dir) //nolint:gosec // the configured folder
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
