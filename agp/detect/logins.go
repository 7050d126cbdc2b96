package detect

import (
	"math"

	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/telemetry"
)

// login is what one source does at one service.
type login struct {
	n                        uint32
	sumF, sumF2, sumR, sumR2 float64 // payload bytes per direction
	duration                 float64 // s
}

const (
	loginBytes    = 5000 // most payload per direction of a failed login: key exchange and a few tries
	loginSpread   = 0.1  // standard deviation / mean of the bytes of repeated tries
	loginDuration = 0.5  // s; servers delay after a wrong password
)

// authPort says whether a port's service asks for a password first.
func authPort(p uint16) bool {
	switch p {
	case 21, 22, 23, 110, 143, 389, 445, 512, 513, 514, 587, 902, 993, 995, 1433, 1521, 2222, 2323, 3306, 3389, 5432, 5900, 5985, 6379, 27017:
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

var authApps = map[string]bool{
	"SSH": true, "FTP_CONTROL": true, "FTP": true, "Telnet": true, "RDP": true, "VNC": true, "POP3": true, "IMAP": true, "MySQL": true,
	"MsSQL-TDS": true, "PostgreSQL": true, "LDAP": true,
}

// loginEnd: one source opens many short connections to one service that asks for a
// password (by port, or by what the `app` model found), each with data both ways but little of it: a
// greeting, a try, a refusal. Elsewhere, except at web and DNS ports, the tries must also be alike in
// size and last as long as a server's delay after a wrong password: pollers are alike too, but done in
// milliseconds. A session that does work moves more than loginBytes. Missed: slow guessing, and many
// sources that guess once each.
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
	f, v := float64(fwd.PayloadBytes), float64(rev.PayloadBytes)
	l.n++
	l.sumF += f
	l.sumF2 += f * f
	l.sumR += v
	l.sumR2 += v * v
	l.duration += float64(r.EndNs-r.StartNs) / float64(second)
	n := float64(l.n)
	if n < d.cfg.BruteForce {
		return
	}
	if !auth && (spread(n, l.sumF, l.sumF2) > loginSpread || spread(n, l.sumR, l.sumR2) > loginSpread || l.duration < loginDuration*n) {
		return
	}
	if d.armed(id, flowWindow) {
		d.emit(client(BruteForce, r, n, d.cfg.BruteForce, flowWindow))
	}
}

// spread is standard deviation / mean from sums.
func spread(n, sum, sum2 float64) float64 {
	m := sum / n
	return math.Sqrt(max(0, sum2/n-m*m)) / m
}
