// Package e2e tests plugins in the company they run in: a stock telegraf, its
// inputs.execd and processors.execd, and a real InfluxDB. The test binary itself
// plays the plugin process and the telegraf that has a plugin compiled in.
package e2e
