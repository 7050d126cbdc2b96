package model

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var good = map[string]string{
	"agp.name": "app", "agp.version": "2026.1", "agp.feature_set": "head", "agp.field": "app", "agp.classes": `["DNS", "TLS"]`,
}

func with(k, v string) map[string]string {
	m := map[string]string{}
	for a, b := range good {
		m[a] = b
	}
	if v == "-" {
		delete(m, k)
	} else {
		m[k] = v
	}
	return m
}

func TestMetadataDefaults(t *testing.T) {
	m, err := parseMetadata(with("producer.note", "other people's keys are ignored"))
	require.NoError(t, err)
	require.Equal(t, Metadata{Name: "app", Version: "2026.1", Features: HeadSet, Field: "app", Classes: []string{"DNS", "TLS"},
		Triggers: DefaultTriggers, MinPackets: 8, Threshold: 0.5, Notes: map[string]string{}}, m)

	all := with("agp.triggers", "[2, 4]")
	all["agp.min_packets"], all["agp.threshold"], all["agp.benign"], all["agp.note.data"] = "1", "0.75", `["TLS"]`, "made up"
	m, err = parseMetadata(all)
	require.NoError(t, err)
	require.Equal(t, []uint64{2, 4}, m.Triggers)
	require.EqualValues(t, 1, m.MinPackets)
	require.EqualValues(t, 0.75, m.Threshold)
	require.Equal(t, []string{"TLS"}, m.Benign)
	require.Equal(t, map[string]string{"data": "made up"}, m.Notes)

	m, err = parseMetadata(with("agp.triggers", "[3, 9]"))
	require.NoError(t, err)
	require.EqualValues(t, 3, m.MinPackets, "default is the first trigger")
}

func TestBadMetadataIsRefusedNamingTheKey(t *testing.T) {
	for _, c := range [][2]string{
		{"agp.name", "-"}, {"agp.version", "-"}, {"agp.feature_set", "-"}, {"agp.field", "-"}, {"agp.classes", "-"},
		{"agp.name", ""}, {"agp.name", "a b"}, {"agp.name", "a,b=c"}, {"agp.name", "a@1"}, {"agp.name", strings.Repeat("a", 65)}, {"agp.version", "1\n2"},
		{"agp.feature_set", "pixels"}, {"agp.field", "src"}, {"agp.field", "App"},
		{"agp.classes", "DNS,TLS"}, {"agp.classes", `["DNS"]`}, {"agp.classes", `["DNS","DNS"]`}, {"agp.classes", `["DNS",""]`},
		{"agp.classes", `["DNS"," TLS"]`}, {"agp.classes", `["DNS","a\nb"]`}, {"agp.classes", `[1,2]`}, {"agp.classes", `["a","b"] x`},
		{"agp.classes", `{"a":1}`}, {"agp.classes", "[" + strings.Repeat(`"a",`, 2000) + `"b"]`},
		{"agp.benign", `["HTTP"]`}, {"agp.benign", "TLS"},
		{"agp.triggers", "[]"}, {"agp.triggers", "[0]"}, {"agp.triggers", "[8,8]"}, {"agp.triggers", "[16,8]"}, {"agp.triggers", "[-1]"},
		{"agp.triggers", "[1.5]"}, {"agp.triggers", "8"}, {"agp.triggers", "[" + strings.Repeat("1,", 100) + "1]"},
		{"agp.min_packets", "0"}, {"agp.min_packets", "-1"}, {"agp.min_packets", "many"}, {"agp.min_packets", "99999999999"},
		{"agp.threshold", "1.1"}, {"agp.threshold", "-0.1"}, {"agp.threshold", "NaN"}, {"agp.threshold", "high"},
		{"agp.treshold", "0.5"}, {"agp.", "x"},
	} {
		_, err := parseMetadata(with(c[0], c[1]))
		require.ErrorIs(t, err, ErrMetadata, "%s = %q", c[0], c[1])
		require.Contains(t, err.Error(), c[0])
	}
}
