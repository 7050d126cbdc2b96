package runner

import (
	"bytes"
	"fmt"
	"os"
	"strings"

	"github.com/compose-spec/compose-go/template"
)

// expandEnv replaces references to environment variables as telegraf does:
// $VAR, ${VAR}, ${VAR:-default}, ${VAR-default}, ${VAR:?message}, ${VAR:+other}
// and $$ for a dollar sign. References to unset variables stay as they are, and
// so does what only looks like a reference. Unlike telegraf (up to 1.37) a value
// cannot break the file open: inside quotes it is escaped, outside it must be one
// bare value. Line numbers stay the same; comments are not touched.
func expandEnv(doc []byte) ([]byte, error) {
	if !bytes.ContainsRune(doc, '$') {
		return doc, nil
	}
	var out bytes.Buffer
	line := 1
	for len(doc) > 0 {
		n, kind := nextToken(doc)
		text := string(doc[:n])
		doc = doc[n:]
		if kind == tokenComment || !strings.Contains(text, "$") {
			out.WriteString(text)
		} else {
			expanded, err := expandToken(text, kind)
			if err != nil {
				return nil, fmt.Errorf("line %d: %w", line, err)
			}
			out.WriteString(expanded)
		}
		line += strings.Count(text, "\n")
	}
	return out.Bytes(), nil
}

type tokenKind int

const (
	tokenBare tokenKind = iota
	tokenComment
	tokenBasic   // "…" and """…"""
	tokenLiteral // '…' and '''…'''
)

// nextToken returns the length and kind of the text at the start of doc: a
// comment, a quoted string with its quotes, or what is between those on one line.
func nextToken(doc []byte) (int, tokenKind) {
	end := func(from int, stop string) int {
		if i := bytes.Index(doc[from:], []byte(stop)); i >= 0 {
			return from + i + len(stop)
		}
		return len(doc)
	}
	switch doc[0] {
	case '#':
		return end(1, "\n"), tokenComment
	case '\'':
		if bytes.HasPrefix(doc, []byte("'''")) {
			return end(3, "'''"), tokenLiteral
		}
		return end(1, "'"), tokenLiteral
	case '"':
		quote := `"`
		if bytes.HasPrefix(doc, []byte(`"""`)) {
			quote = `"""`
		}
		for i := len(quote); i < len(doc); i++ {
			switch {
			case doc[i] == '\\':
				i++
			case bytes.HasPrefix(doc[i:], []byte(quote)):
				return i + len(quote), tokenBasic
			}
		}
		return len(doc), tokenBasic
	}
	// A reference may hold quotes of its own, as in ${A:-"x"}.
	for i := 0; i < len(doc); i++ {
		switch {
		case doc[i] == '$' && i+1 < len(doc) && doc[i+1] == '{':
			if n := bytes.IndexAny(doc[i:], "}\n"); n > 0 && doc[i+n] == '}' {
				i += n
			}
		case doc[i] == '#' || doc[i] == '\'' || doc[i] == '"':
			return i, tokenBare
		case doc[i] == '\n':
			return i + 1, tokenBare
		}
	}
	return len(doc), tokenBare
}

func expandToken(text string, kind tokenKind) (string, error) {
	var bad error
	escape := func(name, value string) string {
		switch kind {
		case tokenBasic:
			return escapeBasic(value)
		case tokenLiteral:
			if strings.ContainsAny(value, "'\r\n") {
				bad = fmt.Errorf("environment variable %s does not fit between single quotes; use double quotes", name)
			}
		default:
			if strings.ContainsAny(value, "'\"#=[]{},\r\n") {
				bad = fmt.Errorf("environment variable %s needs quotes around its reference", name)
			}
		}
		return value
	}
	expanded, err := template.SubstituteWithOptions(text,
		func(name string) (string, bool) {
			value, ok := os.LookupEnv(name)
			if !ok {
				return "", false
			}
			return escape(name, value), true
		},
		template.WithoutLogging,
		template.WithReplacementFunction(func(s string, m template.Mapping, cfg *template.Config) (string, error) {
			value, applied, err := template.DefaultReplacementAppliedFunc(s, m, cfg)
			switch {
			case err == nil && !applied, err != nil && strings.HasPrefix(err.Error(), "Invalid template:"):
				return s, nil
			}
			return value, err
		}))
	if bad != nil {
		return "", bad
	}
	return expanded, err
}

func escapeBasic(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r < 0x20 || r == 0x7f:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}
