package dashboards

import (
	"fmt"
	"strings"
)

// Rule is an alert rule of Grafana: of any group, the newest value or the sum of the
// values is above a limit, for some time.
type Rule struct {
	Name     string // in the uid
	Title    string
	Text     string // what it means and what to do
	Severity string
	Query    Query
	Sum      bool // of the values in the time range, else the last
	Above    float64
	Below    float64 // instead of Above, unless it is 0
	Minutes  int     // that it has to last; 0 is at once
	// Silence says what no data mean: that all is well, or that reports are missing.
	Silence string
}

const (
	fine     = "OK"
	alarming = "Alerting"
	// ruleRange is how far back a rule looks, in seconds.
	ruleRange = 300
)

// grouped takes the variables away: an alert rule has none, and reports each group.
func grouped(q Query, by ...string) Query {
	q.Vars, q.By = nil, by
	return q
}

// Rules are the alert rules.
var Rules = []Rule{
	{Name: "silent", Title: "No report of any engine", Severity: "critical", Silence: alarming, Minutes: 2, Below: 1,
		Text:  "No point of agp_engine came within 5 minutes: telegraf or the plugin is not running, or the database does not get its points.",
		Query: grouped(gauge("agp_engine", "up", "Engines", "count"))},
	{Name: "down", Title: "Engine is down", Severity: "critical", Silence: fine, Minutes: 2,
		Text: "An engine is being started again and again; last_error of agp_engine says why.",
		Query: grouped(tagged(Query{From: "agp_engine", Read: Count, Fields: []string{"state"}, Name: "Reports", Only: "restarting"}),
			place...)},
	{Name: "restarts", Title: "Engine was started again", Severity: "warning", Silence: fine, Sum: true,
		Text: "An engine died. Packets that were inside it are counted in packets_lost.", Query: grouped(growth("agp_engine", "restarts", "Restarts"), place...)},
	{Name: "drops", Title: "Packets are dropped", Severity: "warning", Silence: fine, Minutes: 5, Above: 0.01,
		Text:  "More than 1 % of the packets became no part of a flow. The dashboard of the engine shows the reasons; frames that are not IP are among them.",
		Query: grouped(ratio("agp_engine", "drops", "packets_seen", "Dropped"), place...)},
	{Name: "latency", Title: "Scores come late", Severity: "warning", Silence: fine, Minutes: 5, Above: 1e9,
		Text:  "One score in a hundred comes more than a second after its packet: the engine does not keep up.",
		Query: grouped(gauge("agp_engine", "packet_to_score_p99_ns", "99 %", "max"), place...)},
	{Name: "metrics", Title: "Metrics are dropped on the way to telegraf", Severity: "warning", Silence: fine, Sum: true,
		Text: "telegraf does not read as fast as the plugin writes; agp_runner says what was dropped.", Query: grouped(growth("agp_runner", "metrics_dropped", "Dropped"), "host")},
	{Name: "suppressed", Title: "Records or alerts are suppressed", Severity: "info", Silence: fine, Minutes: 5, Sum: true,
		Text:  "More than max_per_second records or alerts were found; the others are only counted.",
		Query: grouped(growth("agp_engine", "suppressed", "Suppressed"), place...)},
	{Name: "flood", Title: "Flood", Severity: "critical", Silence: fine, Sum: true,
		Text: "A flood, reflection or amplification was found; the dashboard of security names the victim.", Query: grouped(kinds(floodKinds), "host", "interface", "kind")},
	{Name: "scan", Title: "Scan", Severity: "warning", Silence: fine, Sum: true,
		Text: "An address is scanned or scans others; the dashboard of security names it.", Query: grouped(kinds(scanKinds), "host", "interface", "kind")},
	{Name: "channel", Title: "Hidden channel", Severity: "critical", Silence: fine, Sum: true,
		Text:  "A beacon, tunnel, covert channel or one-way push was found; the dashboard of security names both ends.",
		Query: grouped(kinds(channelKinds), "host", "interface", "kind")},
	{Name: "classified", Title: "Flow is classified as harmful", Severity: "warning", Silence: fine, Sum: true,
		Text: "The model of behaviour names a flow as harmful; its card says how often it errs.", Query: grouped(kinds(modelKinds), "host", "interface", "class")},
	{Name: "guessing", Title: "Passwords are guessed", Severity: "warning", Silence: fine, Sum: true,
		Text: "Many short connections to a service that asks for passwords.", Query: grouped(kinds(guessKinds), "host", "interface")},
	{Name: "gpu", Title: "GPU reports errors", Severity: "critical", Silence: fine, Sum: true,
		Text: "The driver reported a critical error (XID); last_xid of agp_gpu says which.", Query: grouped(growth("agp_gpu", "xid_errors", "XID"), "host", "index")},
}

// ruleFile is Grafana's provisioning file of all rules.
func ruleFile(l Language) settings {
	var rules []settings
	for i := range Rules {
		rules = append(rules, Rules[i].settings(l))
	}
	return settings{"apiVersion": 1, "groups": []settings{{
		"orgId": 1, "name": sourceUID(l), "folder": "AGP", "interval": "1m", "rules": rules,
	}}}
}

func (r *Rule) settings(l Language) settings {
	reducer := "last"
	if r.Sum {
		reducer = "sum"
	}
	operator, limit := "gt", r.Above
	if r.Below != 0 {
		operator, limit = "lt", r.Below
	}
	// Grafana puts environment variables in place of $NAMES in this file; $$ stands for $.
	text := strings.ReplaceAll(r.Query.Text(l), "$", "$$")
	query := settings{"refId": "A", "datasource": settings{"type": "influxdb", "uid": sourceUID(l)}, "rawQuery": true, "query": text,
		"intervalMs": 20000, "maxDataPoints": 100}
	if l == InfluxQL {
		query["resultFormat"] = "time_series"
	}
	expression := func(id, kind string, more settings) settings {
		model := settings{"refId": id, "type": kind, "datasource": settings{"type": "__expr__", "uid": "__expr__"}}
		for k, v := range more {
			model[k] = v
		}
		return settings{"refId": id, "datasourceUid": "__expr__", "model": model}
	}
	return settings{
		"uid": uid(r.Name, l), "title": r.Title, "condition": "C", "for": fmt.Sprintf("%dm", r.Minutes),
		"noDataState": r.Silence, "execErrState": "Error",
		"annotations": settings{"summary": r.Title, "description": r.Text},
		"labels":      settings{"severity": r.Severity, "program": "telegraf-agp"},
		"data": []settings{
			{"refId": "A", "datasourceUid": sourceUID(l), "relativeTimeRange": settings{"from": ruleRange, "to": 0}, "model": query},
			expression("B", "reduce", settings{"expression": "A", "reducer": reducer, "settings": settings{"mode": "dropNN"}}),
			expression("C", "threshold", settings{"expression": "B", "conditions": []settings{{"evaluator": settings{"type": operator, "params": []float64{limit}}}}}),
		},
	}
}
