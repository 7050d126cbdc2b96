package model

import (
	"fmt"
	"os"
	"sync"

	"github.com/agp-net/telegraf-agp/agp/model/internal/asm"
)

// ISA is a set of kernels.
type ISA uint8

// Kernel sets, from the one that runs everywhere to the fastest.
const (
	Go ISA = iota
	AVX2
	AVX512
)

// EnvISA names an environment variable (go, avx2 or avx512) that keeps executors from using anything faster.
const EnvISA = "AGP_MODEL_ISA"

func (i ISA) String() string {
	switch i {
	case AVX2:
		return "avx2"
	case AVX512:
		return "avx512"
	}
	return "go"
}

// ISAs lists what this machine can run, slowest first.
func ISAs() []ISA {
	list := []ISA{Go}
	for _, i := range []ISA{AVX2, AVX512} {
		if kernelsFor(i) != nil {
			list = append(list, i)
		}
	}
	return list
}

// DefaultISA is the fastest set that this machine has and EnvISA allows.
var DefaultISA = sync.OnceValue(func() ISA { return chooseISA(ISAs(), os.Getenv(EnvISA)) })

// chooseISA takes a limit that is none of the names for no limit.
func chooseISA(have []ISA, limit string) ISA {
	top := AVX512
	for i := Go; i <= AVX512; i++ {
		if i.String() == limit {
			top = i
		}
	}
	best := Go
	for _, i := range have {
		if i <= top {
			best = max(best, i)
		}
	}
	return best
}

// kernels is one vector set; nil stands for plain Go.
type kernels struct {
	lanes   int
	tiles   []tileKernel    // four filters, widest first
	wide    func(*asm.Args) // eight filters, one position
	affine  func(dst, src, scale, shift *float32, rows int, lo float32)
	maxRows func(dst, src *float32, runs, n int)
	sumRows func(dst, src *float32, runs, n int)
	embed   func(dst, src, table *float32, rows, n, d int)
	// Eight lanes each, whatever the set.
	transpose func(dst, src *float32, blocks, dstStride, srcStride int)
	functions map[UnaryKind]func(dst, src *float32, n int)
}

type tileKernel struct {
	positions, pool int
	run             func(*asm.Args)
}

// tile returns the widest kernel for at most n positions.
func (k *kernels) tile(n, pool int) tileKernel {
	for _, t := range k.tiles {
		if t.pool == pool && t.positions <= n {
			return t
		}
	}
	panic(fmt.Sprintf("model: no kernel for %d positions and a pool of %d", n, pool))
}
