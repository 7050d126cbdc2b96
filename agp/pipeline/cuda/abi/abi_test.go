package abi

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/flow"
)

const header = "../../../../cuda/kernels/agp.h"

// fieldsOf reads the names of a struct's fields out of the header.
func fieldsOf(t *testing.T, text, name string) (names []string) {
	body := regexp.MustCompile(`(?s)typedef struct \{([^}]*)\} ` + name + `;`).FindStringSubmatch(text)
	require.NotNil(t, body, name)
	plain := regexp.MustCompile(`//[^\n]*`).ReplaceAllString(body[1], "")
	for _, line := range strings.Split(plain, ";") {
		if f := strings.Fields(line); len(f) > 1 {
			for _, n := range strings.Split(strings.Join(f[1:], ""), ",") {
				n, _, _ = strings.Cut(n, "[")
				names = append(names, n)
			}
		}
	}
	return names
}

// TestHostAndDeviceAgree: every struct has one size, and every field one place and size, in
// agp.h as a C++ compiler lays it out and in Go.
func TestHostAndDeviceAgree(t *testing.T) {
	raw, err := os.ReadFile(header)
	require.NoError(t, err)
	structs := map[string]reflect.Type{
		"agp_counts": reflect.TypeFor[Counts](), "agp_fragment": reflect.TypeFor[Fragment](), "agp_record": reflect.TypeFor[Record](), "agp_out": reflect.TypeFor[Out](),
		"agp_ring": reflect.TypeFor[Ring](), "agp_stats": reflect.TypeFor[Stats](), "agp_ring_state": reflect.TypeFor[RingState](),
		"agp_shard": reflect.TypeFor[Shard](), "agp_shard_stats": reflect.TypeFor[ShardStats](), "agp_shard_state": reflect.TypeFor[ShardState](),
		"agp_key": reflect.TypeFor[Key](), "agp_head": reflect.TypeFor[Head](), "agp_control": reflect.TypeFor[Control](), "agp_params": reflect.TypeFor[Params](), "agp_nic": reflect.TypeFor[NIC](),
		"agp_quantiles": reflect.TypeFor[Quantiles](), "agp_quantile_table": reflect.TypeFor[QuantileTable](), "agp_hll": reflect.TypeFor[HLL](),
		"agp_entropy": reflect.TypeFor[Entropy](), "agp_top": reflect.TypeFor[Top](), "agp_top_list": reflect.TypeFor[TopList](), "agp_blocked": reflect.TypeFor[Blocked](),
		"agp_published": reflect.TypeFor[Published](), "agp_summary": reflect.TypeFor[Summary](), "agp_sketches": reflect.TypeFor[Sketches](),
		"agp_flow": reflect.TypeFor[Flow](), "agp_hist": reflect.TypeFor[Hist](), "agp_half": reflect.TypeFor[flow.RawHalf](), "agp_tcp_half": reflect.TypeFor[flow.RawTCP](),
	}
	var program bytes.Buffer
	fmt.Fprint(&program, "#include <cstddef>\n#include <cstdio>\n#include \"agp.h\"\nint main() {\n")
	program.WriteString("printf(\"limits %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d\\n\", AGP_LANES, AGP_WAYS, AGP_VERDICTS, AGP_SYNDROMES, AGP_PROTOCOLS, AGP_SHARDS, AGP_RECEIVERS, AGP_WARPS, AGP_RECEIVER_SCRATCH, AGP_SHARD_SCRATCH, AGP_QUEUE, AGP_TABLE_SCRATCH, AGP_BLOCK_SCRATCH, AGP_STAGES, AGP_TRIGGERS);\n")
	for name := range structs {
		fmt.Fprintf(&program, "printf(\"%s . 0 %%zu\\n\", sizeof(%s));\n", name, name)
		for _, f := range fieldsOf(t, string(raw), name) {
			fmt.Fprintf(&program, "printf(\"%s %s %%zu %%zu\\n\", offsetof(%s, %s), sizeof(((%s *)0)->%s));\n", name, f, name, f, name, f)
		}
	}
	for _, f := range fieldsOf(t, string(raw), "agp_key") { // Go's flow has the key's fields as its own
		fmt.Fprintf(&program, "printf(\"agp_flow %s %%zu %%zu\\n\", offsetof(agp_flow, key.%s), sizeof(((agp_flow *)0)->key.%s));\n", f, f, f)
	}
	fmt.Fprint(&program, "}\n")
	dir := t.TempDir()
	source, binary := filepath.Join(dir, "layout.cc"), filepath.Join(dir, "layout")
	require.NoError(t, os.WriteFile(source, program.Bytes(), 0o600))
	out, err := exec.Command("g++", "-std=c++17", "-w", "-I", filepath.Dir(header), "-o", binary, source).CombinedOutput()
	require.NoError(t, err, "%s", out)
	out, err = exec.Command(binary).Output()
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	require.Equal(t, fmt.Sprintf("limits %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d", Lanes, Ways, Verdicts, Syndromes, Protocols, Shards, Receivers, Warps, ReceiverScratch, ShardScratch, Queue, TableScratch, BlockScratch, Stages, Triggers), lines[0])
	places := map[string]string{}
	for _, line := range lines[1:] {
		f := strings.Fields(line)
		places[f[0]+" "+strings.ReplaceAll(f[1], "_", "")] = f[2] + " " + f[3]
	}
	for name, typ := range structs {
		require.Equal(t, places[name+" ."], fmt.Sprintf("0 %d", typ.Size()), name)
		compared := 0
		for _, f := range reflect.VisibleFields(typ) {
			if f.Name == "_" || f.Anonymous { // what is embedded comes first
				continue
			}
			compared++
			require.Equal(t, places[name+" "+strings.ToLower(f.Name)], fmt.Sprintf("%d %d", f.Offset, f.Type.Size()), "%s %s", name, f.Name)
		}
		require.NotZero(t, compared)
	}
}
