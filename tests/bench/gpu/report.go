package gpu

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// Row is one line of the table.
type Row struct {
	Quantity string // what is measured
	Mode     string // of the NIC model
	Grid     string // rings, warps, multiprocessors
	Measured string
	PerSM    string
	Lost     string
	Stages   string // time per batch
	Must     string
	Paper    string
}

var columns = Row{
	"quantity", "NIC model", "rings, warps, SMs", "measured", "per SM", "lost", "ns per batch by stage: receive warp; state warp (packets)", "must (aim)", "paper, A100, real NIC",
}

func (r Row) cells() []string {
	return []string{r.Quantity, r.Mode, r.Grid, r.Measured, r.PerSM, r.Lost, r.Stages, r.Must, r.Paper}
}

// String is the row in Markdown.
func (r Row) String() string {
	var b strings.Builder
	for _, c := range r.cells() {
		if c == "" {
			c = "–"
		}
		b.WriteString("| " + strings.ReplaceAll(c, "|", "/") + " ")
	}
	return b.String() + "|"
}

// Head begins a table.
func Head() string {
	return columns.String() + "\n" + strings.Repeat("|---", len(columns.cells())) + "|"
}

// Marks in a file of results: what is between them is written by the program, the rest by hand.
const (
	markBegin = "<!-- table: written by agp-bench-gpu -->"
	markEnd   = "<!-- end of the table -->"
)

// Write puts a table in the place of the one in a file, or at its end; if there is no file, it
// makes one with a title.
func Write(path, table string) error {
	old, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		old, err = []byte("# Benchmark results, GPU\n"), nil
	}
	if err != nil {
		return err
	}
	text := string(old)
	block := markBegin + "\n" + strings.TrimSpace(table) + "\n" + markEnd
	before, rest, ok := strings.Cut(text, markBegin)
	if !ok {
		text = strings.TrimRight(text, "\n") + "\n\n" + block + "\n"
	} else {
		_, after, ok := strings.Cut(rest, markEnd)
		if !ok {
			return fmt.Errorf("%s: no %q behind %q", path, markEnd, markBegin)
		}
		text = before + block + after
	}
	return os.WriteFile(path, []byte(text), 0o600)
}
