//go:build !linux || !(amd64 || arm64)

package libcuda

import "github.com/agp-net/telegraf-agp/cuda/internal/api"

// Load returns ErrAbsent: there is no driver for this system.
func Load() (api.Driver, error) { return nil, ErrAbsent }
