package enforce

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func stateFile(path string) func(*Config) { return func(c *Config) { c.StateFile = path } }

func TestWithPersistRulesOutliveTheProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rules")
	w := newWorld(t, stateFile(path))
	require.NoError(t, w.block("198.51.100.7"))
	_, err := w.RateLimit(pfx(t, "2001:db8:5::/48"), 9, time.Hour, "why", "uid 3")
	require.NoError(t, err)
	w.now = w.now.Add(saveInterval)
	w.Tick()
	want := w.List()

	again := newWorld(t, func(c *Config) { stateFile(path)(c); c.Now = func() time.Time { return w.now } })
	got := again.List()
	require.Len(t, got, 2)
	for i := range want {
		require.True(t, want[i].Expires.Equal(got[i].Expires))
		require.True(t, want[i].Created.Equal(got[i].Created))
		want[i].Expires, want[i].Created, got[i].Expires, got[i].Created = time.Time{}, time.Time{}, time.Time{}, time.Time{}
	}
	require.Equal(t, want, got)
	require.Len(t, again.engine.prefixes(), 2, "the new engine has them")

	w.now = w.now.Add(30 * time.Minute)
	again = newWorld(t, func(c *Config) { stateFile(path)(c); c.Now = func() time.Time { return w.now } })
	require.Equal(t, []string{"2001:db8:5::/48"}, again.listed(), "what expired meanwhile is gone")
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.EqualValues(t, 0o600, info.Mode().Perm())
}

// A rule of a person who saw the answer and a power cut a moment later.
func TestFirstChangeIsSavedAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rules")
	w := newWorld(t, stateFile(path))
	w.every = time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.Run(ctx) }()
	require.NoError(t, w.block("198.51.100.7"))
	require.Eventually(t, func() bool {
		data, err := os.ReadFile(path)
		return err == nil && strings.Contains(string(data), "198.51.100.7")
	}, 10*time.Second, time.Millisecond)
	cancel()
	<-done
}

func TestWithoutPersistNothingIsWritten(t *testing.T) {
	w := newWorld(t, nil)
	require.NoError(t, w.block("198.51.100.7"))
	w.now = w.now.Add(time.Hour)
	w.Tick()
	require.Empty(t, newWorld(t, nil).List())
}

func TestDamagedStateFileIsKeptAsideAndTheListIsEmpty(t *testing.T) {
	dir := t.TempDir()
	good := filepath.Join(dir, "good")
	w := newWorld(t, stateFile(good))
	require.NoError(t, w.block("198.51.100.7"))
	w.now = w.now.Add(saveInterval)
	w.Tick()
	data, err := os.ReadFile(good)
	require.NoError(t, err)
	text := string(data)
	for name, damaged := range map[string]string{
		"empty": "", "not json": "rules\n", "cut": text[:len(text)-5], "changed": strings.Replace(text, "198.51.100.7", "198.51.100.8", 1),
		"future": strings.Replace(text, `"version":1`, `"version":2`, 1), "count": strings.Replace(text, `"rules":1`, `"rules":2`, 1),
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "rules")
			require.NoError(t, os.WriteFile(path, []byte(damaged), 0o600))
			_, err := decodeState([]byte(damaged))
			require.ErrorIs(t, err, ErrState)
			w := newWorld(t, stateFile(path))
			require.Empty(t, w.List())
			require.Contains(t, w.log.text(), "E! Rules of an earlier run are not loaded: "+path+": state file is damaged")
			kept, err := os.ReadFile(path + ".damaged")
			require.NoError(t, err)
			require.Equal(t, damaged, string(kept))
			require.NoError(t, w.block("198.51.100.7"), "it works on")
			w.now = w.now.Add(saveInterval)
			w.Tick()
			require.FileExists(t, path)
		})
	}
}

func TestRulesOfAnEarlierRunThatAreForbiddenNowAreLeftOut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rules")
	w := newWorld(t, stateFile(path))
	require.NoError(t, w.block("198.51.100.7"))
	require.NoError(t, w.block("203.0.113.7"))
	require.NoError(t, w.block("203.0.113.8"))
	w.now = w.now.Add(saveInterval)
	w.Tick()
	again := newWorld(t, func(c *Config) {
		stateFile(path)(c)
		c.MaxEntries = 2
		c.Local = func() ([]Allowed, error) { return []Allowed{{host(addr("198.51.100.7")), "default gateway"}}, nil }
	})
	require.Equal(t, []string{"203.0.113.7/32"}, again.engine.prefixes(), "never sent, not even for a moment")
	require.EqualValues(t, 1, again.Stats().RefusedFull)
}

func TestClockThatWasSetBackLengthensNoRule(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rules")
	w := newWorld(t, stateFile(path))
	require.NoError(t, w.block("198.51.100.7"))
	w.now = w.now.Add(saveInterval)
	w.Tick()
	w.now = w.now.Add(-1000 * time.Hour)
	again := newWorld(t, func(c *Config) { stateFile(path)(c); c.Now = func() time.Time { return w.now } })
	require.Equal(t, w.now.Add(DefaultTTL), again.List()[0].Expires)
}

func TestStateThatCannotBeWrittenIsOneErrorAndTriedAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "later")
	w := newWorld(t, stateFile(filepath.Join(dir, "rules")))
	require.NoError(t, w.block("198.51.100.7"))
	for range 5 {
		w.now = w.now.Add(saveInterval)
		w.Tick()
	}
	require.Equal(t, 1, strings.Count(w.log.text(), "E! Rules are not saved: "))
	require.NoError(t, os.Mkdir(dir, 0o700))
	w.now = w.now.Add(saveInterval)
	w.Tick()
	require.FileExists(t, filepath.Join(dir, "rules"))
	require.NoFileExists(t, filepath.Join(dir, "rules.new"))
}

func FuzzStateFile(f *testing.F) {
	data, err := encodeState([]Rule{{Prefix: host(addr("198.51.100.7")), Created: time.Unix(1, 0), Expires: time.Unix(2, 0), Reason: "x"}})
	require.NoError(f, err)
	f.Add(data)
	f.Add([]byte("{}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		rules, err := decodeState(data)
		if err != nil {
			require.ErrorIs(t, err, ErrState)
			return
		}
		again, err := encodeState(rules)
		require.NoError(t, err)
		same, err := decodeState(again)
		require.NoError(t, err)
		require.Equal(t, rules, same)
	})
}
