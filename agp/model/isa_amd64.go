package model

import (
	"golang.org/x/sys/cpu"

	"github.com/agp-net/telegraf-agp/agp/model/internal/asm"
)

var functions = map[UnaryKind]func(dst, src *float32, n int){
	Exp: asm.Exp, Log: asm.Log, Sigmoid: asm.Sigmoid, Tanh: asm.Tanh,
}

var avx2Kernels = &kernels{
	lanes: 8,
	tiles: []tileKernel{
		{3, 1, asm.ProductAVX2_4x3p1},
		{2, 1, asm.ProductAVX2_4x2p1},
		{1, 1, asm.ProductAVX2_4x1p1},
		{2, 2, asm.ProductAVX2_4x2p2},
		{3, 3, asm.ProductAVX2_4x3p3},
	},
	wide:      asm.ProductAVX2_8x1p1,
	affine:    asm.AffineAVX2,
	maxRows:   asm.MaxRowsAVX2,
	sumRows:   asm.SumRowsAVX2,
	embed:     asm.EmbedAVX2,
	transpose: asm.Transpose8,
	functions: functions,
}

var avx512Kernels = &kernels{
	lanes: 16,
	tiles: []tileKernel{
		{6, 1, asm.ProductAVX512_4x6p1},
		{4, 1, asm.ProductAVX512_4x4p1},
		{2, 1, asm.ProductAVX512_4x2p1},
		{1, 1, asm.ProductAVX512_4x1p1},
		{6, 2, asm.ProductAVX512_4x6p2},
		{4, 2, asm.ProductAVX512_4x4p2},
		{2, 2, asm.ProductAVX512_4x2p2},
		{6, 3, asm.ProductAVX512_4x6p3},
		{3, 3, asm.ProductAVX512_4x3p3},
	},
	wide:      asm.ProductAVX512_8x1p1,
	affine:    asm.AffineAVX512,
	maxRows:   asm.MaxRowsAVX512,
	sumRows:   asm.SumRowsAVX512,
	embed:     asm.EmbedAVX512,
	transpose: asm.Transpose8,
	functions: functions,
}

// kernelsFor returns nil if the machine lacks the set, and for Go.
func kernelsFor(i ISA) *kernels {
	switch {
	case i == AVX2 && cpu.X86.HasAVX2 && cpu.X86.HasFMA:
		return avx2Kernels
	case i == AVX512 && cpu.X86.HasAVX512F && cpu.X86.HasAVX512VL && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512DQ && cpu.X86.HasFMA:
		return avx512Kernels
	}
	return nil
}
