package agp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/influxdata/telegraf"
	"github.com/influxdata/telegraf/config"

	"github.com/agp-net/telegraf-agp/agp/control"
	"github.com/agp-net/telegraf-agp/agp/enforce"
	"github.com/agp-net/telegraf-agp/agp/options"
	"github.com/agp-net/telegraf-agp/agp/supervise"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
	"github.com/agp-net/telegraf-agp/agp/telemetry/agppb"
)

// EnforceConfig is the table "enforce": what is blocked, and what never is.
type EnforceConfig struct {
	Enabled      bool            `toml:"enabled"`
	DryRun       bool            `toml:"dry_run"`
	TTL          config.Duration `toml:"ttl"`
	MaxEntries   int             `toml:"max_entries"`
	Allow        []string        `toml:"allow"`
	Protect      []string        `toml:"protect"`
	Kinds        []string        `toml:"kinds"`
	MinCount     int             `toml:"min_count"`
	MinScore     float64         `toml:"min_score"`
	Unconfirmed  bool            `toml:"unconfirmed"`
	MaxPerMinute int             `toml:"max_per_minute"`
	Persist      bool            `toml:"persist"`
	StateFile    string          `toml:"state_file"`
	Socket       string          `toml:"socket"`
}

// maxSocket leaves room for what control appends while it makes the socket.
const maxSocket = control.MaxPath - 12

func defaultEnforce() EnforceConfig {
	return EnforceConfig{
		DryRun: true, TTL: config.Duration(enforce.DefaultTTL), MaxEntries: enforce.DefaultMaxEntries,
		Allow: []string{}, Protect: []string{}, Kinds: []string{"brute_force"}, MaxPerMinute: enforce.DefaultPerMinute,
		StateFile: "/var/lib/telegraf-agp/enforce.state", Socket: control.DefaultSocket,
	}
}

// checkEnforce validates the table "enforce".
func (a *AGP) checkEnforce() error {
	e := &a.Enforce
	var errs []error
	within := func(key string, v, low, high int) {
		if v < low || v > high {
			errs = append(errs, bad("enforce."+key, v, fmt.Sprintf("%d to %d", low, high)))
		}
	}
	if e.Enabled && !e.DryRun && !a.live() {
		errs = append(errs, bad("enforce.dry_run", e.DryRun, `true with source = "pcap"`))
	}
	if ttl := time.Duration(e.TTL); ttl < enforce.MinTTL || ttl > enforce.MaxTTL {
		errs = append(errs, bad("enforce.ttl", ttl, enforce.MinTTL.String()+" to "+enforce.MaxTTL.String()))
	}
	within("max_entries", e.MaxEntries, 1, 1<<24)
	if a.live() && e.Enabled && e.MaxEntries > a.Live.MaxBlocked {
		errs = append(errs, bad("enforce.max_entries", e.MaxEntries, fmt.Sprintf("at most live.max_blocked, %d", a.Live.MaxBlocked)))
	}
	if _, err := e.allow(); err != nil {
		errs = append(errs, err)
	}
	if _, err := e.protect(); err != nil {
		errs = append(errs, err)
	}
	if err := options.CheckBlockingKinds(e.Kinds); err != nil {
		errs = append(errs, fmt.Errorf("%w: enforce.kinds: %w", ErrConfig, err))
	}
	if err := options.CheckConfirmableKinds(e.Kinds); err != nil && e.Enabled && a.live() && !e.Unconfirmed {
		errs = append(errs, fmt.Errorf("%w: enforce.kinds: %w; allowed with enforce.unconfirmed = true", ErrConfig, err))
	}
	within("min_count", e.MinCount, 0, 1<<30)
	if !(e.MinScore >= 0 && e.MinScore <= 1) {
		errs = append(errs, bad("enforce.min_score", e.MinScore, "0 to 1"))
	}
	within("max_per_minute", e.MaxPerMinute, 1, 100_000)
	if !filepath.IsAbs(e.StateFile) {
		errs = append(errs, bad("enforce.state_file", e.StateFile, "an absolute path"))
	}
	if err := socketPath("enforce.socket", e.Socket); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func socketPath(key, path string) error {
	if path == "" || filepath.IsAbs(path) && len(path) <= maxSocket {
		return nil
	}
	return bad(key, path, fmt.Sprintf("an absolute path of at most %d bytes, or \"\"", maxSocket))
}

func (e *EnforceConfig) allow() ([]netip.Prefix, error) {
	var list []netip.Prefix
	for i, s := range e.Allow {
		p, err := enforce.ParsePrefix(s)
		if err != nil {
			return nil, fmt.Errorf("%w: enforce.allow[%d]: %w, allowed: an address or a prefix", ErrConfig, i, err)
		}
		list = append(list, p)
	}
	return list, nil
}

func (e *EnforceConfig) protect() ([]string, error) {
	var list []string
	for i, s := range e.Protect {
		name, err := enforce.ParseHost(s)
		if err != nil {
			return nil, fmt.Errorf("%w: enforce.protect[%d]: %w, allowed: a host name, host:port or URL", ErrConfig, i, err)
		}
		list = append(list, name)
	}
	return list, nil
}

// enforcement is what of a running plugin decides about blocks. Methods of nil do
// nothing: it is not enabled.
type enforcement struct {
	manager *enforce.Manager
	server  *control.Server // nil: no socket
	cancel  context.CancelFunc
	done    chan struct{}
	log     telegraf.Logger
}

// startEnforcement makes what conf needs before its supervisor exists; begin follows
// when it does.
func (a *AGP) startEnforcement(conf *supervise.Config) (begin func(*supervise.Supervisor) error, e *enforcement) {
	if !a.Enforce.Enabled {
		return func(*supervise.Supervisor) error { return nil }, nil
	}
	e = &enforcement{log: a.Log, done: make(chan struct{})}
	conf.Ready = func(r *agppb.Ready) { e.manager.Ready(r.GetSteering() || !a.live()) }
	return func(s *supervise.Supervisor) error {
		c := &a.Enforce
		allow, err := c.allow()
		if err != nil {
			return err
		}
		protect, err := c.protect()
		if err != nil {
			return err
		}
		mc := enforce.Config{
			Enforce: !c.DryRun, TTL: time.Duration(c.TTL), MaxEntries: c.MaxEntries, Allow: allow, Protect: protect, Log: a.Log,
			Policy: enforce.Policy{Kinds: c.Kinds, MinCount: uint64(c.MinCount), MinScore: c.MinScore, PerMinute: c.MaxPerMinute, Unconfirmed: c.Unconfirmed},
		}
		if a.live() {
			mc.Sender = s // an engine that reads files has nothing to block
		}
		if c.Persist {
			mc.StateFile = c.StateFile
		}
		if e.manager, err = enforce.New(mc); err != nil {
			return err
		}
		if c.Socket != "" {
			e.server, err = control.Listen(control.Config{
				Path: c.Socket, Enforcer: e.manager, EngineUp: func() bool { return s.Status().Up }, Log: a.Log,
			})
			if err != nil {
				a.Log.Errorf("Commands cannot be given, only alerts block: %v", err)
			}
		}
		ctx, cancel := context.WithCancel(context.Background())
		e.cancel = cancel
		go func() { defer close(e.done); e.manager.Run(ctx) }()
		return nil
	}, e
}

// alert must not block.
func (e *enforcement) alert(a *telemetry.Alert) {
	if e != nil {
		e.manager.Alert(a)
	}
}

// stop takes no more commands; wait follows.
func (e *enforcement) stop() {
	if e == nil {
		return
	}
	if e.server != nil {
		if err := e.server.Close(); err != nil {
			e.log.Errorf("Control socket: %v", err)
		}
	}
	e.cancel()
}

func (e *enforcement) wait() {
	if e != nil {
		<-e.done
	}
}

// steeringKey is a series of agp_steering.
type steeringKey struct{ iface, target string }

// remarks are targets that frames have besides the one that they went to.
var remarks = map[string]bool{"pass": true, "unparsed": true, "would_block": true, "would_limit": true}

// steering adds agp_steering. Shares are of the frames since the call before.
func (c *Converter) steering(s *telemetry.Snapshot, now time.Time, acc telegraf.Accumulator) {
	c.mu.Lock()
	defer c.mu.Unlock()
	total := map[string]uint64{} // frames by interface
	fresh := make([]uint64, len(s.Steering))
	for i := range s.Steering {
		r := &s.Steering[i]
		k := steeringKey{r.Interface, r.Target}
		fresh[i] = r.Packets - min(r.Packets, c.steered[k])
		c.steered[k] = max(r.Packets, c.steered[k])
		if !remarks[r.Target] {
			total[r.Interface] += fresh[i]
		}
	}
	for i := range s.Steering {
		r := &s.Steering[i]
		fields := map[string]any{"packets": i63(r.Packets), "bytes": i63(r.Bytes), "rules": i63(r.Rules)}
		if n := total[r.Interface]; n > 0 {
			fields["share"] = min(1, float64(fresh[i])/float64(n))
		}
		acc.AddFields("agp_steering", fields, map[string]string{"interface": r.Interface, "target": r.Target}, now)
	}
}

// enforcementTarget is the tag of the point with the figures of the rule list.
const enforcementTarget = "enforcement"

// Enforcement adds the figures of the rule list to agp_steering.
func (c *Converter) Enforcement(st enforce.Stats, now time.Time, acc telegraf.Accumulator) {
	acc.AddFields("agp_steering", map[string]any{
		"dry_run": st.DryRun, "blocked_sources": i63(st.Blocked), "rate_limited_sources": i63(st.RateLimited),
		"added": i63(st.Added), "expired": i63(st.Expired), "refused_allowed": i63(st.RefusedAllowed),
		"refused_full": i63(st.RefusedFull), "refused_rate": i63(st.RefusedRate), "refused_other": i63(st.RefusedOther),
		"refused_unconfirmed": i63(st.RefusedUnconfirmed),
	}, map[string]string{"interface": c.o.Interface, "target": enforcementTarget}, now)
}
