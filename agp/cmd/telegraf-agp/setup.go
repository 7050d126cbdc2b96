package main

import (
	"fmt"
	"path/filepath"

	"github.com/urfave/cli/v2"

	"github.com/agp-net/telegraf-agp/agp/cmd/telegraf-agp/internal/setup"
)

// setupCommands put the plugin into the telegraf of this machine. The hidden ones are
// for the scripts of a package.
func setupCommands() []*cli.Command {
	dryRun := &cli.BoolFlag{Name: "dry-run", Usage: "only say what would be done"}
	force := &cli.BoolFlag{Name: "force", Usage: "also if telegraf would not start without the section"}
	root := &cli.StringFlag{Name: "root", Usage: "`FOLDER` that holds etc and usr", Value: "/", Hidden: true}
	site := func(c *cli.Context) *setup.Site {
		return &setup.Site{Root: c.String("root"), Out: c.App.Writer, DryRun: c.Bool("dry-run")}
	}
	return []*cli.Command{
		{
			Name: "enable", Usage: "put the plugin's section into telegraf's configuration",
			Description: "Writes " + setup.Section + " unless it is there. Changes that were made to it are kept.\n" +
				"If telegraf's configuration does not load afterwards, it is taken out again.",
			Flags: []cli.Flag{dryRun, root},
			Action: func(c *cli.Context) error {
				if err := site(c).Enable(c.Context); err != nil || c.Bool("dry-run") {
					return err
				}
				m := machine{root: c.String("root"), config: filepath.Join(c.String("root"), defaultConfig)}
				if _, f := m.configuration(); f.level != levelOK {
					report(c.App.Writer, []finding{f})
				}
				_, err := fmt.Fprintln(c.App.Writer, "telegraf reads it when it starts: systemctl restart telegraf")
				return err
			},
		},
		{
			Name: "disable", Usage: "take the plugin's section out of telegraf's configuration",
			Description: "Removes " + setup.Section + ", or renames it to " + setup.Disabled + " if it was changed.",
			Flags:       []cli.Flag{dryRun, force, root},
			Action:      func(c *cli.Context) error { return site(c).Disable(c.Context, c.Bool("force")) },
		},
		{
			Name: "setup", Usage: "what a package does", Hidden: true,
			Subcommands: []*cli.Command{
				{Name: "configure", Usage: "after it was installed", Flags: []cli.Flag{root}, Action: func(c *cli.Context) error { return site(c).Configure(c.Context) }},
				{Name: "remove", Usage: "before it goes", Flags: []cli.Flag{root}, Action: func(c *cli.Context) error { return site(c).Remove(c.Context) }},
			},
		},
	}
}
