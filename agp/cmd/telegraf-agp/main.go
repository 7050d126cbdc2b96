// Command telegraf-agp is the plugin, its engine and the tools around them in
// one binary. It owns the process: signals, exit codes, standard streams and the
// choice of subcommand; goroutines and clocks belong to the packages that it starts.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"

	"github.com/urfave/cli/v2"

	_ "github.com/agp-net/telegraf-agp/agp/cmd/telegraf-agp/internal/hangup" // before all others
	"github.com/agp-net/telegraf-agp/agp/engine"
	"github.com/agp-net/telegraf-agp/plugins/inputs/agp"
	_ "github.com/agp-net/telegraf-agp/plugins/processors/agp"
	"github.com/agp-net/telegraf-agp/plugins/runner"
)

// hardware is this machine's; tests have others.
var hardware engine.Hardware

// version is set by the linker; without it the module's version is used.
var version string

func main() {
	os.Exit(run(context.Background(), os.Args))
}

func run(ctx context.Context, args []string) int {
	app := &cli.App{
		Name:        "telegraf-agp",
		Usage:       "flows, applications, behaviour and anomalies of network traffic for telegraf",
		HideVersion: true, // the command says more
		Flags:       []cli.Flag{&cli.BoolFlag{Name: "sample-config", Usage: "print a sample configuration and exit"}},
		Commands:    commands(),
		Action: func(c *cli.Context) error {
			switch {
			case c.Bool("sample-config"):
				return runner.WriteSampleConfig(c.App.Writer, runner.Options{})
			case c.NArg() > 0:
				return fmt.Errorf("unknown command %q; %s --help lists them", c.Args().First(), c.App.Name)
			}
			return cli.ShowAppHelp(c)
		},
		ExitErrHandler: func(*cli.Context, error) {}, // below
	}
	err := app.RunContext(ctx, args)
	if err == nil {
		return 0
	}
	code := 1
	var exit cli.ExitCoder
	if errors.As(err, &exit) {
		code = exit.ExitCode()
	}
	if text := err.Error(); text != "" {
		fmt.Fprintln(os.Stderr, text)
	}
	return code
}

// commands of the binary, each in its own file.
func commands() []*cli.Command {
	list := []*cli.Command{runCommand(), engineCommand(), replayCommand(), doctorCommand(), modelCommand(), topCommand()}
	return append(append(append(list, setupCommands()...), controlCommands()...), versionCommand())
}

const defaultConfig = "/etc/telegraf-agp/agp.conf"

// runCommand leaves the arguments to the runner, which knows telegraf's spellings.
func runCommand() *cli.Command {
	return &cli.Command{
		Name:            "run",
		Usage:           "run the plugin that the configuration names, for telegraf's inputs.execd or processors.execd",
		ArgsUsage:       "[--config FILE] [--test] [--interval 10s] [--log-level info]",
		SkipFlagParsing: true,
		Action: func(c *cli.Context) error {
			o := runner.Options{}
			if _, err := os.Stat(defaultConfig); err == nil {
				o.Config = defaultConfig
			}
			return status(runner.Main(c.Context, c.Args().Slice(), programVersion(), o))
		},
	}
}

func engineCommand() *cli.Command {
	return &cli.Command{
		Name:   "engine",
		Usage:  "the packet pipeline; started by the plugin",
		Hidden: true,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "restore", Usage: "only put back what engines that crashed have left at ports, from the journals in `FOLDER`"},
			&cli.StringSliceFlag{Name: "interface", Usage: "with --restore: also remove their filters from `NAME`, which no engine has now"},
		},
		Action: func(c *cli.Context) error {
			if !c.IsSet("restore") {
				return engine.Main(c.Context, programVersion(), hardware.Build)
			}
			lines, err := engine.Restore(c.String("restore"), c.StringSlice("interface"))
			for _, l := range lines {
				fmt.Fprintln(c.App.Writer, l)
			}
			return err
		},
	}
}

func versionCommand() *cli.Command {
	return &cli.Command{
		Name:  "version",
		Usage: "print version, commit and Go version",
		Action: func(c *cli.Context) error {
			commit := "unknown"
			if info, ok := debug.ReadBuildInfo(); ok {
				for _, s := range info.Settings {
					if s.Key == "vcs.revision" {
						commit = s.Value
					}
				}
			}
			_, err := fmt.Fprintf(c.App.Writer, "%s %s (commit %s, %s, %s/%s)\n",
				c.App.Name, programVersion(), commit, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}

func programVersion() string {
	if version != "" {
		return version
	}
	return agp.Version()
}

// status turns an exit code into an error without a text.
func status(code int) error {
	if code == 0 {
		return nil
	}
	return cli.Exit("", code)
}
