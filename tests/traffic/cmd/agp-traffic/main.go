// Command agp-traffic writes a synthetic capture, from one goroutine. Times are the
// generator's; it reads no clock.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"

	"github.com/agp-net/telegraf-agp/tests/traffic"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "agp-traffic:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	set := flag.NewFlagSet("agp-traffic", flag.ContinueOnError)
	profile := set.String("profile", "demo", "demo, bench, flood or million-flows")
	seed := set.Uint64("seed", 1, "seed of the random numbers")
	output := set.String("o", "", "pcap `file` to write")
	truth := set.String("truth", "", "JSON `file` to write what the capture holds to")
	packets := set.Int("packets", 2_000_000, "packets of the profiles bench and flood")
	flows := set.Int("flows", 0, "flows of the profiles bench (100,000) and million-flows (1,000,000)")
	if err := set.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	if *output == "" {
		return errors.New("-o FILE is required")
	}
	c, err := build(*profile, *seed, *packets, *flows)
	if err != nil {
		return err
	}
	if err := write(c, *output); err != nil {
		return err
	}
	if *truth == "" {
		return nil
	}
	text, err := json.MarshalIndent(c.Summary(*profile, *seed), "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(*truth, append(text, '\n'), 0o644)
}

func build(profile string, seed uint64, packets, flows int) (*traffic.Capture, error) {
	switch profile {
	case "demo":
		return traffic.Demo(seed), nil
	case "bench":
		if flows == 0 {
			flows = 100_000
		}
		if flows < 100 || packets < 12*flows {
			return nil, fmt.Errorf("bench needs at least 100 flows and 12 packets per flow, not %d and %d packets", flows, packets)
		}
		return traffic.Bench(seed, packets, flows), nil
	case "flood":
		return traffic.Flood(seed, packets), nil
	case "million-flows":
		if flows == 0 {
			flows = 1_000_000
		}
		return traffic.ManyFlows(seed, flows), nil
	default:
		return nil, fmt.Errorf("unknown profile %q (want demo, bench, flood or million-flows)", profile)
	}
}

// write goes through a temporary name, so that a cached capture is always whole.
func write(c *traffic.Capture, path string) error {
	f, err := os.Create(path + ".part")
	if err != nil {
		return err
	}
	err = errors.Join(c.WritePcap(f), f.Close())
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return os.Rename(f.Name(), path)
}
