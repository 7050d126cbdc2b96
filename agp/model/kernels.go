package model

import "math"

// goLanes is the group size of the plain Go kernels.
const goLanes = 8

type lanes8 = [goLanes]float32

// dot8 adds w[i] * x[off[i]] for eight flows, in order.
func dot8(acc *lanes8, w []float32, x []float32, off []int32) {
	a0, a1, a2, a3, a4, a5, a6, a7 := acc[0], acc[1], acc[2], acc[3], acc[4], acc[5], acc[6], acc[7]
	w = w[:len(off)]
	for i, o := range off {
		v := (*lanes8)(x[o:])
		m := w[i]
		a0 += m * v[0]
		a1 += m * v[1]
		a2 += m * v[2]
		a3 += m * v[3]
		a4 += m * v[4]
		a5 += m * v[5]
		a6 += m * v[6]
		a7 += m * v[7]
	}
	*acc = lanes8{a0, a1, a2, a3, a4, a5, a6, a7}
}

func store8(y []float32, acc *lanes8, relu bool) {
	dst := (*lanes8)(y)
	for i, v := range acc {
		if relu && v < 0 {
			v = 0
		}
		dst[i] = v
	}
}

func convGo(o *Conv, x, y []float32) func() {
	cg, fg := o.C/o.Group, o.F/o.Group
	var off []int32
	for c := range cg {
		for h := range o.KH {
			for w := range o.KW {
				off = append(off, int32(goLanes*((c*o.H+h*o.DilationH)*o.W+w*o.DilationW)))
			}
		}
	}
	kk, pw := len(off), o.OW/o.Pool
	return func() {
		for f := range o.F {
			w := o.Weights[f*kk : (f+1)*kk]
			first := f / fg * cg * o.H
			for oh := range o.OH {
				for p := range pw {
					var best lanes8
					for i := range o.Pool {
						var acc lanes8
						for j := range acc {
							acc[j] = o.Bias[f]
						}
						dot8(&acc, w, x[goLanes*((first+oh*o.StrideH)*o.W+(p*o.Pool+i)*o.StrideW):], off)
						for j, v := range acc {
							if i == 0 || v > best[j] {
								best[j] = v
							}
						}
					}
					store8(y[goLanes*((f*o.OH+oh)*pw+p):], &best, o.Relu)
				}
			}
		}
	}
}

func denseGo(o *Dense, x, y []float32) func() {
	off := make([]int32, o.K)
	for i := range off {
		off[i] = int32(goLanes * i)
	}
	return func() {
		for t := range o.T {
			for n := range o.N {
				var acc lanes8
				for j := range acc {
					acc[j] = o.Bias[n]
				}
				dot8(&acc, o.Weights[n*o.K:(n+1)*o.K], x[goLanes*t*o.K:], off)
				store8(y[goLanes*(t*o.N+n):], &acc, o.Relu)
			}
		}
	}
}

// Everything below works for any number of lanes.

// span returns the window taps that lie inside of the input: first, last+1.
func span(start, taps, dilation, size int) (lo, hi int) {
	if start < 0 {
		lo = (-start + dilation - 1) / dilation
	}
	hi = taps
	if start+(taps-1)*dilation >= size {
		hi = (size - start + dilation - 1) / dilation
	}
	return lo, hi
}

// maxPool uses the vector kernel, if there is one, for each run of neighbours.
func maxPool(o *Pool, x, y []float32, lanes int, k *kernels) {
	direct := k != nil && o.DilationW == 1
	for c := range o.C {
		for oh := range o.OH {
			h0, h1 := span(oh*o.StrideH-o.Top, o.KH, o.DilationH, o.H)
			for ow := range o.OW {
				w0, w1 := span(ow*o.StrideW-o.Left, o.KW, o.DilationW, o.W)
				dst := y[lanes*((c*o.OH+oh)*o.OW+ow):][:lanes]
				if direct && h1 == h0+1 && w1 > w0 {
					k.maxRows(&dst[0], &x[lanes*((c*o.H+oh*o.StrideH-o.Top+h0*o.DilationH)*o.W+ow*o.StrideW-o.Left+w0)], 1, w1-w0)
					continue
				}
				for i := range dst {
					dst[i] = float32(math.Inf(-1))
				}
				for h := h0; h < h1; h++ {
					for w := w0; w < w1; w++ {
						src := x[lanes*((c*o.H+oh*o.StrideH-o.Top+h*o.DilationH)*o.W+ow*o.StrideW-o.Left+w*o.DilationW):][:lanes]
						for i, v := range src {
							if v > dst[i] {
								dst[i] = v
							}
						}
					}
				}
			}
		}
	}
}

func averagePool(o *Pool, x, y []float32, lanes int) {
	for c := range o.C {
		for oh := range o.OH {
			top := oh*o.StrideH - o.Top
			h0, h1 := span(top, o.KH, 1, o.H)
			for ow := range o.OW {
				left := ow*o.StrideW - o.Left
				w0, w1 := span(left, o.KW, 1, o.W)
				n := (h1 - h0) * (w1 - w0)
				if o.CountPad { // padding counts, what ceil_mode adds beyond it does not
					n = min(o.KH, o.H+o.Bottom-top) * min(o.KW, o.W+o.Right-left)
				}
				dst := y[lanes*((c*o.OH+oh)*o.OW+ow):][:lanes]
				clear(dst)
				for h := h0; h < h1; h++ {
					for w := w0; w < w1; w++ {
						src := x[lanes*((c*o.H+top+h)*o.W+left+w):][:lanes]
						for i, v := range src {
							dst[i] += v
						}
					}
				}
				for i := range dst {
					dst[i] /= float32(n)
				}
			}
		}
	}
}

func reduce(o *Reduce, x, y []float32, lanes int) {
	for a := range o.Outer {
		dst := y[lanes*a:][:lanes]
		copy(dst, x[lanes*a*o.N:])
		for n := 1; n < o.N; n++ {
			src := x[lanes*(a*o.N+n):][:lanes]
			if o.Kind == ReduceMax {
				for i, v := range src {
					if v > dst[i] {
						dst[i] = v
					}
				}
			} else {
				for i, v := range src {
					dst[i] += v
				}
			}
		}
	}
	if o.Kind == ReduceMean {
		divide(y, float32(o.N))
	}
}

func divide(y []float32, n float32) {
	for i := range y {
		y[i] /= n
	}
}

func affine(o *Affine, x, y []float32, lanes int) {
	for r, s := range o.Scale {
		t := o.Shift[r]
		src, dst := x[r*lanes:(r+1)*lanes], y[r*lanes:(r+1)*lanes]
		for i, v := range src {
			v = v*s + t
			if o.Relu && v < 0 {
				v = 0
			}
			dst[i] = v
		}
	}
}

func binaryConst(o *Binary, x, y []float32, lanes int) {
	for r, c := range o.Const {
		src, dst := x[r*lanes:(r+1)*lanes], y[r*lanes:(r+1)*lanes]
		if o.Swap {
			for i, v := range src {
				dst[i] = combine(o.Kind, c, v)
			}
		} else {
			for i, v := range src {
				dst[i] = combine(o.Kind, v, c)
			}
		}
	}
}

func embed(o *Embed, x, y []float32, lanes int) {
	for r := range len(x) / lanes {
		dst := y[r*o.D*lanes:]
		for l, v := range x[r*lanes : (r+1)*lanes] {
			if v < 0 {
				v += float32(o.N)
			}
			e := 0 // also for NaN
			if v > 0 {
				e = int(min(v, float32(o.N-1)))
			}
			for d, t := range o.Table[e*o.D : (e+1)*o.D] {
				dst[d*lanes+l] = t
			}
		}
	}
}

func softmax(o *Softmax, x, y []float32, lanes int) {
	step := o.Inner * lanes
	for a := range o.Outer {
		for b := range o.Inner {
			base := (a*o.N*o.Inner + b) * lanes
			for l := base; l < base+lanes; l++ {
				top := x[l]
				for n := 1; n < o.N; n++ {
					top = max(top, x[l+n*step])
				}
				var sum float64
				for n := range o.N {
					e := math.Exp(float64(x[l+n*step] - top))
					y[l+n*step] = float32(e)
					sum += e
				}
				inv := float32(1 / sum)
				for n := range o.N {
					y[l+n*step] *= inv
				}
			}
		}
	}
}

// softmaxVec is softmax for Inner = 1 with a vector exp. The sum is taken in order, lane by lane.
func softmaxVec(o *Softmax, x, y []float32, lanes int, exp func(dst, src *float32, n int)) {
	for a := range o.Outer {
		src, dst := x[a*o.N*lanes:(a+1)*o.N*lanes], y[a*o.N*lanes:(a+1)*o.N*lanes]
		for l := range lanes {
			top := src[l]
			for i := l + lanes; i < len(src); i += lanes {
				top = max(top, src[i])
			}
			for i := l; i < len(src); i += lanes {
				dst[i] = src[i] - top
			}
		}
		exp(&dst[0], &dst[0], len(dst))
		for l := range lanes {
			var sum float32
			for i := l; i < len(dst); i += lanes {
				sum += dst[i]
			}
			inv := 1 / sum
			for i := l; i < len(dst); i += lanes {
				dst[i] *= inv
			}
		}
	}
}
