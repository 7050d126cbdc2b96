package runner

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/influxdata/telegraf"
	"github.com/influxdata/telegraf/config"
	"github.com/influxdata/telegraf/plugins/inputs"
	"github.com/influxdata/telegraf/plugins/processors"
)

// defaultToy is the toy input as its creator leaves it.
func defaultToy() telegraf.Input {
	return &toyInput{Text: "default", Count: 3, Timeout: config.Duration(time.Minute)}
}

func loadText(text string) (*section, error) {
	o := Options{
		Config:       "agp.conf",
		ConfigReader: strings.NewReader(text),
		Inputs:       map[string]inputs.Creator{"toy": defaultToy},
		Processors:   oneProcessor(&toyProcessor{}),
	}
	return load(&o)
}

func mustLoad(t *testing.T, text string) *toyInput {
	t.Helper()
	s, err := loadText(text)
	require.NoError(t, err)
	return s.input.(*toyInput)
}

func TestConfigKeepsTheCreatorsDefaults(t *testing.T) {
	in := mustLoad(t, "[[inputs.toy]]\n  text = \"set\"\n")
	require.Equal(t, "set", in.Text)
	require.Equal(t, 3, in.Count)
	require.EqualValues(t, time.Minute, in.Timeout)
}

func TestConfigReadsTelegrafTypes(t *testing.T) {
	in := mustLoad(t, `
[[ inputs . "toy" ]] # a comment with ]]
  timeout = "1d"
  size = "64MiB"
  times = [1, "2s", 0.5]
  [[inputs.toy.models]]
    path = 'a'
    timeout = 10
  [[inputs.toy.models]]
    path = "b"
    timeout = 1_0.5
`)
	require.EqualValues(t, 24*time.Hour, in.Timeout)
	require.EqualValues(t, 64<<20, in.Size)
	require.Equal(t, []config.Duration{config.Duration(time.Second), config.Duration(2 * time.Second), config.Duration(time.Second / 2)}, in.Times)
	require.Equal(t, []toyModel{{"a", config.Duration(10 * time.Second)}, {"b", config.Duration(10500 * time.Millisecond)}}, in.Models)

	in = mustLoad(t, "[[inputs.toy]]\nmodels = [{path = \"x\", timeout = 7}]\nsize = 5\n")
	require.Equal(t, []toyModel{{"x", config.Duration(7 * time.Second)}}, in.Models)
	require.EqualValues(t, 5, in.Size)
}

// The same section means the same here and in telegraf.conf.
func TestConfigEqualsTelegraf(t *testing.T) {
	t.Setenv("TOY_TEXT", `with "quotes" and \backslash`)
	t.Setenv("TOY_PLAIN", "plain")
	t.Setenv("TOY_COUNT", "42")
	t.Setenv("TOY_EMPTY", "")
	inputs.Add("toy", defaultToy)
	defer delete(inputs.Inputs, "toy")
	for _, body := range []string{
		``,
		`text = "x"`,
		`timeout = "1d"`, `timeout = "1d12h"`, `timeout = "1.5d"`, `timeout = 10`, `timeout = 1.5`, `timeout = "90"`, `timeout = ""`,
		`size = 52`, `size = "52"`, `size = "1KiB"`, `size = "3MB"`,
		`times = ["1s", "2m"]`,
		"[[inputs.toy.models]]\npath = \"a\"\ntimeout = 3",
		`interval = "10s"`, `interval = 10`, `alias = "x"`, `log_level = "debug"`,
		`text = "$TOY_PLAIN"`, `text = "${TOY_PLAIN}"`, `text = "a${TOY_PLAIN}b$TOY_PLAIN"`, `text = '${TOY_PLAIN}'`,
		`text = "$TOY_UNSET ${TOY_UNSET}"`, `text = "${TOY_UNSET:-fallback}"`, `text = "${TOY_EMPTY:-fallback}"`, `text = "${TOY_EMPTY-fallback}"`,
		`text = "$$TOY_PLAIN"`, `text = "costs 5$"`, `text = "${1}"`, `text = "^(a|b)$"`,
		`count = ${TOY_COUNT}`, `count = $TOY_COUNT`, "# $TOY_TEXT ${TOY_UNSET:?must be set}\ntext = \"x\"",
		"text = \"\"\"\n${TOY_PLAIN}\n\"\"\"", `text = "#${TOY_PLAIN}"`, `text = "it's ${TOY_PLAIN}" # it's $TOY_TEXT`,
	} {
		t.Run(body, func(t *testing.T) {
			doc := "[[inputs.toy]]\n" + body + "\n"
			c := config.NewConfig()
			c.Agent.Quiet = true
			require.NoError(t, c.LoadConfigData([]byte(doc), config.EmptySourcePath))
			require.Len(t, c.Inputs, 1)
			want := c.Inputs[0].Input.(*toyInput)
			got := mustLoad(t, doc)
			require.Equal(t, want.Text, got.Text)
			require.Equal(t, want.Count, got.Count)
			require.Equal(t, want.Timeout, got.Timeout)
			require.Equal(t, want.Size, got.Size)
			require.Equal(t, want.Times, got.Times)
			require.Equal(t, want.Models, got.Models)
		})
	}
}

// Where telegraf would let a value break the file open, it stays a value.
func TestConfigEnvironmentIsData(t *testing.T) {
	t.Setenv("EVIL", "x\"\ncount = 666 # '\\")
	in := mustLoad(t, "[[inputs.toy]]\n  text = \"${EVIL}\"\n")
	require.Equal(t, "x\"\ncount = 666 # '\\", in.Text)
	require.Equal(t, 3, in.Count)

	for _, text := range []string{"[[inputs.toy]]\n  text = '${EVIL}'\n", "[[inputs.toy]]\n  count = ${EVIL}\n"} {
		_, err := loadText(text)
		require.ErrorIs(t, err, ErrSyntax)
		require.ErrorContains(t, err, "agp.conf: ")
		require.ErrorContains(t, err, "line 2: environment variable EVIL")
	}
	_, err := loadText("[[inputs.toy]]\n  text = \"${TOY_UNSET:?say which}\"\n")
	require.ErrorIs(t, err, ErrSyntax)
	require.ErrorContains(t, err, "say which")
}

// The position of an error is that in the file, also after a value of several lines.
func TestConfigErrorsNameFileKeyAndLine(t *testing.T) {
	t.Setenv("LINES", "1\n2\n3")
	for _, c := range []struct {
		name, text string
		is         error
		want       string
	}{
		{"unknown key", "\n[[inputs.toy]]\n  text = \"${LINES}\"\n  colour = 1\n", ErrUnknownKey, `agp.conf: line 4: unknown key "colour" in [[inputs.toy]]`},
		{"two unknown keys", "[[inputs.toy]]\na = 1\nb = 2\n", ErrUnknownKey, `line 2: unknown key "a" in [[inputs.toy]]; line 3: unknown key "b" in [[inputs.toy]]`},
		{"unknown key below", "[[inputs.toy]]\n[[inputs.toy.models]]\n  colour = 1\n", ErrUnknownKey, `line 3: unknown key "models.colour"`},
		{"unknown table", "[[inputs.toy]]\n[inputs.toy.sub]\n", ErrUnknownKey, `line 2: unknown key "sub"`},
		{"key of the agent", "[[inputs.toy]]\n  name_override = \"x\"\n", ErrUnknownKey, `line 2: unknown key "name_override" in [[inputs.toy]]: telegraf's agent obeys it, set it in the execd section`},
		{"table of the agent", "[[inputs.toy]]\n[inputs.toy.tags]\n  a = \"b\"\n", ErrUnknownKey, `telegraf's agent obeys it`},
		{"field that is not configuration", "[[inputs.toy]]\n  Log = 1\n", ErrUnknownKey, `line 2: unknown key "Log"`},
		{"key before the section", "colour = 1\n[[inputs.toy]]\n", ErrUnknownKey, `line 1: unknown key "colour" outside of a section`},
		{"wrong type", "[[inputs.toy]]\n  count = \"many\"\n", ErrSyntax, `line 2, column 11: cannot read configuration: inputs.toy.count = "many" is of type string, allowed: a whole number`},
		{"wrong type of a list", "[[inputs.toy]]\n  models = 7 # seven\n", ErrSyntax, `inputs.toy.models = 7 is of type integer, allowed: a list`},
		{"bad duration", "[[inputs.toy]]\n\n  timeout = \"soon\"\n", ErrSyntax, `line 3, column 13: cannot read configuration`},
		{"bad interval", "[[inputs.toy]]\n  interval = \"-1s\"\n", ErrSyntax, `interval -1s is negative`},
		{"bad level", "[[inputs.toy]]\n  log_level = \"loud\"\n", ErrSyntax, `log_level "loud" is none of`},
		{"not TOML", "[[inputs.toy]]\n  text = \n", ErrSyntax, `line 2, column 10: cannot read configuration`},
		{"key twice", "[[inputs.toy]]\n  text = \"a\"\n  text = \"b\"\n", ErrSyntax, `line 3, column 3`},
		{"no section", "# nothing\n", ErrSections, `no section found; want exactly one`},
		{"empty", "", ErrSections, `no section found`},
		{"agent section", "[agent]\n  interval = \"1s\"\n[[inputs.toy]]\n", ErrSections, `line 1: [agent] is not for this file but for telegraf.conf`},
		{"output section", "[[inputs.toy]]\n[[outputs.file]]\n", ErrSections, `line 2: [outputs.file] is not for this file`},
		{"two inputs", "[[inputs.toy]]\n[[inputs.toy]]\n", ErrSections, `line 2: a second section, inputs.toy, after inputs.toy in line 1`},
		{"table of another", "[[inputs.toy]]\n[inputs.other.x]\n", ErrSections, `line 2: [inputs.other.x] is not below its section`},
		{"only the kind", "[inputs]\n", ErrSections, `line 1: [inputs] is not for this file`},
		{"unknown plugin", "\n[[inputs.tow]]\n", ErrUnknownPlugin, `line 2: unknown plugin inputs.tow; this binary has inputs.toy, processors.toy`},
		{"processor by the name of an input", "[[processors.none]]\n", ErrUnknownPlugin, `unknown plugin processors.none`},
		{"too large", "[[inputs.toy]]\n#" + strings.Repeat("x", maxConfig), ErrSyntax, `larger than`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := loadText(c.text)
			require.ErrorIs(t, err, c.is)
			require.ErrorContains(t, err, "agp.conf")
			require.ErrorContains(t, err, c.want)
			require.NotContains(t, oneLine(err.Error()), "\n")
		})
	}
}

func TestConfigFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agp.conf")
	o := Options{Config: path, Inputs: oneInput(&toyInput{})}
	_, err := load(&o)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, path)

	require.NoError(t, os.WriteFile(path, []byte("[[inputs.toy]]\n  text = \"x\"\n"), 0o600))
	s, err := load(&o)
	require.NoError(t, err)
	require.Equal(t, "x", s.input.(*toyInput).Text)
}

func TestConfigIsOptionalForOnePlugin(t *testing.T) {
	s, err := load(&Options{Inputs: map[string]inputs.Creator{"toy": defaultToy}})
	require.NoError(t, err)
	require.Equal(t, "default", s.input.(*toyInput).Text)
	s, err = load(&Options{Processors: oneProcessor(&toyProcessor{})})
	require.NoError(t, err)
	require.Equal(t, "processors.toy", s.name)
	_, err = load(&Options{Inputs: oneInput(&toyInput{}), Processors: oneProcessor(&toyProcessor{})})
	require.ErrorIs(t, err, ErrSections)
	require.ErrorContains(t, err, "inputs.toy, processors.toy")
	_, err = load(&Options{})
	require.ErrorIs(t, err, ErrSections)
}

// plainProcessor is not a streaming one; telegraf wraps it, and its
// configuration must reach what is inside.
type plainProcessor struct {
	Text string          `toml:"text"`
	Log  telegraf.Logger `toml:"-"`
}

func (*plainProcessor) SampleConfig() string { return "" }

func (p *plainProcessor) Apply(in ...telegraf.Metric) []telegraf.Metric {
	for _, m := range in {
		m.AddTag("text", p.Text)
	}
	p.Log.Debug("applied")
	return in
}

func TestWrappedProcessorGetsItsConfiguration(t *testing.T) {
	p := &plainProcessor{}
	h := launch(t, Options{
		ConfigReader: strings.NewReader("[[processors.plain]]\ntext = \"x\"\nlog_level = \"debug\"\n"),
		Processors: map[string]processors.StreamingCreator{"plain": func() telegraf.StreamingProcessor {
			return processors.NewStreamingProcessorFromProcessor(p)
		}},
	}, false)
	_, err := h.stdin.WriteString("m v=1i 1\n")
	require.NoError(t, err)
	require.Equal(t, ExitOK, h.stopByEOF())
	require.Equal(t, "m,text=x v=1i 1\n", h.out.String())
	require.Equal(t, "D! applied\n", h.stderr.String())
}

func TestChecklist01_ArgumentsAndStrictConfiguration(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agp.conf")
	require.NoError(t, os.WriteFile(path, []byte("[[inputs.toy]]\n"), 0o600))
	processor, typo := path+".processor", path+".typo"
	require.NoError(t, os.WriteFile(processor, []byte("[[processors.toy]]\n"), 0o600))
	require.NoError(t, os.WriteFile(typo, []byte("[[inputs.toy]]\ntxet = 1\n"), 0o600))
	in := &toyInput{gather: func(acc telegraf.Accumulator) error {
		acc.AddFields("m", value(1), nil, time.Unix(0, 1))
		return nil
	}}
	run := func(args ...string) (code int, stdout, stderr string) {
		var out, log bytes.Buffer
		code = Main(t.Context(), args, "1.2.3", Options{
			Inputs: oneInput(in), Processors: oneProcessor(&toyProcessor{}),
			Stdin: strings.NewReader(""), Stdout: &out, Stderr: &log, SelfInterval: -1,
		})
		return code, out.String(), log.String()
	}
	for _, c := range []struct {
		args           []string
		code           int
		stdout, stderr string
	}{
		{[]string{"--version"}, ExitOK, "1.2.3\n", ""},
		{[]string{"--sample-config"}, ExitOK, in.SampleConfig() + "[[processors.toy]]\n", ""},
		{[]string{"--config", path}, ExitOK, "", ""},
		{[]string{"-config", path, "--test", "--test-wait", "50ms"}, ExitOK, "m value=1i 1\n", ""},
		{[]string{"--config", path, "--log-level", "loud"}, ExitConfig, "", "E! unknown log level \"loud\"\n"},
		{[]string{"--config", processor}, ExitOK, "", ""}, // both plugins in one binary, a file each
		{[]string{"--config", typo}, ExitConfig, "", "E! " + typo + ": line 2: unknown key \"txet\" in [[inputs.toy]]\n"},
		{[]string{"--wrong"}, ExitConfig, "", "E! flag provided but not defined: -wrong\n"},
		{[]string{"wrong"}, ExitConfig, "", "E! unexpected argument \"wrong\"\n"},
	} {
		t.Run(fmt.Sprint(c.args), func(t *testing.T) {
			code, stdout, stderr := run(c.args...)
			require.Equal(t, c.code, code)
			require.Equal(t, c.stdout, stdout)
			require.Equal(t, c.stderr, stderr)
		})
	}
	code, stdout, _ := run("--help")
	require.Equal(t, ExitOK, code)
	require.Contains(t, stdout, "configuration file")
	code, _, stderr := run("--config", path+".none")
	require.Equal(t, ExitConfig, code)
	require.Regexp(t, `^E! [^\n]*no such file or directory\n$`, stderr)
}

func FuzzConfig(f *testing.F) {
	for _, seed := range []string{
		"[[inputs.toy]]\n  text = \"${A:-b}\"\n  times = [1, \"2s\"]\n", "[[inputs.toy]]\n[[inputs.toy.models]]\ntimeout = 1\n",
		"[ [ inputs.toy ] ]", "[[inputs.toy]]\nmodels = [{timeout = 1}]", "text = '''\n$", "[inputs]\ntoy = [{}]\n", "[[inputs.toy]]\nmodels.timeout = 1",
		"[[inputs.toy]]\nmodels = 1\n[[inputs.toy.models]]\n",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := loadText(text)
		if err == nil {
			require.True(t, (s.input == nil) != (s.processor == nil))
		}
	})
}
