package runner

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/influxdata/telegraf"
)

// Main parses the arguments of a program that only runs plugins, without the
// program's name, and calls Run. Fields of o that no argument sets stay.
func Main(ctx context.Context, args []string, version string, o Options) int {
	o.setDefaults()
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&o.Config, "config", o.Config, "configuration `file`")
	flags.DurationVar(&o.Interval, "interval", o.Interval, "gather `interval`; 0 gathers on request only")
	level := flags.String("log-level", "", "`level`: error, warn, info, debug, trace")
	test := flags.Bool("test", false, "gather once, print the metrics and stop")
	wait := flags.Duration("test-wait", time.Second, "how long --test waits for metrics")
	sample := flags.Bool("sample-config", false, "print a sample configuration")
	show := flags.Bool("version", false, "print the version")
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		flags.SetOutput(o.Stdout)
		flags.PrintDefaults()
		return ExitOK
	case err != nil:
	case flags.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case *level != "":
		if o.LogLevel = telegraf.LogLevelFromString(*level); o.LogLevel == telegraf.None {
			err = fmt.Errorf("unknown log level %q", *level)
		}
	}
	if err != nil {
		fmt.Fprintf(o.Stderr, "E! %v\n", err)
		return ExitConfig
	}
	switch {
	case *show:
		fmt.Fprintln(o.Stdout, version)
		return ExitOK
	case *sample:
		if err := WriteSampleConfig(o.Stdout, o); err != nil {
			fmt.Fprintf(o.Stderr, "E! %v\n", err)
			return ExitFault
		}
		return ExitOK
	case *test:
		o.Test = *wait
	}
	return Run(ctx, o)
}

// WriteSampleConfig prints the sample configuration of every registered plugin,
// inputs first.
func WriteSampleConfig(w io.Writer, o Options) error {
	o.setDefaults()
	for _, name := range slices.Sorted(maps.Keys(o.Inputs)) {
		if _, err := fmt.Fprint(w, o.Inputs[name]().SampleConfig()); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(o.Processors)) {
		if _, err := fmt.Fprint(w, o.Processors[name]().SampleConfig()); err != nil {
			return err
		}
	}
	return nil
}
