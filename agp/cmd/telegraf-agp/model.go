package main

import (
	"github.com/urfave/cli/v2"

	"github.com/agp-net/telegraf-agp/agp/model/modelcmd"
)

// modelCommand joins what needs only model files with what needs the packet path.
func modelCommand() *cli.Command {
	c := modelcmd.Command()
	c.Subcommands = append(c.Subcommands, featuresCommand(), evalCommand())
	return c
}
