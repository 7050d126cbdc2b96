package live

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/telemetry/agppb"
	"github.com/agp-net/telegraf-agp/tests/e2e/telegrafbin"
	"github.com/agp-net/telegraf-agp/tests/live/rig"
	"github.com/agp-net/telegraf-agp/tests/netns"
)

const (
	killRounds    = 200
	telegrafEvery = 9 // one round in so many has a telegraf, which takes a second to start
	killWorkers   = 2
	passWithin    = 2 * time.Second
)

// killer is one place where rounds happen one after the other.
type killer struct {
	t       *testing.T
	w       *wire
	rng     *rand.Rand
	configs map[string]string
	binary  string
	stock   string
	before  string
}

// kill -9 of engine, plugin and telegraf at random moments: what was attached is
// detached within 2 s, the port is as before, nothing is noted any more.
func TestKilledAtRandomMomentsLeavesThePortAsBefore(t *testing.T) {
	netns.NothingLeft(t)
	stock, err := telegrafbin.Path(t.Context(), os.Stderr)
	require.NoError(t, err)
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		count = map[string]int{}
		worst time.Duration
		next  = make(chan int)
	)
	for i := range killWorkers {
		k := &killer{t: t, w: newWire(t, 2, 0), rng: rand.New(rand.NewPCG(1, uint64(i))), binary: agpBinary(t), stock: stock, configs: map[string]string{}} //nolint:gosec // not for secrets
		k.configs["mirror"] = pluginConfig(t, "mirror", "", "    promiscuous = true\n", "h0")
		k.configs["divert"] = pluginConfig(t, "divert", "", "    promiscuous = true\n    channels = 1\n", "h0")
		require.NoError(t, k.w.host.Addr("h0", hostNet))
		require.NoError(t, k.w.far.Addr("out0", farNet))
		k.before, err = rig.Settings(k.w.host, "h0")
		require.NoError(t, err)
		wg.Go(func() {
			for n := range next {
				what, took, err := k.round(n)
				mu.Lock()
				count[what]++
				worst = max(worst, took)
				mu.Unlock()
				if err != nil {
					t.Errorf("round %d, %s: %v", n, what, err)
				}
			}
		})
	}
	for n := range killRounds {
		if t.Failed() {
			break
		}
		next <- n
	}
	close(next)
	wg.Wait()
	t.Logf("%v; slowest return to the former state %v", count, worst.Round(time.Millisecond))
}

// round starts what there is to kill, kills it after a random time and looks.
func (k *killer) round(n int) (what string, took time.Duration, err error) {
	source := [2]string{"mirror", "divert"}[n/2%2]
	victim := [2]string{"engine", "plugin"}[n%2]
	cmd := exec.Command(k.binary, "run", "--config", k.configs[source]) //nolint:gosec // our own binary
	if n%telegrafEvery == telegrafEvery-1 {
		victim = "telegraf"
		if cmd, err = k.telegraf(source); err != nil {
			return source, 0, err
		}
	}
	what = source + " " + victim
	p, err := rig.Run(k.w.host, cmd)
	if err != nil {
		return what, 0, err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, p.Log())
		}
	}()
	defer func() { _ = p.Stop() }()

	// From before the first program is attached to well after.
	moment := time.Duration(k.rng.Int64N(int64(400 * time.Millisecond)))
	if victim == "telegraf" {
		if err := k.until(rig.Patience, func() bool { return p.Engine() != 0 }); err != nil {
			return what, 0, fmt.Errorf("no engine: %w", err)
		}
	}
	settle(moment)
	engine := p.Engine()
	old, err := rig.Programs(k.w.host, "h0")
	if err != nil {
		return what, 0, err
	}
	begin := time.Now()
	if victim == "engine" {
		if engine == 0 {
			if err := k.until(rig.Patience, func() bool { engine = p.Engine(); return engine != 0 }); err != nil {
				return what, 0, fmt.Errorf("no engine: %w", err)
			}
		}
		_ = syscall.Kill(engine, syscall.SIGKILL)
		if err := k.until(passWithin, func() bool {
			now, err := rig.Programs(k.w.host, "h0")
			return err == nil && !sameAny(old, now)
		}); err != nil {
			return what, 0, fmt.Errorf("the programs of the dead engine are still attached: %v: %w", old, err)
		}
		took = time.Since(begin)
		if !p.Alive() {
			return what, took, fmt.Errorf("the plugin ended")
		}
		begin = time.Now()
		if err := p.Stop(); err != nil {
			return what, took, err
		}
		return what, took, k.restored(5*time.Second, begin, nil)
	}
	family := rig.Descendants(p.Pid())
	p.Kill()
	err = k.restored(passWithin, begin, family)
	return what, time.Since(begin), err
}

// restored waits until nobody of the family is left and the port is as before.
func (k *killer) restored(within time.Duration, begin time.Time, family []int) error {
	var now string
	err := k.until(within-time.Since(begin), func() bool {
		for _, pid := range family {
			if rig.Exists(pid) {
				now = fmt.Sprintf("process %d is still there", pid)
				return false
			}
		}
		var err error
		now, err = rig.Settings(k.w.host, "h0")
		return err == nil && now == k.before
	})
	if err != nil {
		return fmt.Errorf("%w: before\n%s\nnow\n%s", err, k.before, now)
	}
	for _, c := range k.configs {
		left, err := filepath.Glob(filepath.Join(filepath.Dir(c), "state", "*.journal"))
		if err != nil || len(left) > 0 {
			return fmt.Errorf("still noted: %v %w", left, err)
		}
	}
	return nil
}

func (k *killer) until(within time.Duration, f func() bool) error {
	for deadline := time.Now().Add(within); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			return rig.ErrTimeout
		}
	}
	return nil
}

func (k *killer) telegraf(source string) (*exec.Cmd, error) {
	path := filepath.Join(filepath.Dir(k.configs[source]), "telegraf.conf")
	text := fmt.Sprintf(`[agent]
  interval = "1s"
  flush_interval = "1s"
  omit_hostname = true
[[outputs.discard]]
[[inputs.execd]]
  command = [%q, "run", "--config", %q]
  signal = "STDIN"
  restart_delay = "1h"
  data_format = "influx"
`, k.binary, k.configs[source])
	return exec.Command(k.stock, "--config", path), os.WriteFile(path, []byte(text), 0o600) //nolint:gosec // the stock telegraf
}

// The block list goes with the engine: what it blocked passes within 2 s of kill -9.
func TestBlockedTrafficPassesAfterTheEngineIsKilled(t *testing.T) {
	for _, kind := range []string{"mirror", "divert"} {
		t.Run(kind, func(t *testing.T) {
			netns.NothingLeft(t)
			l := newLAN(t, false)
			conf := config(t, kind, "h0")
			// Only what is blocked shall not reach the kernel.
			conf.Source.Live.Policy.Engine = []string{"tcp/9"}
			e := start(t, l.host, conf)
			probe, err := rig.ProbeICMP(l.host, farNet.Addr())
			require.NoError(t, err)
			eventually(t, "answers", func() bool { return probe.Answered() > 100 })
			rule := &agppb.SteerRule{Prefix: farNet.Addr().String() + "/32"}
			require.NoError(t, e.Send(&agppb.Command{Command: &agppb.Command_SteerRules{SteerRules: &agppb.SteerRules{Add: []*agppb.SteerRule{rule}}}}))
			eventually(t, "silence", func() bool {
				n := probe.Answered()
				settle(100 * time.Millisecond)
				return probe.Answered() == n
			})
			s, err := e.Fresh()
			require.NoError(t, err)
			require.Positive(t, target(s, "blocked").GetPackets(), s.GetSteering())

			n := probe.Answered()
			begin := time.Now()
			e.Kill()
			eventually(t, "answers again", func() bool { return probe.Answered() > n+10 })
			took := time.Since(begin)
			t.Logf("passes again %v after kill -9", took.Round(time.Millisecond))
			require.Less(t, took, passWithin)
			probe.Stop()
		})
	}
}

// target adds up the steering rows of one target.
func target(s *agppb.Snapshot, name string) *agppb.SteeringRow {
	sum := &agppb.SteeringRow{Target: name}
	for _, r := range s.GetSteering() {
		if strings.EqualFold(r.GetTarget(), name) {
			sum.Packets += r.GetPackets()
			sum.Bytes += r.GetBytes()
			sum.Rules += r.GetRules()
		}
	}
	return sum
}
