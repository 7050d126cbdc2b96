package ethtool

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	cmdSFeatures = 0x3b
	setFeatures  = 4  // ETH_SS_FEATURES
	nameLen      = 32 // ETH_GSTRING_LEN
	maxNames     = 4096

	unsupported = 1 // ETHTOOL_F_UNSUPPORTED: some were fixed; nothing else changed
)

// Driver says which driver and which hardware an interface has.
type Driver struct {
	Name     string `json:"name"`
	Version  string `json:"version"`
	Firmware string `json:"firmware"`
	Bus      string `json:"bus"` // address of the device, "" or "N/A" if it is virtual
}

// Driver returns the driver of the interface.
func (d *Device) Driver() (Driver, error) {
	r := unix.EthtoolDrvinfo{Cmd: unix.ETHTOOL_GDRVINFO}
	_, err := d.ioctl("read driver", unsafe.Pointer(&r))
	return Driver{text(r.Driver[:]), text(r.Version[:]), text(r.Fw_version[:]), text(r.Bus_info[:])}, err
}

func text(b []byte) string {
	b, _, _ = bytes.Cut(b, []byte{0})
	return string(b)
}

// PermanentAddress returns the address that the hardware was made with, nil if it has none.
func (d *Device) PermanentAddress() (net.HardwareAddr, error) {
	var r struct {
		cmd, size uint32
		data      [32]byte
	}
	r.cmd, r.size = unix.ETHTOOL_GPERMADDR, uint32(len(r.data))
	if _, err := d.ioctl("read permanent address", unsafe.Pointer(&r)); err != nil {
		return nil, err
	}
	a := r.data[:min(int(r.size), len(r.data))]
	if len(bytes.Trim(a, "\x00")) == 0 {
		return nil, nil
	}
	return bytes.Clone(a), nil
}

// Feature is an offload or another switch of an interface.
type Feature struct {
	Active bool // in effect now
	Wanted bool // asked for; in effect when nothing forbids it
	Fixed  bool // cannot be changed
}

// Features returns all switches of the interface by the name that the kernel gives
// them, as rx-gro, tx-tcp-segmentation, rx-ntuple-filter.
func (d *Device) Features() (map[string]Feature, error) {
	names, err := d.featureNames()
	if err != nil {
		return nil, err
	}
	blocks := (len(names) + 31) / 32
	b := make([]byte, 8+16*blocks) // struct ethtool_gfeatures and its blocks
	binary.NativeEndian.PutUint32(b, unix.ETHTOOL_GFEATURES)
	binary.NativeEndian.PutUint32(b[4:], uint32(blocks))
	if _, err := d.ioctl("read features", unsafe.Pointer(&b[0])); err != nil {
		return nil, err
	}
	return decodeFeatures(names, b[8:]), nil
}

// decodeFeatures reads blocks of struct ethtool_get_features_block: available,
// requested, active, never changed.
func decodeFeatures(names []string, b []byte) map[string]Feature {
	out := make(map[string]Feature, len(names))
	for i, n := range names {
		if n == "" || 16*(i/32+1) > len(b) {
			continue
		}
		block := b[16*(i/32):]
		bit := func(word int) bool { return binary.NativeEndian.Uint32(block[4*word:])>>(i%32)&1 != 0 }
		out[n] = Feature{Active: bit(2), Wanted: bit(1), Fixed: bit(3) || !bit(0)}
	}
	return out
}

// SetFeature asks for one switch to be on or off.
func (d *Device) SetFeature(name string, on bool) error {
	names, err := d.featureNames()
	if err != nil {
		return err
	}
	for i, n := range names {
		if n != name {
			continue
		}
		blocks := (len(names) + 31) / 32
		b := make([]byte, 8+8*blocks) // struct ethtool_sfeatures; a block is valid, requested
		binary.NativeEndian.PutUint32(b, cmdSFeatures)
		binary.NativeEndian.PutUint32(b[4:], uint32(blocks))
		block := b[8+8*(i/32):]
		binary.NativeEndian.PutUint32(block, 1<<(i%32))
		if on {
			binary.NativeEndian.PutUint32(block[4:], 1<<(i%32))
		}
		op := fmt.Sprintf("set feature %s", name)
		r, err := d.ioctl(op, unsafe.Pointer(&b[0]))
		if err == nil && r&unsupported != 0 {
			err = fmt.Errorf("%s: %w", op, ErrNotSupported)
		}
		return err
	}
	return fmt.Errorf("feature %s: %w", name, ErrNotSupported)
}

// featureNames returns the names of the kernel's switches; the place of a name is its bit.
func (d *Device) featureNames() ([]string, error) {
	var n struct {
		cmd, _ uint32
		mask   uint64
		count  uint32
		_      uint32
	}
	n.cmd, n.mask = unix.ETHTOOL_GSSET_INFO, 1<<setFeatures
	if _, err := d.ioctl("count features", unsafe.Pointer(&n)); err != nil {
		return nil, err
	}
	if n.mask == 0 || n.count > maxNames {
		return nil, fmt.Errorf("features: %w", ErrNotSupported)
	}
	b := make([]byte, 12+nameLen*int(n.count)) // struct ethtool_gstrings
	binary.NativeEndian.PutUint32(b, unix.ETHTOOL_GSTRINGS)
	binary.NativeEndian.PutUint32(b[4:], setFeatures)
	binary.NativeEndian.PutUint32(b[8:], n.count)
	if _, err := d.ioctl("read names of features", unsafe.Pointer(&b[0])); err != nil {
		return nil, err
	}
	names := make([]string, min(n.count, binary.NativeEndian.Uint32(b[8:])))
	for i := range names {
		names[i] = text(b[12+nameLen*i:][:nameLen])
	}
	return names, nil
}
