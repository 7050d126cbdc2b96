// Command agp-engine-simt is the engine on a machine with a GPU that is emulated, for tests that
// need it as a process of its own. It is started below the repository, whose device code
// it compiles.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/agp-net/telegraf-agp/agp/engine"
	"github.com/agp-net/telegraf-agp/tests/simt/machine"
)

func main() {
	if err := engine.Main(context.Background(), "emulated", machine.Emulated().Build); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
