//go:build ignore

// Generates kernels_amd64.s and kernels_amd64.go; see doc.go for what they do.
package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Offsets of the fields of Args; a test compares them with the Go struct.
const (
	argX = 8 * iota
	argW
	argB
	argOff
	argOut
	argK
	argBlocks
	argXStep
	argOutP
	argOutF
	argLo
)

type isa struct {
	name  string
	bytes int // of a vector
	vec   func() reg.VecVirtual
}

var (
	avx2   = isa{"AVX2", 32, YMM}
	avx512 = isa{"AVX512", 64, ZMM}
)

// product computes filters x positions dot products per round, in registers, then takes the maximum
// of each run of pool positions, clamps and stores.
func product(s isa, filters, positions, pool int) {
	name := fmt.Sprintf("Product%s_%dx%dp%d", s.name, filters, positions, pool)
	TEXT(name, NOSPLIT, "func(a *Args)")
	Pragma("noescape")
	Doc(fmt.Sprintf("%s computes %d filters at %d positions per round, max pool %d.", name, filters, positions, pool))
	a := Load(Param("a"), GP64())
	load := func(disp int) reg.GPVirtual {
		r := GP64()
		MOVQ(Mem{Base: a, Disp: disp}, r)
		return r
	}
	x, w, b, out, blocks, step := load(argX), load(argW), load(argB), load(argOut), load(argBlocks), load(argXStep)
	// Position p lies at r + p*step; x86 scales by 1, 2 and 4.
	var step3, step5 reg.GPVirtual
	if positions > 3 {
		step3 = GP64()
		LEAQ(Mem{Base: step, Index: step, Scale: 2}, step3)
	}
	if positions > 5 {
		step5 = GP64()
		LEAQ(Mem{Base: step, Index: step, Scale: 4}, step5)
	}
	at := func(r reg.Register, p int) Mem {
		switch p {
		case 0:
			return Mem{Base: r}
		case 1, 2, 4:
			return Mem{Base: r, Index: step, Scale: uint8(p)}
		case 3:
			return Mem{Base: r, Index: step3, Scale: 1}
		default:
			return Mem{Base: r, Index: step5, Scale: 1}
		}
	}

	Label("block")
	acc := make([][]reg.VecVirtual, filters)
	for f := range acc {
		acc[f] = make([]reg.VecVirtual, positions)
		for p := range acc[f] {
			acc[f][p] = s.vec()
			if p == 0 {
				VBROADCASTSS(Mem{Base: b, Disp: 4 * f}, acc[f][p])
			} else {
				VMOVAPS(acc[f][0], acc[f][p])
			}
		}
	}
	off, k := load(argOff), load(argK)

	Label("k")
	r := GP64()
	MOVQ(Mem{Base: off}, r)
	ADDQ(x, r)
	xs := make([]reg.VecVirtual, positions)
	for p := range xs {
		xs[p] = s.vec()
		VMOVUPS(at(r, p), xs[p])
	}
	for f := range acc {
		v := s.vec()
		VBROADCASTSS(Mem{Base: w, Disp: 4 * f}, v)
		for p := range xs {
			VFMADD231PS(xs[p], v, acc[f][p])
		}
	}
	ADDQ(Imm(8), off)
	ADDQ(Imm(uint64(4*filters)), w)
	DECQ(k)
	JNZ(LabelRef("k"))

	// A NaN survives the clamp: MAXPS returns its first Go operand if either is one.
	lo := s.vec()
	VBROADCASTSS(Mem{Base: a, Disp: argLo}, lo)
	outP, outF := load(argOutP), load(argOutF)
	for f := range acc {
		q := GP64()
		MOVQ(out, q)
		for p := 0; p < positions; p += pool {
			for i := 1; i < pool; i++ {
				VMAXPS(acc[f][p+i], acc[f][p], acc[f][p])
			}
			VMAXPS(acc[f][p], lo, acc[f][p])
			VMOVUPS(acc[f][p], Mem{Base: q})
			if p+pool < positions {
				ADDQ(outP, q)
			}
		}
		ADDQ(outF, out)
	}
	ADDQ(Imm(uint64(4*filters)), b)
	DECQ(blocks)
	JNZ(LabelRef("block"))
	VZEROUPPER()
	RET()
}

func main() {
	Package("github.com/agp-net/telegraf-agp/agp/model/internal/asm")
	ConstraintExpr("amd64")
	for _, t := range [][3]int{{4, 3, 1}, {4, 2, 1}, {4, 1, 1}, {8, 1, 1}, {4, 2, 2}, {4, 3, 3}} {
		product(avx2, t[0], t[1], t[2])
	}
	for _, t := range [][3]int{{4, 6, 1}, {4, 4, 1}, {4, 2, 1}, {4, 1, 1}, {8, 1, 1}, {4, 6, 2}, {4, 4, 2}, {4, 2, 2}, {4, 6, 3}, {4, 3, 3}} {
		product(avx512, t[0], t[1], t[2])
	}
	Generate()
}
