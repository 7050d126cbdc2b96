package runner

import (
	"bytes"
	"encoding"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"

	"github.com/influxdata/telegraf"
	"github.com/influxdata/telegraf/config"
	"github.com/influxdata/telegraf/plugins/processors"
)

// Errors of the configuration; all of them are wrapped with file and line.
var (
	// ErrUnknownKey is a key that neither the plugin nor the runner knows.
	ErrUnknownKey = errors.New("unknown key")
	// ErrSections is a file without exactly one plugin section.
	ErrSections = errors.New("want exactly one [[inputs.X]] or [[processors.X]] section")
	// ErrUnknownPlugin is a section for a plugin that this binary lacks.
	ErrUnknownPlugin = errors.New("unknown plugin")
	// ErrSyntax is a file that is not TOML or a value of the wrong kind.
	ErrSyntax = errors.New("cannot read configuration")
)

// maxConfig bounds the configuration file.
const maxConfig = 4 << 20

// common are the keys of a section that the runner itself obeys.
type common struct {
	Interval config.Duration `toml:"interval"`
	LogLevel string          `toml:"log_level"`
	Alias    string          `toml:"alias"`
}

var commonKeys = []string{"interval", "log_level", "alias"}

// agentKeys are per-plugin options that telegraf's agent obeys.
var agentKeys = []string{
	"always_include_local_tags", "collection_jitter", "collection_offset", "data_format", "fielddrop", "fieldexclude",
	"fieldinclude", "fieldpass", "flush_interval", "flush_jitter", "labels", "metricpass", "name_override", "name_prefix",
	"name_suffix", "namedrop", "namedrop_separator", "namepass", "namepass_separator", "order", "precision",
	"startup_error_behavior", "tagdrop", "tagexclude", "taginclude", "tagpass", "tags",
}

// section is a decoded plugin section. Exactly one of input and processor is
// set.
type section struct {
	common
	name      string // such as inputs.agp
	input     telegraf.Input
	processor telegraf.StreamingProcessor
}

// target is what TOML and the loggers reach of the plugin: a plain processor is
// wrapped to become a streaming one.
func (s *section) target() any {
	if s.input != nil {
		return s.input
	}
	if wrapped, ok := s.processor.(processors.HasUnwrap); ok {
		return wrapped.Unwrap()
	}
	return s.processor
}

func (s *section) plugin() telegraf.PluginDescriber {
	if s.input != nil {
		return s.input
	}
	return s.processor
}

// Read returns the plugin that a configuration names, with its options and not initialised: what
// Run would run, to look at.
func Read(o Options) (telegraf.PluginDescriber, error) {
	o.setDefaults()
	s, err := load(&o)
	if err != nil {
		return nil, err
	}
	if p, ok := s.target().(telegraf.PluginDescriber); ok {
		return p, nil
	}
	return s.plugin(), nil
}

// load reads the configuration that the options name. Without one, the only
// registered plugin runs with its defaults.
func load(o *Options) (*section, error) {
	if o.Config == "" && o.ConfigReader == nil {
		if len(o.Inputs)+len(o.Processors) != 1 {
			return nil, fmt.Errorf("%w: no configuration file given; this binary has %s", ErrSections, available(o))
		}
		for name := range o.Inputs {
			return create(o, "inputs", name)
		}
		for name := range o.Processors {
			return create(o, "processors", name)
		}
	}
	name, r := o.Config, o.ConfigReader
	if r == nil {
		f, err := os.Open(o.Config)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrSyntax, err)
		}
		defer f.Close()
		r = f
	} else if name == "" {
		name = "configuration"
	}
	doc, err := io.ReadAll(io.LimitReader(r, maxConfig+1))
	if err != nil {
		return nil, fmt.Errorf("%w %s: %w", ErrSyntax, name, err)
	}
	if len(doc) > maxConfig {
		return nil, fmt.Errorf("%w %s: larger than %d bytes", ErrSyntax, name, maxConfig)
	}
	s, err := parse(o, doc)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return s, nil
}

func create(o *Options, kind, name string) (*section, error) {
	s := &section{name: kind + "." + name}
	if kind == "inputs" {
		if creator, ok := o.Inputs[name]; ok {
			s.input = creator()
			return s, nil
		}
	} else if creator, ok := o.Processors[name]; ok {
		s.processor = creator()
		return s, nil
	}
	return nil, fmt.Errorf("%w %s.%s; this binary has %s", ErrUnknownPlugin, kind, name, available(o))
}

func available(o *Options) string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(o.Inputs)) {
		names = append(names, "inputs."+name)
	}
	for _, name := range slices.Sorted(maps.Keys(o.Processors)) {
		names = append(names, "processors."+name)
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

func parse(o *Options, doc []byte) (*section, error) {
	doc, err := expandEnv(doc)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSyntax, err)
	}
	h, err := findSection(doc)
	if err != nil {
		return nil, err
	}
	s, err := create(o, h.kind, h.name)
	if err != nil {
		return nil, fmt.Errorf("line %d: %w", h.line, err)
	}
	doc = h.asTable(doc)
	if doc, err = quoteNumbers(doc, reflect.TypeOf(s.target())); err != nil {
		return nil, err
	}

	// The document as a Go type: the section's table decodes into the plugin
	// that the creator has filled with its defaults.
	inner := reflect.StructOf([]reflect.StructField{{
		Name: "Plugin", Type: reflect.TypeOf(s.target()), Tag: reflect.StructTag(fmt.Sprintf("toml:%q", h.name)),
	}})
	outer := reflect.StructOf([]reflect.StructField{{
		Name: "Section", Type: inner, Tag: reflect.StructTag(fmt.Sprintf("toml:%q", h.kind)),
	}})
	root := reflect.New(outer)
	root.Elem().Field(0).Field(0).Set(reflect.ValueOf(s.target()))
	err = toml.NewDecoder(bytes.NewReader(doc)).DisallowUnknownFields().Decode(root.Interface())
	var missing *toml.StrictMissingError
	if errors.As(err, &missing) {
		err = unknownKeys(missing, h)
	}
	if err != nil {
		return nil, syntaxError(err, doc)
	}

	var own map[string]map[string]common
	if err := toml.Unmarshal(doc, &own); err != nil {
		return nil, syntaxError(err, doc)
	}
	s.common = own[h.kind][h.name]
	if s.Interval < 0 {
		return nil, fmt.Errorf("%w: interval %s is negative", ErrSyntax, time.Duration(s.Interval))
	}
	if s.LogLevel != "" && telegraf.LogLevelFromString(s.LogLevel) == telegraf.None {
		return nil, fmt.Errorf("%w: log_level %q is none of error, warn, info, debug, trace", ErrSyntax, s.LogLevel)
	}
	return s, nil
}

// header is the place of a plugin section's header.
type header struct {
	kind, name string
	line       int
	array      bool
	key        unstable.Range // from the first to the last part of the name
}

// findSection finds the one plugin section and refuses everything beside it.
func findSection(doc []byte) (header, error) {
	var found []header
	err := expressions(doc, func(p *unstable.Parser, path []string, node *unstable.Node) error {
		if node.Kind == unstable.KeyValue {
			if len(found) == 0 {
				return fmt.Errorf("line %d: %w %q outside of a section; %w", lineOf(p, node), ErrUnknownKey, path[len(path)-1], ErrSections)
			}
			return nil
		}
		line := lineOf(p, node)
		kind := path[0]
		if kind != "inputs" && kind != "processors" || len(path) < 2 {
			return fmt.Errorf("line %d: [%s] is not for this file but for telegraf.conf; %w", line, strings.Join(path, "."), ErrSections)
		}
		if len(path) > 2 {
			if len(found) == 0 || found[len(found)-1].kind != kind || found[len(found)-1].name != path[1] {
				return fmt.Errorf("line %d: [%s] is not below its section; %w", line, strings.Join(path, "."), ErrSections)
			}
			return nil
		}
		key := keyRange(node)
		found = append(found, header{kind: kind, name: path[1], line: line, array: node.Kind == unstable.ArrayTable, key: key})
		return nil
	})
	switch {
	case err != nil:
		return header{}, err
	case len(found) == 0:
		return header{}, fmt.Errorf("no section found; %w", ErrSections)
	case len(found) > 1:
		return header{}, fmt.Errorf(
			"line %d: a second section, %s.%s, after %s.%s in line %d; %w: move it to a file of its own and give telegraf one execd section per file",
			found[1].line, found[1].kind, found[1].name, found[0].kind, found[0].name, found[0].line, ErrSections)
	}
	return found[0], nil
}

// expressions calls f for every table header and key-value of doc with its full
// path.
func expressions(doc []byte, f func(p *unstable.Parser, path []string, node *unstable.Node) error) error {
	var p unstable.Parser
	p.Reset(doc)
	var table []string
	for p.NextExpression() {
		node := p.Expression()
		path := keyParts(node)
		switch node.Kind {
		case unstable.Table, unstable.ArrayTable:
			table = path
		case unstable.KeyValue:
			path = append(slices.Clone(table), path...)
		default:
			continue
		}
		if err := f(&p, path, node); err != nil {
			return err
		}
	}
	// Let the decoder report a syntax error: it knows the position.
	if p.Error() != nil {
		var ignored map[string]any
		if err := toml.Unmarshal(doc, &ignored); err != nil {
			return syntaxError(err, doc)
		}
		return fmt.Errorf("%w: %w", ErrSyntax, p.Error())
	}
	return nil
}

func keyParts(node *unstable.Node) []string {
	var parts []string
	for it := node.Key(); it.Next(); {
		parts = append(parts, string(it.Node().Data))
	}
	return parts
}

func keyRange(node *unstable.Node) unstable.Range {
	var r unstable.Range
	first := true
	for it := node.Key(); it.Next(); {
		raw := it.Node().Raw
		if first {
			r, first = raw, false
		}
		r.Length = raw.Offset + raw.Length - r.Offset
	}
	return r
}

func lineOf(p *unstable.Parser, node *unstable.Node) int {
	return p.Shape(keyRange(node)).Start.Line
}

// asTable turns [[inputs.x]] into [inputs.x] without moving anything: array
// tables decode into fresh elements, which would lose the plugin's defaults.
func (h header) asTable(doc []byte) []byte {
	if !h.array {
		return doc
	}
	doc = bytes.Clone(doc)
	doc[bytes.LastIndexByte(doc[:h.key.Offset], '[')] = ' '
	end := int(h.key.Offset + h.key.Length)
	doc[end+bytes.IndexByte(doc[end:], ']')] = ' '
	return doc
}

var textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()

// quoteNumbers puts quotes around numbers meant for a type that reads text, such
// as config.Duration: there 10 means 10 seconds, while the decoder would store
// the number itself because the type's kind is an integer.
func quoteNumbers(doc []byte, plugin reflect.Type) ([]byte, error) {
	var numbers []unstable.Range
	var visit func(t reflect.Type, node *unstable.Node)
	visit = func(t reflect.Type, node *unstable.Node) {
		for t != nil && t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		if t == nil {
			return
		}
		switch node.Kind {
		case unstable.Integer, unstable.Float:
			if reflect.PointerTo(t).Implements(textUnmarshaler) {
				numbers = append(numbers, node.Raw)
			}
		case unstable.Array:
			for it := node.Children(); it.Next(); {
				visit(fieldType(t, nil), it.Node())
			}
		case unstable.InlineTable:
			for it := node.Children(); it.Next(); {
				visit(fieldType(t, keyParts(it.Node())), it.Node().Value())
			}
		}
	}
	own := reflect.TypeFor[common]()
	err := expressions(doc, func(_ *unstable.Parser, path []string, node *unstable.Node) error {
		if node.Kind == unstable.KeyValue {
			if len(path) == 3 && slices.Contains(commonKeys, path[2]) {
				visit(fieldType(own, path[2:]), node.Value())
			} else {
				visit(fieldType(plugin, path[2:]), node.Value())
			}
		}
		return nil
	})
	if err != nil || len(numbers) == 0 {
		return doc, err
	}
	var out bytes.Buffer
	at := 0
	for _, r := range numbers {
		start, end := int(r.Offset), int(r.Offset+r.Length)
		out.Write(doc[at:start])
		out.WriteByte('"')
		out.Write(bytes.ReplaceAll(doc[start:end], []byte("_"), nil))
		out.WriteByte('"')
		at = end
	}
	out.Write(doc[at:])
	return out.Bytes(), nil
}

// fieldType follows a path of keys into a type; without a path it gives the
// element of a list. It is nil where there is no such field.
func fieldType(t reflect.Type, path []string) reflect.Type {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() == reflect.Slice || t.Kind() == reflect.Array {
		if len(path) == 0 {
			return t.Elem()
		}
		return fieldType(t.Elem(), path)
	}
	if len(path) == 0 {
		return t
	}
	switch t.Kind() {
	case reflect.Map:
		return fieldType(t.Elem(), path[1:])
	case reflect.Struct:
		for _, f := range reflect.VisibleFields(t) {
			name, _, _ := strings.Cut(f.Tag.Get("toml"), ",")
			if name == "" {
				name = f.Name
			}
			if f.IsExported() && name != "-" && !f.Anonymous && strings.EqualFold(name, path[0]) {
				if len(path) == 1 {
					return f.Type
				}
				return fieldType(f.Type, path[1:])
			}
		}
	}
	return nil
}

// unknownKeys names every key that neither the plugin nor the runner obeys.
func unknownKeys(missing *toml.StrictMissingError, h header) error {
	var all error
	for i := range missing.Errors {
		e := &missing.Errors[i]
		key := e.Key()
		line, _ := e.Position()
		rest := strings.Join(key[min(2, len(key)):], ".")
		var err error
		switch {
		case len(key) == 3 && slices.Contains(commonKeys, key[2]):
			continue
		case len(key) >= 3 && slices.Contains(agentKeys, key[2]):
			err = fmt.Errorf("line %d: %w %q in [[%s.%s]]: telegraf's agent obeys it, set it in the execd section of telegraf.conf",
				line, ErrUnknownKey, rest, h.kind, h.name)
		default:
			err = fmt.Errorf("line %d: %w %q in [[%s.%s]]", line, ErrUnknownKey, rest, h.kind, h.name)
		}
		if all == nil {
			all = err
		} else {
			all = fmt.Errorf("%w; %w", all, err)
		}
	}
	return all
}

// wrongType is what the decoder says, in terms of Go, of a value of another kind.
var wrongType = regexp.MustCompile(`cannot decode TOML (\w+) into .* of type (\S+)$`)

// inWords says what a configuration file has to have for a Go type.
func inWords(goType string) string {
	switch {
	case strings.HasPrefix(goType, "[]"):
		return "a list"
	case strings.HasPrefix(goType, "int"), strings.HasPrefix(goType, "uint"):
		return "a whole number"
	case strings.HasPrefix(goType, "float"):
		return "a number"
	case goType == "bool":
		return "true or false"
	case goType == "string":
		return "a string in quotes"
	}
	return "a table"
}

// syntaxError adds the position of a decoding error of doc to its text.
func syntaxError(err error, doc []byte) error {
	var at *toml.DecodeError
	if !errors.As(err, &at) {
		if errors.Is(err, ErrUnknownKey) {
			return err
		}
		return fmt.Errorf("%w: %w", ErrSyntax, err)
	}
	line, column := at.Position()
	if key := at.Key(); len(key) > 0 {
		if m := wrongType.FindStringSubmatch(at.Error()); m != nil {
			text := strings.Split(string(doc), "\n")[line-1]
			value := strings.TrimSpace(text[min(column-1, len(text)):])
			if !strings.ContainsAny(value[:min(1, len(value))], `"'[{`) {
				value = strings.TrimSpace(value[:strings.IndexAny(value+"#", ",]}#")])
			}
			value = strings.ToValidUTF8(value[:min(len(value), 80)], "")
			return fmt.Errorf("line %d, column %d: %w: %s = %s is of type %s, allowed: %s",
				line, column, ErrSyntax, strings.Join(key, "."), value, m[1], inWords(m[2]))
		}
		return fmt.Errorf("line %d, column %d: %w: %s: %w", line, column, ErrSyntax, strings.Join(key, "."), err)
	}
	return fmt.Errorf("line %d, column %d: %w: %w", line, column, ErrSyntax, err)
}
