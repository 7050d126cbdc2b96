package place

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

var errNotPermitted = errors.New("CUDA_ERROR_NOT_PERMITTED (800)")

// host fails the calls that it is told to, and knows what is held.
type host struct {
	fail map[string]error
	held []string
	log  []string
}

func (h *host) call(name string) (func(), error) {
	h.log = append(h.log, name)
	if err := h.fail[name]; err != nil {
		return nil, err
	}
	h.held = append(h.held, name)
	return func() {
		if last := h.held[len(h.held)-1]; last != name {
			panic(fmt.Sprintf("%s is given back before %s", name, last))
		}
		h.held = h.held[:len(h.held)-1]
	}, nil
}

func (h *host) ExportDMABuf() (int, func(), error) {
	undo, err := h.call("export")
	return 7, undo, err
}
func (h *host) RegisterDMABuf(fd int) (func(), error) {
	if fd != 7 {
		return nil, syscall.EBADF
	}
	return h.call("dmabuf")
}
func (h *host) RegisterPeer() (func(), error) { return h.call("peer") }
func (h *host) RegisterHost() (func(), error) { return h.call("host") }
func (h *host) MapUAR() (func(), error)       { return h.call("uar") }

func TestBehaviour25EveryHostCallFails(t *testing.T) {
	for _, v := range []struct {
		fail     string // calls, and what they return
		memory   Kind
		doorbell Doorbell
		refused  int
	}{
		{"", KindDMABuf, DoorbellDirect, 0},
		{"export", KindPeer, DoorbellDirect, 1},
		{"dmabuf", KindPeer, DoorbellDirect, 1},
		{"peer", KindDMABuf, DoorbellDirect, 0},
		{"host", KindDMABuf, DoorbellDirect, 0},
		{"uar", KindDMABuf, DoorbellProxy, 1},
		{"export peer", KindHost, DoorbellDirect, 2},
		{"dmabuf peer uar", KindHost, DoorbellProxy, 3},
		{"export peer host", 0, 0, 0},
	} {
		h := &host{fail: map[string]error{}}
		for _, f := range strings.Fields(v.fail) {
			h.fail[f] = map[string]error{"export": syscall.EOPNOTSUPP, "dmabuf": syscall.EFAULT, "peer": syscall.EINVAL, "host": syscall.ENOMEM, "uar": errNotPermitted}[f]
		}
		p, err := Choose(h, true)
		if v.memory == 0 {
			require.ErrorIs(t, err, ErrNone)
			for _, cause := range []error{syscall.EOPNOTSUPP, syscall.EINVAL, syscall.ENOMEM} {
				require.ErrorIs(t, err, cause, "the message says all that was tried")
			}
			require.Empty(t, h.held, "nothing is held")
			continue
		}
		require.NoError(t, err)
		require.Equal(t, v.memory, p.Memory, v.fail)
		require.Equal(t, v.doorbell, p.Doorbell, v.fail)
		require.Len(t, p.Refused, v.refused, v.fail)
		for _, r := range p.Refused {
			require.Contains(t, []error{syscall.EOPNOTSUPP, syscall.EFAULT, syscall.EINVAL, errNotPermitted}, root(r))
		}
		p.Close()
		p.Close()
		require.Empty(t, h.held)
	}
}

func root(err error) error {
	for {
		next := errors.Unwrap(err)
		if next == nil {
			return err
		}
		err = next
	}
}

func TestReceivingNeedsNoDoorbell(t *testing.T) {
	h := &host{fail: map[string]error{"uar": errNotPermitted}}
	p, err := Choose(h, false)
	require.NoError(t, err)
	require.Equal(t, DoorbellNone, p.Doorbell)
	require.Empty(t, p.Refused)
	require.NotContains(t, h.log, "uar")
	require.Equal(t, []string{"GPU memory (dmabuf)", "GPU memory (nvidia-peermem)", "pinned host memory", "none"},
		[]string{KindDMABuf.String(), KindPeer.String(), KindHost.String(), Kind(0).String()})
}
