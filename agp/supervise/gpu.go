package supervise

import (
	"errors"
	"fmt"
	"time"
)

// A GPU that fails one engine after the other is left alone, where the configuration lets the
// engine choose.
const (
	gpuTries   = 3                // engines in a row that it may fail
	gpuRest    = 10 * time.Minute // the first time, twice as long each time after
	gpuMaxRest = 24 * time.Hour
)

// gpuFault marks an error of which the engine said that it is the GPU's.
type gpuFault struct{ error }

func (g gpuFault) Unwrap() error { return g.error }

// blamed says whether the end of an engine is, or may be, the GPU's doing: an engine that had
// one, or was still looking for one, and could not even say why it ended is counted as well.
func blamed(pipeline string, choosing bool, err error) bool {
	var fault gpuFault
	if errors.As(err, &fault) {
		return true
	}
	wordless := errors.Is(err, ErrDied) || errors.Is(err, ErrSilent)
	return wordless && (pipeline == "cuda" || pipeline == "" && choosing)
}

// gpuHealth remembers how engines fared with the GPU. It belongs to the loop.
type gpuHealth struct {
	failures int
	rest     time.Duration
	until    time.Time
	last     error
}

// worked says that an engine has lived with the GPU.
func (g *gpuHealth) worked() { *g = gpuHealth{} }

// failed books an engine that the GPU has failed, and says for how long it is left alone now, 0
// if it is not.
func (g *gpuHealth) failed(err error, now time.Time) time.Duration {
	g.failures++
	g.last = err
	if g.failures < gpuTries {
		return 0
	}
	g.rest = min(max(2*g.rest, gpuRest), gpuMaxRest)
	g.until = now.Add(g.rest)
	return g.rest
}

// verdict says why an engine that starts now is not to use the GPU, "" if it may.
func (g *gpuHealth) verdict(now time.Time) string {
	if !now.Before(g.until) {
		return ""
	}
	return fmt.Sprintf("%d engines in a row failed with the GPU, the last one: %v; an engine that starts after %s tries it again",
		g.failures, g.last, g.until.UTC().Format(time.RFC3339))
}
