package enforce

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/agp-net/telegraf-agp/agp/options"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// Policy says which alerts block their source. Its zero value blocks nothing.
//
// Victims are never blocked, and floods never block: their sources are forged or
// innocent (options.CheckBlockingKinds says so for each kind). An alert about running
// traffic blocks only if it is confirmed: otherwise somebody who forges addresses
// could have a third party blocked.
type Policy struct {
	Kinds     []string      // of alerts; "classified/NAME" is that kind with one class
	MinCount  uint64        // what the detector counted, at least
	MinScore  float64       // of alerts that a model raised, at least
	TTL       time.Duration // default Config.TTL
	PerMinute int           // new blocks at most; default 60
	// Unconfirmed lets alerts block whose source may be forged.
	Unconfirmed bool
}

// DefaultPerMinute is how many sources alerts can block in a minute.
const DefaultPerMinute = 60

func (p *Policy) setDefaults(ttl time.Duration) {
	if p.TTL == 0 {
		p.TTL = ttl
	}
	if p.PerMinute <= 0 {
		p.PerMinute = DefaultPerMinute
	}
}

// wants reports whether an alert is to block its source.
func (p *Policy) wants(a *telemetry.Alert) bool {
	if !slices.Contains(p.Kinds, a.Kind) && (a.Class == "" || !slices.Contains(p.Kinds, a.Kind+"/"+a.Class)) {
		return false
	}
	if options.CheckBlockingKinds([]string{a.Kind}) != nil {
		return false // configured all the same
	}
	if a.Model != "" {
		return a.Score >= p.MinScore && a.Count >= p.MinCount
	}
	return a.Count >= p.MinCount
}

// Alert blocks the source of an alert if the policy says so, and lengthens the
// lifetime of a block that is there. It does not block its caller.
func (m *Manager) Alert(a *telemetry.Alert) {
	if !m.cfg.Policy.wants(a) {
		return
	}
	addr, err := netip.ParseAddr(a.Src)
	if err != nil {
		return // the finding is about no source
	}
	p := host(addr)
	reason := fmt.Sprintf("%s %d of %g", a.Kind, a.Count, a.Threshold)
	if a.Model != "" {
		reason = fmt.Sprintf("%s %s %.2f (%s)", a.Kind, a.Class, a.Score, a.Model)
	}
	reason = reason[:min(len(reason), MaxText)]

	m.mu.Lock()
	defer m.mu.Unlock()
	r := Rule{Prefix: p, Reason: reason, By: "alert"}
	old := m.rules[p]
	switch {
	case !a.Confirmed && !m.cfg.Policy.Unconfirmed && m.cfg.Sender != nil:
		m.stats.RefusedUnconfirmed++
		if m.stats.RefusedUnconfirmed == 1 {
			m.cfg.Log.Warnf("Alert %s about %s blocks nothing: its source may be forged; more of these are counted only", a.Kind, p.Addr())
		}
		return
	case old != nil && old.By != r.By:
		return // what a person decided stays
	case old == nil && !m.withinRate():
		m.stats.RefusedRate++
		if m.stats.RefusedRate == 1 {
			m.cfg.Log.Warnf("Alerts block more than %d sources in a minute; what is beyond is counted only", m.cfg.Policy.PerMinute)
		}
		return
	}
	err = m.addLocked(&r, m.cfg.Policy.TTL)
	switch {
	case err == nil && old == nil:
		m.inMinute++
		if m.cfg.Enforce {
			m.cfg.Log.Infof("Blocked %s for %s: %s", p.Addr(), m.cfg.Policy.TTL, r.Reason)
		} else {
			m.cfg.Log.Infof("Would block %s for %s (dry run): %s", p.Addr(), m.cfg.Policy.TTL, r.Reason)
		}
	case errors.Is(err, ErrFull):
		m.refused(err)
		if !m.fullSaid {
			m.fullSaid = true
			m.cfg.Log.Warnf("Alerts block nothing more: %v", err)
		}
	case err != nil:
		m.refused(err)
		m.cfg.Log.Warnf("Alert %s blocks nothing: %v", a.Kind, err)
	}
}

// withinRate reports whether this minute has room for one more block.
func (m *Manager) withinRate() bool {
	now := m.cfg.Now()
	if since := now.Sub(m.minute); since >= time.Minute || since < 0 {
		m.minute, m.inMinute = now, 0
	}
	return m.inMinute < m.cfg.Policy.PerMinute
}
