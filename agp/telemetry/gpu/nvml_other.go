//go:build !linux || !(amd64 || arm64)

package gpu

func load() (library, error) { return nil, ErrAbsent }
