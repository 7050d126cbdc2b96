package agp

import (
	_ "embed"
	"errors"
	"fmt"
	"slices"

	"github.com/influxdata/telegraf"
	"github.com/influxdata/telegraf/plugins/aggregators"
)

//go:embed sample.conf
var sampleConfig string

// ErrConfig wraps every complaint about the configuration; its message names the key, the value and
// what is allowed.
var ErrConfig = errors.New("invalid configuration")

// AGP is the plugin. Exported fields are the configuration, see sample.conf.
type AGP struct {
	GroupBy     []string `toml:"group_by"`
	TopK        int      `toml:"top_k"`
	SketchState bool     `toml:"sketch_state"`
	MaxSources  int      `toml:"max_sources"`

	Log telegraf.Logger `toml:"-"`

	merge *merge
}

// New returns a plugin with the defaults of sample.conf.
func New() *AGP { return &AGP{TopK: 10, MaxSources: 10_000} }

func init() {
	aggregators.Add("agp", func() telegraf.Aggregator { return New() })
}

// SampleConfig implements telegraf.PluginDescriber.
func (*AGP) SampleConfig() string { return sampleConfig }

// own are the tags that say which sketch or list a metric is.
var own = []string{"metric", "rank", "sketch"}

// Init implements telegraf.Initializer.
func (a *AGP) Init() error {
	var errs []error
	bad := func(is bool, key string, value any, allowed string) {
		if is {
			errs = append(errs, fmt.Errorf("%w: %s = %v, allowed: %s", ErrConfig, key, value, allowed))
		}
	}
	bad(a.TopK < 1 || a.TopK > maxRows, "top_k", a.TopK, fmt.Sprintf("1 to %d", maxRows))
	bad(a.MaxSources < 1 || a.MaxSources > 10_000_000, "max_sources", a.MaxSources, "1 to 10000000")
	for _, name := range a.GroupBy {
		bad(name == "" || slices.Contains(own, name), "group_by", fmt.Sprintf("%q", a.GroupBy), `names of tags but "metric", "rank" and "sketch"`)
	}
	a.Reset()
	return errors.Join(errs...)
}

// Add implements telegraf.Aggregator.
func (a *AGP) Add(in telegraf.Metric) { a.merge.add(in) }

// Push implements telegraf.Aggregator.
func (a *AGP) Push(acc telegraf.Accumulator) { a.merge.push(acc) }

// Reset implements telegraf.Aggregator.
func (a *AGP) Reset() { a.merge = newMerge(a) }
