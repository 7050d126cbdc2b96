package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/agp-net/telegraf-agp/agp/control"
	"github.com/agp-net/telegraf-agp/agp/telemetry/agppb"
)

// controlLimit is how long a plugin may take to answer.
const controlLimit = 30 * time.Second

// controlCommands are for a plugin that runs, through its socket.
func controlCommands() []*cli.Command {
	socket := &cli.StringFlag{Name: "socket", Value: control.DefaultSocket, Usage: "`PATH` of the plugin's socket (option socket of inputs.agp.enforce)"}
	ttl := &cli.DurationFlag{Name: "ttl", Usage: "lifetime of the rule (default: the plugin's)"}
	reason := &cli.StringFlag{Name: "reason", Usage: "`TEXT` that is shown with the rule"}
	return []*cli.Command{
		controlCommand(&cli.Command{
			Name: "block", Usage: "have the running plugin block an address or prefix", ArgsUsage: "PREFIX",
			Flags: []cli.Flag{ttl, reason, socket},
		}, 1, func(c *cli.Context, p *control.Client) error {
			r, err := p.Block(c.Args().First(), c.Duration("ttl"), c.String("reason"))
			return changed(c, r, err)
		}),
		controlCommand(&cli.Command{
			Name: "unblock", Usage: "have the running plugin take a rule away", ArgsUsage: "PREFIX",
			Flags: []cli.Flag{socket},
		}, 1, func(c *cli.Context, p *control.Client) error {
			if _, err := p.Unblock(c.Args().First()); err != nil {
				return err
			}
			_, err := fmt.Fprintf(c.App.Writer, "unblocked %s\n", c.Args().First())
			return err
		}),
		controlCommand(&cli.Command{
			Name: "rate-limit", Usage: "have the running plugin let only some packets per second of an address or prefix pass", ArgsUsage: "PREFIX PPS",
			Flags: []cli.Flag{ttl, reason, socket},
		}, 2, func(c *cli.Context, p *control.Client) error {
			pps, err := strconv.ParseUint(c.Args().Get(1), 10, 64)
			if err != nil {
				return cli.Exit(fmt.Sprintf("PPS = %q, want a whole number of packets per second", c.Args().Get(1)), exitUsage)
			}
			r, err := p.RateLimit(c.Args().First(), pps, c.Duration("ttl"), c.String("reason"))
			return changed(c, r, err)
		}),
		controlCommand(&cli.Command{
			Name: "blocked", Usage: "list the rules of the running plugin",
			Flags: []cli.Flag{
				&cli.StringFlag{Name: "output", Value: "table", Usage: "table, or json: one object per line"},
				&cli.BoolFlag{Name: "allowed", Usage: "list what is never blocked instead, and why"},
				socket,
			},
		}, 0, blocked),
	}
}

const exitUsage = 2

// controlCommand gives c an action that connects first. Options may stand before and
// after the arguments.
func controlCommand(c *cli.Command, args int, do func(*cli.Context, *control.Client) error) *cli.Command {
	c.SkipFlagParsing = true
	c.Action = func(ctx *cli.Context) error {
		own, err := anyOrder(ctx)
		switch {
		case errors.Is(err, flag.ErrHelp), err == nil && own.Bool("help"):
			return cli.ShowSubcommandHelp(ctx)
		case err != nil:
			return cli.Exit(fmt.Sprintf("%s: %v", c.Name, err), exitUsage)
		case own.NArg() != args:
			return cli.Exit("usage: "+strings.TrimSpace(fmt.Sprintf("%s %s [options] %s", ctx.App.Name, c.Name, c.ArgsUsage)), exitUsage)
		case own.Duration("ttl") < 0:
			return cli.Exit(fmt.Sprintf("%s: ttl = %s, want more than 0", c.Name, own.Duration("ttl")), exitUsage)
		}
		limited, cancel := context.WithTimeout(ctx.Context, controlLimit)
		defer cancel()
		p, err := control.Dial(limited, own.String("socket"))
		if err == nil {
			defer p.Close()
			err = do(own, p)
		}
		if errors.As(err, new(cli.ExitCoder)) || err == nil {
			return err
		}
		return fmt.Errorf("%s: %w", c.Name, err)
	}
	return c
}

// anyOrder parses the options of a command wherever they stand.
func anyOrder(ctx *cli.Context) (*cli.Context, error) {
	set := flag.NewFlagSet(ctx.Command.Name, flag.ContinueOnError)
	set.SetOutput(io.Discard)
	for _, f := range ctx.Command.Flags {
		if err := f.Apply(set); err != nil {
			return nil, err
		}
	}
	var args []string
	for rest := ctx.Args().Slice(); ; {
		if err := set.Parse(rest); err != nil {
			return nil, err
		}
		// What follows "--" is arguments.
		if used := len(rest) - set.NArg(); used > 0 && rest[used-1] == "--" {
			args = append(args, set.Args()...)
			break
		}
		if set.NArg() == 0 {
			break
		}
		args, rest = append(args, set.Arg(0)), set.Args()[1:]
	}
	if err := set.Parse(append([]string{"--"}, args...)); err != nil {
		return nil, err
	}
	return cli.NewContext(ctx.App, set, ctx), nil
}

// changed says what became of a block or a rate limit.
func changed(c *cli.Context, r *agppb.ControlReply, err error) error {
	if err != nil {
		return err
	}
	rule := r.GetRule()
	what := "blocked"
	if n := rule.GetPacketsPerSecond(); n > 0 {
		what = fmt.Sprintf("limited to %d packets/s", n)
	}
	note := ""
	switch {
	case r.GetState().GetDryRun():
		note = " (dry run: only counted)"
	case !r.GetState().GetEngineUp():
		note = " (when the engine is up again)"
	}
	_, err = fmt.Fprintf(c.App.Writer, "%s %s for %s%s\n", shown(rule.GetPrefix()), what,
		time.Duration(rule.GetExpiresNs()-rule.GetCreatedNs()).Round(time.Second), note)
	return err
}

// shown is a prefix without the length of a single address.
func shown(prefix string) string {
	if p, err := netip.ParsePrefix(prefix); err == nil && p.IsSingleIP() {
		return p.Addr().String()
	}
	return prefix
}

// blockedRule is one line of blocked --output json.
type blockedRule struct {
	Prefix           string    `json:"prefix"`
	Action           string    `json:"action"`
	PacketsPerSecond uint64    `json:"packets_per_second,omitempty"`
	Created          time.Time `json:"created"`
	Expires          time.Time `json:"expires"`
	By               string    `json:"by"`
	Reason           string    `json:"reason,omitempty"`
	DryRun           bool      `json:"dry_run"`
}

type allowedPrefix struct {
	Prefix string `json:"prefix"`
	Why    string `json:"why"`
}

func blocked(c *cli.Context, p *control.Client) error {
	asJSON := c.String("output") == "json"
	if !asJSON && c.String("output") != "table" {
		return cli.Exit(fmt.Sprintf("blocked: output = %q, want table or json", c.String("output")), exitUsage)
	}
	enc := json.NewEncoder(c.App.Writer)
	state, err := p.Status() // for the dry run and the allow list
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(c.App.Writer, 0, 8, 2, ' ', 0)
	if c.Bool("allowed") {
		for _, a := range state.GetAllowed() {
			if asJSON {
				err = enc.Encode(allowedPrefix{a.GetPrefix(), a.GetWhy()})
			} else {
				_, err = fmt.Fprintf(table, "%s\t%s\n", shown(a.GetPrefix()), a.GetWhy())
			}
			if err != nil {
				return err
			}
		}
		return table.Flush()
	}
	if !asJSON {
		fmt.Fprintln(table, "PREFIX\tACTION\tEXPIRES IN\tBY\tREASON")
	}
	now := time.Now()
	if _, err := p.List(func(r *agppb.ControlRule) error {
		b := blockedRule{
			Prefix: r.GetPrefix(), Action: "block", PacketsPerSecond: r.GetPacketsPerSecond(), By: r.GetBy(), Reason: r.GetReason(),
			Created: time.Unix(0, r.GetCreatedNs()).UTC(), Expires: time.Unix(0, r.GetExpiresNs()).UTC(), DryRun: state.GetDryRun(),
		}
		if b.PacketsPerSecond > 0 {
			b.Action = "rate_limit"
		}
		if asJSON {
			return enc.Encode(b)
		}
		action := b.Action
		if b.PacketsPerSecond > 0 {
			action = fmt.Sprintf("%d packets/s", b.PacketsPerSecond)
		}
		left := max(0, b.Expires.Sub(now)).Round(time.Second)
		_, err := fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", shown(b.Prefix), action, left, b.By, b.Reason)
		return err
	}); err != nil {
		return err
	}
	if asJSON {
		return nil
	}
	if err := table.Flush(); err != nil {
		return err
	}
	mode := "enforced"
	if state.GetDryRun() {
		mode = "dry run: only counted"
	}
	if !state.GetEngineUp() {
		mode += ", no engine is up"
	}
	_, err = fmt.Fprintf(os.Stderr, "%d of %d rules, %s\n", state.GetBlocked()+state.GetRateLimited(), state.GetMaxEntries(), mode)
	return err
}
