package port

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/agp-net/telegraf-agp/agp/steer/ethtool"
)

// property is one thing that is journalled, changed and put back as a whole.
type property string

const (
	channels    property = "channels"
	rings       property = "rings"
	rssKey      property = "rss_key" // with the hash function
	indirection property = "indirection"

	hashFields  = "hash_fields/" // + flow type
	feature     = "feature/"     // + name; the value is what is asked for
	rule        = "rule/"        // + location
	ntupleRules = "rx-ntuple-filter"
)

// value is JSON in its one compact form, so that equal values are equal strings.
type value string

const absent value = `"absent"` // no rule at this location

func (v value) MarshalJSON() ([]byte, error) { return []byte(v), nil }

func (v *value) UnmarshalJSON(b []byte) error {
	var c bytes.Buffer
	err := json.Compact(&c, b)
	*v = value(c.String())
	return err
}

func encode(v any) value {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // only types of this file, which JSON can say
	}
	return value(b)
}

func decode[T any](v value) (t T, err error) {
	d := json.NewDecoder(strings.NewReader(string(v)))
	d.DisallowUnknownFields()
	if err = d.Decode(&t); err == nil && encode(t) != v {
		err = errors.New("not in its compact form")
	}
	if err != nil {
		err = fmt.Errorf("value %.100s: %w", string(v), err)
	}
	return t, err
}

type keyValue struct {
	Function ethtool.HashFunction `json:"function"`
	Key      hexBytes             `json:"key"`
}

type hexBytes []byte

func (h hexBytes) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, h), nil }

func (h *hexBytes) UnmarshalText(b []byte) (err error) {
	*h, err = hex.AppendDecode(nil, b)
	return err
}

// check says whether v can be a value of p.
func (p property) check(v value) (err error) {
	kind, arg, many := strings.Cut(string(p), "/")
	switch {
	case p == channels:
		_, err = decode[ethtool.Channels](v)
	case p == rings:
		_, err = decode[ethtool.Rings](v)
	case p == rssKey:
		_, err = decode[keyValue](v)
	case p == indirection:
		_, err = decode[[]uint32](v)
	case many && kind+"/" == feature && arg != "":
		_, err = decode[bool](v)
	case many && kind+"/" == hashFields:
		if _, err = p.number(); err == nil {
			_, err = decode[uint64](v)
		}
	case many && kind+"/" == rule:
		if _, err = p.number(); err == nil && v != absent {
			_, err = decode[ethtool.Spec](v)
		}
	default:
		err = errors.New("unknown property")
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", p, err)
	}
	return err
}

func (p property) is(kind string) bool { return strings.HasPrefix(string(p), kind) }

func (p property) arg() string {
	_, arg, _ := strings.Cut(string(p), "/")
	return arg
}

// number is the flow type or the location.
func (p property) number() (uint32, error) {
	n, err := strconv.ParseUint(p.arg(), 10, 32)
	if err == nil && strconv.FormatUint(n, 10) != p.arg() {
		err = strconv.ErrSyntax
	}
	return uint32(n), err
}

func ruleAt(location uint32) property {
	return property(rule + strconv.FormatUint(uint64(location), 10))
}

// state is what a port is set to.
type state map[property]value

// at returns the value of p; a rule that is not there has one too.
func (s state) at(p property) (value, bool) {
	v, ok := s[p]
	if !ok && p.is(rule) {
		return absent, true
	}
	return v, ok
}

// get is at for a value that is known to be there.
func (s state) get(p property) value {
	v, _ := s.at(p)
	return v
}

// queues is the number of receive queues, 0 if the driver does not say.
func (s state) queues() int {
	c, _ := decode[ethtool.Channels](s[channels])
	return c.Receive()
}

func (s state) table() []uint32 {
	t, _ := decode[[]uint32](s[indirection])
	return t
}

// reading is a state and what else the interface says of itself.
type reading struct {
	state
	maxChannels ethtool.Channels
	maxRings    ethtool.Rings
	transform   uint32
	features    map[string]ethtool.Feature
	rules       []ethtool.Spec
	places      int
	errs        map[property]error // why a property has no value
}

// reason says why p cannot be had.
func (r reading) reason(p property) error {
	if err := r.errs[p]; err != nil {
		return err
	}
	return fmt.Errorf("%s: %w", p, ErrNotSupported)
}

var hashed = []ethtool.FlowType{
	ethtool.TCP4, ethtool.UDP4, ethtool.SCTP4, ethtool.TCP6, ethtool.UDP6, ethtool.SCTP6,
	ethtool.IPv4Hash, ethtool.IPv6Hash,
}

// read reads all properties, of the features those with these names. A property that
// the driver does not have is left out; it is an error that the interface is gone.
func read(d device, features []string) (reading, error) {
	r := reading{state: state{}, errs: map[property]error{}}
	var gone error
	note := func(p property, err error) bool {
		if errors.Is(err, ErrNoInterface) {
			gone = err
		}
		if err != nil {
			r.errs[p] = err
		}
		return err == nil
	}
	var (
		c   ethtool.Channels
		g   ethtool.Rings
		rss ethtool.RSS
		err error
	)
	if c, r.maxChannels, err = d.Channels(); note(channels, err) {
		r.state[channels] = encode(c)
	}
	if g, r.maxRings, err = d.Rings(); note(rings, err) {
		r.state[rings] = encode(g)
	}
	rss, err = d.RSS()
	r.transform = rss.Transform
	if note(rssKey, err) && len(rss.Key) > 0 {
		r.state[rssKey] = encode(keyValue{rss.Function, rss.Key})
	}
	if note(indirection, err) && len(rss.Indirection) > 0 {
		r.state[indirection] = encode(rss.Indirection)
	}
	for _, t := range hashed {
		p := property(hashFields + strconv.Itoa(int(t)))
		if f, err := d.HashFields(t); note(p, err) {
			r.state[p] = encode(f)
		}
	}
	if r.features, err = d.Features(); err == nil {
		for _, n := range features {
			if f, ok := r.features[n]; ok {
				r.state[property(feature+n)] = encode(f.Wanted)
			}
		}
	} else {
		for _, n := range features {
			note(property(feature+n), err)
		}
	}
	if r.rules, r.places, err = d.Rules(); note(rule, err) {
		for i, s := range r.rules {
			r.rules[i] = s.Canonical()
			r.state[ruleAt(s.Location())] = encode(r.rules[i])
		}
	}
	return r, gone
}

// write changes one property.
func write(d device, p property, v value) error {
	switch {
	case p == channels:
		c, err := decode[ethtool.Channels](v)
		if err != nil {
			return err
		}
		return d.SetChannels(c)
	case p == rings:
		g, err := decode[ethtool.Rings](v)
		if err != nil {
			return err
		}
		return d.SetRings(g)
	case p == rssKey:
		k, err := decode[keyValue](v)
		if err != nil {
			return err
		}
		return d.SetRSS(ethtool.RSSChange{Function: k.Function, Key: k.Key})
	case p == indirection:
		t, err := decode[[]uint32](v)
		if err != nil {
			return err
		}
		return d.SetRSS(ethtool.RSSChange{Indirection: t})
	case p.is(feature):
		on, err := decode[bool](v)
		if err != nil {
			return err
		}
		return d.SetFeature(p.arg(), on)
	}
	n, err := p.number()
	if err != nil {
		return err
	}
	switch {
	case p.is(hashFields):
		f, err := decode[uint64](v)
		if err != nil {
			return err
		}
		return d.SetHashFields(ethtool.FlowType(n), f)
	case v == absent:
		return d.DeleteRule(n)
	}
	s, err := decode[ethtool.Spec](v)
	if err != nil {
		return err
	}
	return d.InsertRule(s.At(n))
}

// even says whether a table is the spread that the kernel proposes to drivers, over n
// queues. Over any number if n is 0.
func even(table []uint32, n int) bool {
	if len(table) == 0 {
		return false
	}
	if n == 0 {
		n = int(slices.Max(table)) + 1
	}
	for i, q := range table {
		if int(q) != i%n {
			return false
		}
	}
	return true
}

// fits says whether all queues of a table exist.
func fits(table []uint32, queues int) bool {
	return len(table) == 0 || queues == 0 || int(slices.Max(table)) < queues
}

// roundedTo says whether got is what a driver makes of the ring sizes that were asked
// for: each as asked or rounded up, to at most the next power of two.
func roundedTo(got, asked value) bool {
	g, err1 := decode[ethtool.Rings](got)
	a, err2 := decode[ethtool.Rings](asked)
	up := func(g, a uint32) bool { return g >= a && uint64(g) < 2*uint64(max(a, 1)) || g == a }
	return err1 == nil && err2 == nil &&
		up(g.RX, a.RX) && up(g.RXMini, a.RXMini) && up(g.RXJumbo, a.RXJumbo) && up(g.TX, a.TX)
}

// properties returns the keys of a map in a fixed order.
func properties[V any](m map[property]V) []property { return slices.Sorted(maps.Keys(m)) }
