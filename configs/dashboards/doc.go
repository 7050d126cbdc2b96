// Package dashboards holds the Grafana dashboards and alert rules of the plugin's
// metrics. A panel says what it reads as a Query; the InfluxQL and the Flux text of it
// are produced from that, so that both variants always show the same. The files
// in influxql, flux and provisioning are generated and committed.
//
// The dashboards expect the tag "host", which telegraf adds unless it is told not to.
// The package has no state, starts no goroutine and reads no clock.
package dashboards

//go:generate go run ./cmd/agp-dashboards
