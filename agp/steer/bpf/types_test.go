package bpf

import (
	"reflect"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"
	"github.com/stretchr/testify/require"
)

// member returns the type of a member of the variable "types", which names all that
// user space mirrors.
func member(t *testing.T, name string) btf.Type {
	t.Helper()
	spec, err := LoadParser()
	require.NoError(t, err)
	s, ok := btf.UnderlyingType(spec.Variables["types"].Type.Type).(*btf.Struct)
	require.True(t, ok)
	for _, m := range s.Members {
		if m.Name == name {
			return btf.UnderlyingType(m.Type)
		}
	}
	t.Fatalf("no type %s in parser.bpf.c", name)
	return nil
}

func TestGoTypesAreTheStructsOfTheProgramsByteForByte(t *testing.T) {
	for name, v := range map[string]any{
		"event": Event{}, "counters": Counters{}, "rule": Rule{}, "lpm4": LPM4{}, "lpm6": LPM6{}, "policy": Policy{},
	} {
		t.Run(name, func(t *testing.T) { same(t, reflect.TypeOf(v), member(t, name)) })
	}
	require.EqualValues(t, EventSize, reflect.TypeFor[Event]().Size())
}

// same compares offsets, sizes and names (without case and underscores).
func same(t *testing.T, g reflect.Type, c btf.Type) {
	t.Helper()
	size, err := btf.Sizeof(c)
	require.NoError(t, err)
	require.EqualValues(t, size, g.Size(), "%s", g)
	switch c := btf.UnderlyingType(c).(type) {
	case *btf.Struct:
		require.Equal(t, len(c.Members), g.NumField(), "fields of %s", g)
		for i, m := range c.Members {
			f := g.Field(i)
			require.EqualValues(t, m.Offset.Bytes(), f.Offset, "%s.%s", g, f.Name)
			if f.Name == "_" {
				require.Equal(t, "pad", m.Name)
			} else {
				require.Equal(t, strings.ReplaceAll(m.Name, "_", ""), strings.ToLower(f.Name))
			}
			same(t, f.Type, m.Type)
		}
	case *btf.Array:
		if g.Kind() == reflect.Array && g.Elem().Kind() == reflect.Struct {
			require.EqualValues(t, c.Nelems, g.Len())
			same(t, g.Elem(), c.Type)
		}
	}
}

func TestGoConstantsAreThoseOfThePrograms(t *testing.T) {
	got := map[string]uint64{}
	for _, enum := range []string{"hook", "event_flag", "count", "action", "list"} {
		for _, v := range member(t, enum).(*btf.Enum).Values {
			got[v.Name] = v.Value
		}
	}
	require.Equal(t, map[string]uint64{
		"AGP_HOOK_INGRESS": HookIngress, "AGP_HOOK_EGRESS": HookEgress, "AGP_HOOK_XDP": HookXDP,
		"AGP_EVENT_UNPARSED": EventUnparsed, "AGP_EVENT_RAW": EventRaw, "AGP_EVENT_FRAGMENT": EventFragment,
		"AGP_TO_ENGINE": ToEngine, "AGP_KERNEL_CLASS": KernelClass, "AGP_OTHER_CLASS": OtherClass,
		"AGP_SAMPLED_OUT": SampledOut, "AGP_SHARE_OUT": ShareOut, "AGP_BLOCKED": Blocked,
		"AGP_RATE_LIMITED": RateLimited, "AGP_RING_FULL": RingFull, "AGP_REDIRECT_FAIL": RedirectFail,
		"AGP_NOT_IP": NotIP, "AGP_FATES": Fates, "AGP_PASS": Pass, "AGP_UNPARSED": Unparsed,
		"AGP_WOULD_BLOCK": WouldBlock, "AGP_WOULD_LIMIT": WouldLimit, "AGP_COUNTS": Counts,
		"AGP_BLOCK": ActionBlock, "AGP_LIMIT": ActionLimit,
		"AGP_LIST_HOST4": ListHost4, "AGP_LIST_HOST6": ListHost6, "AGP_LIST_NET4": ListNet4, "AGP_LIST_NET6": ListNet6,
	}, got)
}

func value(t *testing.T, enum, name string) uint64 {
	t.Helper()
	for _, v := range member(t, enum).(*btf.Enum).Values {
		if v.Name == name {
			return v.Value
		}
	}
	t.Fatalf("no %s", name)
	return 0
}
