package model

import "fmt"

// Index tables: out element i is in element idx[i]. They implement every
// operator that only moves elements, for constants at load and for activations
// as a Gather layer. Callers have checked the element count of the result.

func size(dims []int) int {
	n := 1
	for _, d := range dims {
		n *= d
	}
	return n
}

// each calls f with every coordinate of dims in row-major order.
func each(dims []int, f func(at []int)) {
	if size(dims) == 0 {
		return
	}
	at := make([]int, len(dims))
	for {
		f(at)
		i := len(dims) - 1
		for ; i >= 0; i-- {
			if at[i]++; at[i] < dims[i] {
				break
			}
			at[i] = 0
		}
		if i < 0 {
			return
		}
	}
}

func strides(dims []int) []int {
	s := make([]int, len(dims))
	n := 1
	for i := len(dims) - 1; i >= 0; i-- {
		s[i] = n
		n *= dims[i]
	}
	return s
}

// indexBy builds a table for the result shape out, from the source element that src
// names for each coordinate.
func indexBy(out []int, src func(at []int) int) []int32 {
	idx := make([]int32, 0, size(out))
	each(out, func(at []int) { idx = append(idx, int32(src(at))) })
	return idx
}

func permuteIndex(dims, perm []int) (out []int, idx []int32) {
	st := strides(dims)
	out = make([]int, len(dims))
	for i, p := range perm {
		out[i] = dims[p]
	}
	return out, indexBy(out, func(at []int) int {
		j := 0
		for i, p := range perm {
			j += at[i] * st[p]
		}
		return j
	})
}

// sliceIndex takes coordinates start + at*step.
func sliceIndex(dims, out, start, step []int) []int32 {
	st := strides(dims)
	return indexBy(out, func(at []int) int {
		j := 0
		for i, a := range at {
			j += (start[i] + a*step[i]) * st[i]
		}
		return j
	})
}

// padIndex gives -1 where the result lies outside of the source.
func padIndex(dims, out, before []int) []int32 {
	st := strides(dims)
	return indexBy(out, func(at []int) int {
		j := 0
		for i, a := range at {
			a -= before[i]
			if a < 0 || a >= dims[i] {
				return -1
			}
			j += a * st[i]
		}
		return j
	})
}

// takeIndex picks entries (already within range) along axis; a list of shape sel replaces the axis.
func takeIndex(dims []int, axis int, entries []int, sel []int) (out []int, idx []int32) {
	outer, inner := size(dims[:axis]), size(dims[axis+1:])
	out = append(append(append([]int{}, dims[:axis]...), sel...), dims[axis+1:]...)
	idx = make([]int32, 0, size(out))
	for o := range outer {
		for _, e := range entries {
			for i := range inner {
				idx = append(idx, int32((o*dims[axis]+e)*inner+i))
			}
		}
	}
	return out, idx
}

// broadcast returns the common shape of a and b by ONNX's multidirectional rule.
func broadcast(a, b []int) ([]int, error) {
	n := max(len(a), len(b))
	out := make([]int, n)
	for i := range n {
		x, y := 1, 1
		if j := i - (n - len(a)); j >= 0 {
			x = a[j]
		}
		if j := i - (n - len(b)); j >= 0 {
			y = b[j]
		}
		switch {
		case x == y || y == 1:
			out[i] = x
		case x == 1:
			out[i] = y
		default:
			return nil, fmt.Errorf("%w: %v and %v do not broadcast", ErrShape, a, b)
		}
	}
	return out, nil
}

func broadcastIndex(dims, out []int) []int32 {
	st := strides(dims)
	lead := len(out) - len(dims)
	return indexBy(out, func(at []int) int {
		j := 0
		for i, d := range dims {
			if d != 1 {
				j += at[lead+i] * st[i]
			}
		}
		return j
	})
}

func identity(idx []int32, n int) bool {
	if len(idx) != n {
		return false
	}
	for i, x := range idx {
		if int(x) != i {
			return false
		}
	}
	return true
}
