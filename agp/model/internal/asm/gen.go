//go:build ignore

// Generates kernels_amd64.s and kernels_amd64.go; see doc.go for what they do.
package main

import (
	"fmt"
	"math"

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

// ---- rows ----

// affine computes y[r] = max(x[r]*scale[r] + shift[r], lo) for rows of one vector.
func affine(s isa) {
	name := "Affine" + s.name
	TEXT(name, NOSPLIT, "func(dst, src, scale, shift *float32, rows int, lo float32)")
	Pragma("noescape")
	Doc(name + " computes dst[r] = max(src[r]*scale[r] + shift[r], lo); a row is one vector, rows > 0.")
	dst, src := Load(Param("dst"), GP64()), Load(Param("src"), GP64())
	scale, shift := Load(Param("scale"), GP64()), Load(Param("shift"), GP64())
	rows := Load(Param("rows"), GP64())
	lo := s.vec()
	addr, err := Param("lo").Resolve()
	if err != nil {
		panic(err)
	}
	VBROADCASTSS(addr.Addr, lo)
	Label("row")
	m, y := s.vec(), s.vec()
	VBROADCASTSS(Mem{Base: scale}, m)
	VBROADCASTSS(Mem{Base: shift}, y)
	VFMADD231PS(Mem{Base: src}, m, y)
	VMAXPS(y, lo, y)
	VMOVUPS(y, Mem{Base: dst})
	ADDQ(Imm(4), scale)
	ADDQ(Imm(4), shift)
	ADDQ(Imm(uint64(s.bytes)), src)
	ADDQ(Imm(uint64(s.bytes)), dst)
	DECQ(rows)
	JNZ(LabelRef("row"))
	VZEROUPPER()
	RET()
}

// reduceRows takes the maximum or the sum of each run of n rows, in order.
func reduceRows(s isa, word, what string, op func(ops ...Op)) {
	name := word + "Rows" + s.name
	TEXT(name, NOSPLIT, "func(dst, src *float32, runs, n int)")
	Pragma("noescape")
	Doc(name + " stores the " + what + " of each of runs runs of n rows; a row is one vector, runs and n > 0.")
	dst, src := Load(Param("dst"), GP64()), Load(Param("src"), GP64())
	runs, n := Load(Param("runs"), GP64()), Load(Param("n"), GP64())
	Label("run")
	y, k := s.vec(), GP64()
	VMOVUPS(Mem{Base: src}, y)
	MOVQ(n, k)
	JMP(LabelRef("next"))
	Label("row")
	op(Mem{Base: src}, y, y)
	Label("next")
	ADDQ(Imm(uint64(s.bytes)), src)
	DECQ(k)
	JNZ(LabelRef("row"))
	VMOVUPS(y, Mem{Base: dst})
	ADDQ(Imm(uint64(s.bytes)), dst)
	DECQ(runs)
	JNZ(LabelRef("run"))
	VZEROUPPER()
	RET()
}

// embed gathers rows of a table by the index of each lane.
func embed(s isa) {
	name := "Embed" + s.name
	TEXT(name, NOSPLIT, "func(dst, src, table *float32, rows, n, d int)")
	Pragma("noescape")
	Doc(name+" replaces each of rows indices by d values of table[n][d]; a row is one vector. Indices are clamped",
		"after n is added to negative ones; rows, n and d > 0, n*d below 2^31.")
	dst, src, table := Load(Param("dst"), GP64()), Load(Param("src"), GP64()), Load(Param("table"), GP64())
	rows := Load(Param("rows"), GP64())
	n, d := Load(Param("n"), GP64()).(reg.GPVirtual).As32(), Load(Param("d"), GP64())
	wide := s.bytes == 64
	count, top, width, zero := s.vec(), s.vec(), s.vec(), s.vec()
	x := XMM()
	VMOVD(n, x)
	VPBROADCASTD(x, count)
	VCVTDQ2PS(count, count)
	one := GP32()
	MOVL(n, one)
	DECL(one)
	VMOVD(one, x)
	VPBROADCASTD(x, top)
	VCVTDQ2PS(top, top)
	VMOVD(d.(reg.GPVirtual).As32(), x)
	VPBROADCASTD(x, width)
	if wide {
		VPXORD(zero, zero, zero)
	} else {
		VXORPS(zero, zero, zero)
	}
	Label("row")
	v, e := s.vec(), s.vec()
	VMOVUPS(Mem{Base: src}, v)
	ADDQ(Imm(uint64(s.bytes)), src)
	// Add n to what is below 0.
	if wide {
		k := K()
		VCMPPS(Imm(17), zero, v, k) // v < 0
		VADDPS(count, v, k, v)
	} else {
		m := s.vec()
		VCMPPS(Imm(17), zero, v, m)
		VANDPS(count, m, m)
		VADDPS(m, v, v)
	}
	VMAXPS(zero, v, v) // NaN becomes 0: MAXPS returns its first Go operand
	VMINPS(top, v, v)
	VCVTTPS2DQ(v, e)
	VPMULLD(width, e, e)
	j, p := GP64(), GP64()
	MOVQ(d, j)
	MOVQ(table, p)
	Label("value")
	y := s.vec()
	if wide {
		k := K()
		KXNORW(k, k, k)
		VGATHERDPS(Mem{Base: p, Index: e, Scale: 4}, k, y)
	} else {
		m := s.vec()
		VPCMPEQD(m, m, m)
		VGATHERDPS(m, Mem{Base: p, Index: e, Scale: 4}, y)
	}
	VMOVUPS(y, Mem{Base: dst})
	ADDQ(Imm(uint64(s.bytes)), dst)
	ADDQ(Imm(4), p)
	DECQ(j)
	JNZ(LabelRef("value"))
	DECQ(rows)
	JNZ(LabelRef("row"))
	VZEROUPPER()
	RET()
}

// transpose8 turns 8 flows x 8 columns into 8 rows of 8 lanes.
func transpose8() {
	TEXT("Transpose8", NOSPLIT, "func(dst, src *float32, blocks, dstStride, srcStride int)")
	Pragma("noescape")
	Doc("Transpose8 writes 8 columns of 8 flows as 8 rows, blocks (> 0) times with the next columns. Strides are the bytes",
		"from one row to the next and from one flow to the next.")
	dst, src := Load(Param("dst"), GP64()), Load(Param("src"), GP64())
	blocks := Load(Param("blocks"), GP64())
	ds, ss := Load(Param("dstStride"), GP64()), Load(Param("srcStride"), GP64())
	Label("block")
	p := GP64()
	MOVQ(src, p)
	var r, t [8]reg.VecVirtual
	for i := range r {
		r[i] = YMM()
		VMOVUPS(Mem{Base: p}, r[i])
		if i < 7 {
			ADDQ(ss, p)
		}
	}
	for i := 0; i < 8; i += 2 { // pairs of flows
		t[i], t[i+1] = YMM(), YMM()
		VUNPCKLPS(r[i+1], r[i], t[i])
		VUNPCKHPS(r[i+1], r[i], t[i+1])
	}
	var u [8]reg.VecVirtual
	for i := 0; i < 8; i += 4 { // fours
		for j := range 2 {
			u[i+2*j], u[i+2*j+1] = YMM(), YMM()
			VUNPCKLPD(t[i+2+j], t[i+j], u[i+2*j])
			VUNPCKHPD(t[i+2+j], t[i+j], u[i+2*j+1])
		}
	}
	q := GP64()
	MOVQ(dst, q)
	for half := range 2 {
		for i := range 4 {
			y := YMM()
			VPERM2F128(Imm(uint64(0x20+0x11*half)), u[4+i], u[i], y)
			VMOVUPS(y, Mem{Base: q})
			ADDQ(ds, q)
		}
	}
	MOVQ(q, dst)
	ADDQ(Imm(32), src)
	DECQ(blocks)
	JNZ(LabelRef("block"))
	VZEROUPPER()
	RET()
}

// ---- functions ----

var constants = map[uint32]Mem{}

// bits broadcasts a 32-bit constant.
func bits(b uint32) reg.VecVirtual {
	m, ok := constants[b]
	if !ok {
		m = ConstData(fmt.Sprintf("c%08x", b), U32(b))
		constants[b] = m
	}
	y := YMM()
	VBROADCASTSS(m, y)
	return y
}

func f32(x float64) reg.VecVirtual { return bits(math.Float32bits(float32(x))) }

// horner evaluates a polynomial, highest power first.
func horner(x reg.VecVirtual, coef ...float64) reg.VecVirtual {
	y := f32(coef[0])
	for _, c := range coef[1:] {
		VFMADD213PS(f32(c), x, y) // y = y*x + c
	}
	return y
}

// exp: x = n ln 2 + r, e^x = 2^n e^r; minimax polynomial and split ln 2 of Cephes' expf. Results around
// the smallest normal number and below become 0, results above the largest +Inf.
func exp(x reg.VecVirtual) reg.VecVirtual {
	big := YMM()
	VCMPPS(Imm(30), f32(88.72283172607422), x, big) // x > max
	c := YMM()
	VMINPS(x, f32(88.72283172607422), c) // NaN stays: MINPS returns its first Go operand
	VMAXPS(c, f32(-87.3365447504), c)
	n := YMM()
	VMULPS(f32(math.Log2E), c, n)
	VROUNDPS(Imm(8), n, n)
	VFNMADD231PS(f32(0.693359375), n, c)
	VFNMADD231PS(f32(-2.12194440e-4), n, c)
	y := horner(c, 1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
	z := YMM()
	VMULPS(c, c, z)
	VFMADD213PS(c, z, y) // y*z + c
	VADDPS(f32(1), y, y)
	// 2^n as 2 * 2^(n-1), since n may be 128.
	k := YMM()
	VCVTPS2DQ(n, k)
	VPADDD(bits(126), k, k)
	VPSLLD(Imm(23), k, k)
	VMULPS(k, y, y)
	VADDPS(y, y, y)
	VBLENDVPS(big, bits(0x7f800000), y, y)
	return y
}

// log: x = 2^e m with m near 1, log x = e ln 2 + log m; polynomial and split ln 2 of Cephes' logf.
// Denormals count as the smallest normal number.
func log(x reg.VecVirtual) reg.VecVirtual {
	c := YMM()
	VMAXPS(bits(0x00800000), x, c)
	e := YMM()
	VPSRLD(Imm(23), c, e)
	VPSUBD(bits(126), e, e)
	VCVTDQ2PS(e, e)
	m := YMM()
	VANDPS(bits(0x007fffff), c, m)
	VORPS(bits(0x3f000000), m, m) // 0.5 to 1
	small := YMM()
	VCMPPS(Imm(17), f32(math.Sqrt2/2), m, small) // m < sqrt(1/2): use 2m and e-1
	t := YMM()
	VANDPS(f32(1), small, t)
	VSUBPS(t, e, e)
	VANDPS(m, small, t)
	VADDPS(t, m, m)
	VSUBPS(f32(1), m, m)
	y := horner(m, 7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
		-1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1)
	z := YMM()
	VMULPS(m, m, z)
	VMULPS(m, y, y)
	VMULPS(z, y, y)
	VFMADD231PS(f32(-2.12194440e-4), e, y)
	VFNMADD231PS(f32(0.5), z, y)
	VADDPS(y, m, m)
	VFMADD231PS(f32(0.693359375), e, m)
	// What has no finite logarithm.
	VCMPPS(Imm(0), bits(0x7f800000), x, t) // +Inf
	VBLENDVPS(t, x, m, m)
	zero := YMM()
	VXORPS(zero, zero, zero)
	VCMPPS(Imm(0), zero, x, t)
	VBLENDVPS(t, bits(0xff800000), m, m)
	VCMPPS(Imm(25), zero, x, t) // not (x >= 0): negative or NaN
	VBLENDVPS(t, bits(0x7fc00000), m, m)
	return m
}

func function(name string, f func(x reg.VecVirtual) reg.VecVirtual) {
	TEXT(name, NOSPLIT, "func(dst, src *float32, n int)")
	Pragma("noescape")
	Doc(name + " computes n elements, a positive multiple of 8. dst may be src.")
	dst, src, n := Load(Param("dst"), GP64()), Load(Param("src"), GP64()), Load(Param("n"), GP64())
	Label("eight")
	x := YMM()
	VMOVUPS(Mem{Base: src}, x)
	VMOVUPS(f(x), Mem{Base: dst})
	ADDQ(Imm(32), src)
	ADDQ(Imm(32), dst)
	SUBQ(Imm(8), n)
	JNZ(LabelRef("eight"))
	VZEROUPPER()
	RET()
}

func functions() {
	function("Exp", exp)
	function("Log", log)
	function("Sigmoid", func(x reg.VecVirtual) reg.VecVirtual {
		VXORPS(bits(0x80000000), x, x)
		y, one := exp(x), f32(1)
		VADDPS(one, y, y)
		VDIVPS(y, one, y)
		return y
	})
	function("Tanh", func(x reg.VecVirtual) reg.VecVirtual { // 1 - 2/(1 + e^2x)
		VADDPS(x, x, x)
		y := exp(x)
		VADDPS(f32(1), y, y)
		VDIVPS(y, f32(2), y)
		one := f32(1)
		VSUBPS(y, one, y)
		return y
	})
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
	for _, s := range []isa{avx2, avx512} {
		affine(s)
		reduceRows(s, "Max", "maximum", VMAXPS)
		reduceRows(s, "Sum", "sum", VADDPS)
		embed(s)
	}
	transpose8()
	functions()
	Generate()
}
