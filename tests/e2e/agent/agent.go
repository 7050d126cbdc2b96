// Package agent is the rest of a telegraf that has plugins of other modules
// compiled in: a main package needs this one and a blank import per plugin. It
// brings the few outputs that the tests use. Goroutines and clocks are telegraf's.
package agent

import (
	"context"
	"os/signal"
	"syscall"

	"github.com/influxdata/telegraf/agent"
	"github.com/influxdata/telegraf/config"
	"github.com/influxdata/telegraf/logger"
	_ "github.com/influxdata/telegraf/plugins/outputs/file"     // output
	_ "github.com/influxdata/telegraf/plugins/outputs/influxdb" // output
	_ "github.com/influxdata/telegraf/plugins/parsers/influx"   // format
	_ "github.com/influxdata/telegraf/plugins/serializers/influx"
)

// Run runs the agent with a configuration file until the context ends or
// SIGTERM or SIGINT comes.
func Run(ctx context.Context, path string) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	c := config.NewConfig()
	if err := c.LoadAll(path); err != nil {
		return err
	}
	if err := logger.SetupLogging(&logger.Config{LogFormat: "text"}); err != nil {
		return err
	}
	return agent.NewAgent(c).Run(ctx)
}
