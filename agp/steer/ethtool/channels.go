package ethtool

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	cmdSRingParam = 0x11
	cmdSChannels  = 0x3d
)

// Channels are the queues of an interface: those that only receive, only send,
// do something else, or receive and send.
type Channels struct {
	RX       uint32 `json:"rx"`
	TX       uint32 `json:"tx"`
	Other    uint32 `json:"other"`
	Combined uint32 `json:"combined"`
}

// Receive is the number of receive queues.
func (c Channels) Receive() int { return int(c.RX + c.Combined) }

// channelsReq is struct ethtool_channels.
type channelsReq struct {
	cmd          uint32
	max, current Channels // the order of the fields is that of the structure
}

// Channels returns the present numbers of queues and the largest possible ones.
func (d *Device) Channels() (current, max Channels, err error) {
	r := channelsReq{cmd: unix.ETHTOOL_GCHANNELS}
	_, err = d.ioctl("read channels", unsafe.Pointer(&r))
	return r.current, r.max, err
}

// SetChannels changes the numbers of queues. Most drivers stop the port for a
// moment to do it.
func (d *Device) SetChannels(c Channels) error {
	r := channelsReq{cmd: cmdSChannels, current: c}
	_, err := d.ioctl("set channels", unsafe.Pointer(&r))
	return err
}

// Rings are the descriptors of each queue.
type Rings struct {
	RX      uint32 `json:"rx"`
	RXMini  uint32 `json:"rx_mini"`
	RXJumbo uint32 `json:"rx_jumbo"`
	TX      uint32 `json:"tx"`
}

// ringsReq is struct ethtool_ringparam.
type ringsReq struct {
	cmd          uint32
	max, current Rings // the order of the fields is that of the structure
}

// Rings returns the present and the largest possible numbers of descriptors.
func (d *Device) Rings() (current, max Rings, err error) {
	r := ringsReq{cmd: unix.ETHTOOL_GRINGPARAM}
	_, err = d.ioctl("read rings", unsafe.Pointer(&r))
	return r.current, r.max, err
}

// SetRings changes the numbers of descriptors. Most drivers stop the port for a
// moment to do it, and some round the numbers up.
func (d *Device) SetRings(c Rings) error {
	r := ringsReq{cmd: cmdSRingParam, current: c}
	_, err := d.ioctl("set rings", unsafe.Pointer(&r))
	return err
}
