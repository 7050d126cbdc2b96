package detect

import (
	"math"

	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// login is what one source does at one service.
type login struct {
	n    uint32
	sure uint32 // of these, confirmed connections
	// The most common kind of try, by majority vote (Boyer and Moore, 1981): odd
	// ones between, such as refusals at the door, do not hide it.
	fwd, rev float64 // its payload bytes
	votes    int32
	alike    uint32  // tries of this kind
	certain  uint32  // of these, confirmed
	duration float64 // s, of these
}

const (
	loginBytes    = 5000 // most payload per direction of a failed login: key exchange and a few tries
	loginSpread   = 0.1  // by which the bytes of tries of one kind differ
	loginDuration = 0.5  // s; servers delay after a wrong password
)

// authPort says whether a port's service starts with the login of a person or script that
// then works. Databases, directories and mail ask for a password too, but programs open
// short connections to them all day: they are judged by shape.
func authPort(p uint16) bool {
	switch p {
	case 21, 22, 23, 2222, 2323, 3389, 5900:
		return true
	}
	return false
}

// webPort: browsers and programs open many small connections there for other reasons.
func webPort(p uint16) bool {
	switch p {
	case 53, 80, 443, 853, 8000, 8080, 8081, 8443, 8888:
		return true
	}
	return false
}

// authApps are the labels of the `app` model for the services of authPort.
var authApps = map[string]bool{"SSH": true, "FTP_CONTROL": true, "Telnet": true, "RDP": true, "VNC": true}

// loginEnd: one source opens many short connections to one service that starts
// with a login (by port, or by what the `app` model found), each with data both
// ways but little of it: a greeting, a try, a refusal. Elsewhere, except at web
// and DNS ports, the tries must also be alike in size and last as long as a
// server's delay after a wrong password: pollers and programs that connect for
// each query are alike too, but done in milliseconds. A session that does work
// moves more than loginBytes. Missed: slow guessing, and many sources that guess
// once each. Not told apart: twenty sessions a minute that succeed and say next to nothing.
func (d *Detector) loginEnd(r *telemetry.Record) {
	fwd, rev := &r.Dir[telemetry.Fwd], &r.Dir[telemetry.Rev]
	if r.Protocol != packet.ProtoTCP || fwd.PayloadBytes == 0 || rev.PayloadBytes == 0 ||
		fwd.PayloadBytes > loginBytes || rev.PayloadBytes > loginBytes || fwd.TCPFlags&packet.TCPSyn == 0 ||
		(fwd.TCPFlags|rev.TCPFlags)&(packet.TCPFin|packet.TCPRst) == 0 {
		return
	}
	auth := authPort(r.DstPort)
	for i := range r.Outputs {
		if o := &r.Outputs[i]; o.Field == "app" && authApps[o.Label] {
			auth = true
		}
	}
	if !auth && webPort(r.DstPort) {
		return
	}
	id := d.subject(saltLogin, d.src, d.dst, r.DstPort)
	b, i := d.logins.at(id, r.EndNs)
	b.weight[i]++
	l := &b.v[i]
	l.n++
	l.try(r, float64(r.EndNs-r.StartNs)/float64(second))
	n, sure := float64(l.n), float64(l.sure)
	if !auth {
		if n, sure = float64(l.alike), float64(l.certain); l.duration < loginDuration*n {
			return
		}
	}
	if n < d.cfg.BruteForce {
		return
	}
	confirmed := sure >= d.cfg.BruteForce
	if d.due(id, flowWindow, confirmed) {
		a := client(BruteForce, r, n, d.cfg.BruteForce, flowWindow)
		a.Confirmed = confirmed
		d.emit(a)
	}
}

func (l *login) try(r *telemetry.Record, duration float64) {
	fwd, rev := float64(r.Dir[telemetry.Fwd].PayloadBytes), float64(r.Dir[telemetry.Rev].PayloadBytes)
	sure := uint32(0)
	if r.Confirmed {
		sure = 1
	}
	l.sure += sure

	same := math.Abs(fwd-l.fwd) <= loginSpread*l.fwd && math.Abs(rev-l.rev) <= loginSpread*l.rev
	switch {
	case same:
		l.votes++
	case l.votes > 0:
		l.votes--
		return
	default:
		*l = login{n: l.n, sure: l.sure, fwd: fwd, rev: rev, votes: 1}
	}
	l.alike++
	l.certain += sure
	l.duration += duration
}

// spread is standard deviation / mean from sums.
func spread(n, sum, sum2 float64) float64 {
	m := sum / n
	return math.Sqrt(max(0, sum2/n-m*m)) / m
}
