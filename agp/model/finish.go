package model

import (
	"fmt"
	"slices"
)

// finish removes what does not reach the output, fuses layers and lays out the arena.
func finish(values []Value, layers []Layer, in, out int) (*Plan, error) {
	layers = prune(layers, out)
	layers = fuse(values, layers, out)
	p := &Plan{In: in, Out: out, Inputs: values[in].Rows, Outputs: values[out].Rows}

	// Renumber the values that are left, in the order in which they appear.
	ids := make([]int, len(values))
	for i := range ids {
		ids[i] = -1
	}
	id := func(v int) int {
		if ids[v] < 0 {
			ids[v] = len(p.Values)
			p.Values = append(p.Values, values[v])
		}
		return ids[v]
	}
	p.In = id(in)
	for _, l := range layers {
		l.In = slices.Clone(l.In)
		for i, v := range l.In {
			l.In[i] = id(v)
		}
		l.Out = id(l.Out)
		p.Layers = append(p.Layers, l)
	}
	p.Out = id(out)
	for i := range p.Layers {
		l := &p.Layers[i]
		switch o := l.Op.(type) {
		case *Conv:
			p.Params += len(o.Weights) + len(o.Bias)
			p.MACs += o.macs()
		case *Dense:
			p.Params += len(o.Weights) + len(o.Bias)
			p.MACs += o.macs()
		case *Affine:
			p.Params += len(o.Scale) + len(o.Shift)
		case *Embed:
			p.Params += len(o.Table)
		}
	}
	if n := len(p.Layers); n > 0 {
		switch o := p.Layers[n-1].Op.(type) {
		case *Softmax:
			if o.Outer == 1 && o.Inner == 1 {
				p.Final = FinalSoftmax
			}
		case *Unary:
			if o.Kind == Sigmoid {
				p.Final = FinalSigmoid
			}
		}
	}
	return p, p.layout()
}

func prune(layers []Layer, out int) []Layer {
	need := map[int]bool{out: true}
	var kept []Layer
	for i := len(layers) - 1; i >= 0; i-- {
		if need[layers[i].Out] {
			for _, v := range layers[i].In {
				need[v] = true
			}
			kept = append(kept, layers[i])
		}
	}
	slices.Reverse(kept)
	return kept
}

// fuse merges a layer into the one before it, where that is the only reader.
func fuse(values []Value, layers []Layer, out int) []Layer {
	uses := make([]int, len(values))
	uses[out]++
	for _, l := range layers {
		for _, v := range l.In {
			uses[v]++
		}
	}
	made := make([]int, len(values)) // kept layer that makes a value, plus 1
	var kept []Layer
	for _, l := range layers {
		if len(l.In) == 1 && uses[l.In[0]] == 1 && made[l.In[0]] > 0 {
			j := made[l.In[0]] - 1
			if slack, ok := absorb(&kept[j], l, values[l.In[0]].Slack); ok {
				kept[j].Out = l.Out
				kept[j].Name = clip(kept[j].Name + "+" + l.Name)
				values[l.Out].Slack = slack
				made[l.Out] = j + 1
				continue
			}
		}
		kept = append(kept, l)
		made[l.Out] = len(kept)
	}
	return kept
}

// absorb merges l into its producer p and returns the slack of the result.
func absorb(p *Layer, l Layer, slack int) (int, bool) {
	switch o := l.Op.(type) {
	case *Unary:
		if o.Kind != Relu {
			return 0, false
		}
		switch q := p.Op.(type) {
		case *Conv:
			q.Relu = true // also right after a fused pool: max and ReLU commute
			return slack, true
		case *Dense:
			q.Relu = true
			return slack, true
		case *Affine:
			q.Relu = true
			return slack, true
		}
	case *Affine:
		switch q := p.Op.(type) {
		case *Conv:
			if !q.Relu && q.Pool == 1 {
				ok := foldAffine(q.Weights, q.Bias, o, func(f, i int) int { return f*q.OH*q.OW + i }, q.OH*q.OW)
				q.Relu = ok && o.Relu
				return slack, ok
			}
		case *Dense:
			if !q.Relu {
				ok := foldAffine(q.Weights, q.Bias, o, func(n, i int) int { return i*q.N + n }, q.T)
				q.Relu = ok && o.Relu
				return slack, ok
			}
		case *Affine:
			// x*s + t is one step; anything else would round differently.
			if !q.Relu && isAll(q.Shift, 0) && isAll(o.Scale, 1) {
				q.Shift, q.Relu = o.Shift, o.Relu
				return slack, true
			}
		}
	case *Pool:
		q, ok := p.Op.(*Conv)
		if ok && q.Pool == 1 && q.OH == 1 && o.H == 1 && o.C == q.F && o.W == q.OW && !o.Average &&
			o.KH == 1 && o.KW == o.StrideW && (o.KW == 2 || o.KW == 3) && o.DilationW == 1 &&
			o.Left == 0 && o.Right == 0 && o.Top == 0 && o.Bottom == 0 && o.OW == q.OW/o.KW {
			q.Pool = o.KW
			return convSlack(q), true
		}
	}
	return 0, false
}

// convSlack is how many rows a kernel may write past the last filter: filters go in fours.
func convSlack(c *Conv) int { return 3 * c.OH * (c.OW / c.Pool) }

func isAll(s []float32, x float32) bool {
	for _, v := range s {
		if v != x {
			return false
		}
	}
	return true
}

// foldAffine folds an affine layer that has one scale and one shift per filter into
// weights and bias. row(f, i) is the i-th of n outputs of filter f.
func foldAffine(w, bias []float32, a *Affine, row func(f, i int) int, n int) bool {
	for f := range bias {
		for i := range n {
			if a.Scale[row(f, i)] != a.Scale[row(f, 0)] || a.Shift[row(f, i)] != a.Shift[row(f, 0)] {
				return false
			}
		}
	}
	per := len(w) / len(bias)
	for f := range bias {
		s, t := a.Scale[row(f, 0)], a.Shift[row(f, 0)]
		for i := range per {
			w[f*per+i] *= s
		}
		bias[f] = bias[f]*s + t
	}
	return true
}

// layout places values in the arena: first fit by lifetime.
func (p *Plan) layout() error {
	last := make([]int, len(p.Values))
	for i, l := range p.Layers {
		for _, v := range l.In {
			last[v] = i
		}
	}
	last[p.Out] = len(p.Layers)
	var live []int // by offset
	place := func(v, now int) error {
		live = slices.DeleteFunc(live, func(u int) bool { return last[u] < now })
		need := p.Values[v].Rows + p.Values[v].Slack
		at, pos := 0, len(live)
		for i, u := range live {
			if p.Values[u].Offset-at >= need {
				pos = i
				break
			}
			at = p.Values[u].Offset + p.Values[u].Rows + p.Values[u].Slack
		}
		if at+need > maxArenaRows {
			return fmt.Errorf("%w: activations need more than %d floats per flow", ErrTooLarge, maxArenaRows)
		}
		p.Values[v].Offset = at
		p.Arena = max(p.Arena, at+need)
		live = slices.Insert(live, pos, v)
		return nil
	}
	if err := place(p.In, 0); err != nil {
		return err
	}
	for i, l := range p.Layers {
		// A value that nobody reads was pruned, so last[l.Out] > i.
		if err := place(l.Out, i); err != nil {
			return err
		}
	}
	return nil
}
