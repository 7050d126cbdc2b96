package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"github.com/agp-net/telegraf-agp/agp/control"
	"github.com/agp-net/telegraf-agp/agp/top"
)

// Of a frame that is printed for scripts.
const (
	onceWidth  = 100
	onceHeight = 1000 // nothing is left out
)

func topCommand() *cli.Command {
	return &cli.Command{
		Name:        "top",
		Usage:       "watch the engine of a running plugin",
		Description: "Shows traffic, classes, top talkers, alerts, queues, latency and GPUs. Keys: q ends, tab changes the top list, p pauses.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "socket", Value: control.DefaultViewSocket, Usage: "`PATH` of the plugin's socket for viewers (option view_socket of inputs.agp)"},
			&cli.BoolFlag{Name: "once", Usage: "print one frame as plain text, with rates over a second, and exit"},
		},
		Action: watch,
	}
}

func watch(c *cli.Context) error {
	if c.NArg() > 0 {
		return cli.Exit(fmt.Sprintf("usage: %s top [options]", c.App.Name), exitUsage)
	}
	if !c.Bool("once") && !term.IsTerminal(int(os.Stdout.Fd())) {
		return cli.Exit("top: the output is no terminal; --once prints a frame", exitUsage)
	}
	f := &follower{ctx: c.Context, path: c.String("socket")}
	first, err := f.next()
	if err != nil {
		return fmt.Errorf("top: %w", err)
	}
	if c.Bool("once") {
		defer f.close()
		var s top.Screen
		s.Update(first)
		if v, err := f.next(); err == nil { // the plugin may end just now
			s.Update(v)
		}
		_, err := fmt.Fprintln(c.App.Writer, ansi.Strip(s.Render(onceWidth, onceHeight)))
		return err
	}
	m := top.NewModel(f.next)
	m.Screen.Update(first)
	_, err = tea.NewProgram(m, tea.WithContext(c.Context)).Run()
	if errors.Is(err, tea.ErrInterrupted) {
		return nil
	}
	return err
}

// follower stays with an engine whose plugin is started anew.
type follower struct {
	ctx    context.Context
	path   string
	viewer *control.Viewer // nil: not connected
}

func (f *follower) next() (v *control.View, err error) {
	if f.viewer == nil {
		if f.viewer, err = control.DialView(f.ctx, f.path); err != nil {
			f.viewer = nil
			return nil, err
		}
	}
	if v, err = f.viewer.Next(); err != nil {
		f.close()
	}
	return v, err
}

func (f *follower) close() {
	if f.viewer != nil {
		_ = f.viewer.Close()
		f.viewer = nil
	}
}
