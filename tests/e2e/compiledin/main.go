// Command compiledin is a telegraf with this project's plugins linked in, the
// alternative to running them under inputs.execd. Its only argument is a
// telegraf.conf. Goroutines and clocks are telegraf's.
package main

import (
	"context"
	"fmt"
	"os"

	_ "github.com/agp-net/telegraf-agp/plugins/aggregators/agp"
	_ "github.com/influxdata/telegraf/plugins/inputs/suricata" // flows for the processor

	_ "github.com/agp-net/telegraf-agp/plugins/inputs/agp"
	_ "github.com/agp-net/telegraf-agp/plugins/processors/agp"
	"github.com/agp-net/telegraf-agp/tests/e2e/agent"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: compiledin telegraf.conf")
		os.Exit(2)
	}
	if err := agent.Run(context.Background(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "E!", err)
		os.Exit(1)
	}
}
