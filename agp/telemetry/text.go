package telemetry

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxText is how many characters of one name are shown.
const maxText = 200

// Printable makes a name from outside fit to be shown: what a terminal would obey and what
// would turn the text around becomes U+FFFD, and nothing is endless. Markup is not its business.
func Printable(s string) string {
	if n := len(s); n > maxText*utf8.UTFMax {
		s = s[:maxText*utf8.UTFMax]
	}
	n := 0
	return strings.Map(func(r rune) rune {
		switch n++; {
		case n > maxText:
			return -1
		case !unicode.IsPrint(r):
			return utf8.RuneError
		}
		return r
	}, s)
}

// Endpoint is an address with its port for people; "*" is any.
func Endpoint(addr string, port uint16) string {
	switch {
	case addr == "":
		return "*"
	case port == 0:
		return addr
	}
	return fmt.Sprintf("%s port %d", addr, port)
}

// Who is the key of an entry for people.
func (r *TopRow) Who() string {
	switch {
	case r.Src != "" && r.Dst != "":
		return fmt.Sprintf("%s %s -> %s", r.Protocol, Endpoint(r.Src, r.SrcPort), Endpoint(r.Dst, r.DstPort))
	case r.Src != "":
		return r.Src
	case r.Dst != "":
		return r.Dst
	}
	return fmt.Sprintf("%s port %d", r.Protocol, r.DstPort)
}
