//go:build !amd64

package model

func kernelsFor(ISA) *kernels { return nil }
