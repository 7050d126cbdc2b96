package packet_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/packet"
	"github.com/agp-net/telegraf-agp/agp/source"
	"github.com/agp-net/telegraf-agp/agp/source/pcap"
	"github.com/agp-net/telegraf-agp/tests/testcap"
)

// The device's parser (cuda/kernels/parse.cuh, fragment.cuh) runs here as a program of the
// host, testdata/device.cc, once optimised and once under the sanitizers; a byte read beyond a
// frame ends it.

// builds are the ways in which the program is compiled.
var builds = map[string][]string{
	"optimised": {"-O2"},
	"sanitized": {"-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"},
}

var programs struct {
	sync.Mutex
	dir   string
	paths map[string]string
}

func TestMain(m *testing.M) {
	code := m.Run()
	if programs.dir != "" {
		os.RemoveAll(programs.dir)
	}
	os.Exit(code)
}

// program returns the path of a build, which is made on first use.
func program(t testing.TB, build string) string {
	t.Helper()
	programs.Lock()
	defer programs.Unlock()
	if path := programs.paths[build]; path != "" {
		return path
	}
	cxx := testcap.Program(t, "g++")
	if programs.dir == "" {
		dir, err := os.MkdirTemp("", "agp-device")
		require.NoError(t, err)
		programs.dir, programs.paths = dir, map[string]string{}
	}
	path := filepath.Join(programs.dir, build)
	args := append([]string{"-std=c++17", "-Wall", "-Wextra", "-Werror", "-I../../cuda/kernels", "-I../../tests/simt/lib", "-o", path}, builds[build]...)
	out, err := exec.Command(cxx, append(args, "testdata/device.cc")...).CombinedOutput() //nolint:gosec // this repository's own source
	require.NoError(t, err, "%s", out)
	programs.paths[build] = path
	return path
}

// Operations of device.cc.
const (
	opParse = iota
	opTable
	opResolve
	opVerdictCount
	opQuick
)

// An answer of device.cc. Its packet is laid out like an Info, with the frame's segment size
// and side behind it.
type answer struct {
	value, _    uint32
	info        packet.Info
	segmentSize uint16
	side, pad   uint8
	_           uint32
}

// A device answers batches of requests. It belongs to one goroutine.
type device struct {
	t      testing.TB
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    io.Reader
	errors bytes.Buffer
	end    func() error // ends the program and returns what it died of
	count  uint32
	batch  []byte // 8 bytes for its header, then requests
	reply  []answer
}

func newDevice(t testing.TB, build string) *device {
	t.Helper()
	d := &device{t: t, batch: make([]byte, 8)}
	d.cmd = exec.Command(program(t, build)) //nolint:gosec // built above
	d.cmd.Stderr = &d.errors
	var err error
	d.in, err = d.cmd.StdinPipe()
	require.NoError(t, err)
	d.out, err = d.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, d.cmd.Start())
	d.end = sync.OnceValue(func() error {
		d.in.Close()
		if err := d.cmd.Wait(); err != nil {
			return fmt.Errorf("device: %w\n%s", err, d.errors.String())
		}
		return nil
	})
	t.Cleanup(func() { require.NoError(t, d.end()) })
	return d
}

func (d *device) add(op, link, wireLen, decap, have uint32, body []byte) {
	for _, v := range [...]uint32{op, link, wireLen, decap, have, uint32(len(body))} {
		d.batch = binary.LittleEndian.AppendUint32(d.batch, v)
	}
	d.batch = append(d.batch, body...)
	d.count++
}

// run sends the batch and returns the answers, which are good until the next call.
func (d *device) run() []answer {
	binary.LittleEndian.PutUint32(d.batch, d.count)
	binary.LittleEndian.PutUint32(d.batch[4:], uint32(len(d.batch)-8))
	if cap(d.reply) < int(d.count) {
		d.reply = make([]answer, d.count)
	}
	d.reply = d.reply[:d.count]
	_, err := d.in.Write(d.batch)
	if err == nil && d.count > 0 {
		size := int(unsafe.Sizeof(answer{}))
		_, err = io.ReadFull(d.out, unsafe.Slice((*byte)(unsafe.Pointer(&d.reply[0])), size*int(d.count)))
	}
	if err != nil {
		d.t.Fatalf("inside a batch: %v, %v", err, d.end())
	}
	d.batch, d.count = d.batch[:8], 0
	return d.reply
}

// A reading is one frame to parse.
type reading struct {
	link    packet.LinkType
	wireLen uint32
	decap   uint32
	have    uint32 // bytes in the head
	frame   []byte
}

func (r *reading) String() string {
	return fmt.Sprintf("link type %d, wire length %d, decap %x, head %d of %d: %s", r.link, r.wireLen, r.decap, r.have, len(r.frame), hex.EncodeToString(r.frame))
}

const allTunnels = 15

func decapOf(bits uint32) packet.Decap {
	return packet.Decap{VXLAN: bits&1 != 0, GRE: bits&2 != 0, Geneve: bits&4 != 0, GTPU: bits&8 != 0}
}

// compare parses frames in Go and on the device. It returns how many were OK.
func (d *device) compare(frames []reading) (ok int) {
	d.t.Helper()
	for i := range frames {
		r := &frames[i]
		d.add(opParse, uint32(r.link), r.wireLen, r.decap, r.have, r.frame)
	}
	const untouched, filled = -0x5a5a5a5a5a5a5a5b, 0xa5 // what device.cc fills a packet with
	for i, got := range d.run() {
		r := &frames[i]
		p := packet.Parser{Decap: decapOf(r.decap)}
		want := packet.Info{TimestampNs: untouched}
		v := p.Parse(r.link, r.frame, r.wireLen, &want)
		if v == packet.OK {
			ok++
		} else { // all else means nothing in Go, and is 0 on the device
			want = packet.Info{TimestampNs: untouched, WireLen: want.WireLen, Flags: want.Flags & packet.FlagTruncated}
		}
		if got.value != uint32(v) {
			d.t.Fatalf("%v, on the device %v\n%v", v, packet.Verdict(got.value), r)
		}
		if got.info != want {
			d.t.Fatalf("%v:\n%+v, on the device\n%+v\n%v", v, want, got.info, r)
		}
		if got.segmentSize != filled<<8|filled || got.side != filled || got.pad != 0 {
			d.t.Fatalf("segment size %x, side %x, padding %x\n%v", got.segmentSize, got.side, got.pad, r)
		}
	}
	return ok
}

// heads are the parts of a frame that a kernel may have at hand: none (the general path), as
// much as common headers need, and all of it.
func heads(n int) []uint32 {
	return []uint32{0, uint32(min(n, 64)), uint32(n)}
}

// each runs a test with every build of the device.
func each(t *testing.T, test func(t *testing.T, d *device)) {
	for build := range builds {
		t.Run(build, func(t *testing.T) { test(t, newDevice(t, build)) })
	}
}

func TestDeviceHasTheSameVerdictsAndLayout(t *testing.T) {
	require.EqualValues(t, 88, unsafe.Offsetof(answer{}.segmentSize)-unsafe.Offsetof(answer{}.info))
	require.EqualValues(t, 8+96, unsafe.Sizeof(answer{}))
	d := newDevice(t, "optimised")
	d.add(opVerdictCount, 0, 0, 0, 0, nil)
	require.EqualValues(t, packet.NumVerdicts, d.run()[0].value)
	// The numbers: the names stand in the same order.
	header, err := os.ReadFile("../../cuda/kernels/parse.cuh")
	require.NoError(t, err)
	_, list, _ := strings.Cut(string(header), "enum verdict : uint32_t {")
	list, _, _ = strings.Cut(list, "VERDICTS,")
	var names []string
	for name := range strings.FieldsFuncSeq(list, func(r rune) bool { return strings.ContainsRune(", \t\n", r) }) {
		names = append(names, strings.ToLower(name))
	}
	require.Len(t, names, packet.NumVerdicts)
	for i, name := range names {
		require.Equal(t, packet.Verdict(i).String(), name)
	}
}

func TestDeviceReadsSamplesLikeGo(t *testing.T) {
	each(t, func(t *testing.T, d *device) {
		verdicts := map[packet.Verdict]bool{}
		var frames []reading
		for _, s := range packet.Samples() {
			for decap := range uint32(allTunnels + 1) {
				for _, have := range heads(len(s.Frame)) {
					frames = append(frames, reading{s.Link, s.Wire, decap, have, s.Frame})
				}
			}
			var in packet.Info
			var p packet.Parser
			verdicts[p.Parse(s.Link, s.Frame, s.Wire, &in)] = true
		}
		require.NotZero(t, d.compare(frames))
		for v := range packet.NumVerdicts {
			require.True(t, verdicts[packet.Verdict(v)], "a sample is %v", packet.Verdict(v))
		}
	})
}

// TestDeviceReadsCommonPacketsInLine: of a packet that is common, the headers suffice; any other
// is left to the general path.
func TestDeviceReadsCommonPacketsInLine(t *testing.T) {
	common := map[string]int{ // bytes that it takes
		"tcp4": 54, "udp4": 42, "udp6": 62, "padding": 42, "vlan": 58, "tcp_options": 54,
		"ip4_length_0_means_wire": 42, "ip4_length_more_than_wire": 42, "udp_length_more_than_ip": 42, "udp_length_less_than_header": 42,
		"udp_length_less_than_ip": 42, "tcp_offset_more_than_ip": 54, "tcp_offset_less_than_header": 54, "snap_length_cuts_payload": 42,
		"ip6_length_0_means_wire": 62, "ip6_length_more_than_wire": 62, "tcp6": 74,
	}
	tcp6 := append(make([]byte, 12), 0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, 6, 64)
	tcp6 = append(append(tcp6, make([]byte, 32+12)...), 0x50, 2, 0, 0, 0, 0, 0, 0)
	samples := append(packet.Samples(), packet.Sample{Name: "tcp6", Link: packet.LinkEthernet, Frame: tcp6, Wire: 74})
	each(t, func(t *testing.T, d *device) {
		seen := 0
		for _, s := range samples {
			if s.Link != packet.LinkEthernet {
				continue
			}
			enough := common[s.Name]
			if enough > 0 {
				seen++
			}
			port := uint16(0) // of a tunnel over UDP: an ordinary one while tunnels stay closed
			if f := s.Frame; len(f) >= 42 && f[23] == packet.ProtoUDP && bytes.Equal(f[12:15], []byte{8, 0, 0x45}) {
				port = binary.BigEndian.Uint16(f[36:])
			}
			tunnel := slices.Contains([]uint16{2152, 4789, 4790, 6081, 8472}, port)
			for have := range len(s.Frame) + 1 {
				for _, decap := range []uint32{0, allTunnels} {
					d.add(opQuick, 0, s.Wire, decap, uint32(have), s.Frame)
				}
			}
			for i, got := range d.run() {
				have, decap := i/2, i%2 == 1
				want := enough > 0 && have >= enough
				if tunnel {
					want = have >= 42 && !decap
				}
				require.Equal(t, want, got.value != 0, "%s, head of %d, decap %v", s.Name, have, decap)
			}
		}
		require.Len(t, common, seen)
	})
}

func TestDeviceReadsFramesCutAtEveryByteLikeGo(t *testing.T) {
	each(t, func(t *testing.T, d *device) {
		for _, s := range packet.Samples() {
			var frames []reading
			for n := range len(s.Frame) + 1 {
				for _, decap := range []uint32{0, allTunnels} {
					for _, wire := range []uint32{0, s.Wire} { // cut on the wire, and by the snap length
						for have := range uint32(n + 1) {
							frames = append(frames, reading{s.Link, wire, decap, have, s.Frame[:n]})
						}
					}
				}
			}
			d.compare(frames)
		}
	})
}

func TestDeviceReadsEveryFlippedBitLikeGo(t *testing.T) {
	each(t, func(t *testing.T, d *device) {
		for _, s := range packet.Samples() {
			var frames []reading
			for bit := range len(s.Frame) * 8 {
				frame := bytes.Clone(s.Frame)
				frame[bit/8] ^= 1 << (bit % 8)
				for _, decap := range []uint32{0, allTunnels} {
					for _, have := range heads(len(frame)) {
						frames = append(frames, reading{s.Link, s.Wire, decap, have, frame})
					}
				}
			}
			d.compare(frames)
		}
	})
}

// captured calls f with every batch of every capture.
func captured(t *testing.T, f func(frames []source.Frame)) {
	for _, path := range testcap.All(t) {
		r, err := pcap.Open([]string{path}, pcap.Options{})
		require.NoError(t, err)
		b := &source.Batch{}
		for {
			if _, err := r.Next(b); err != nil {
				break
			}
			f(b.Frames)
		}
		require.NoError(t, r.Close())
	}
}

func TestDeviceReadsCapturesLikeGo(t *testing.T) {
	each(t, func(t *testing.T, d *device) {
		frames, ok, quick := 0, 0, 0
		var batch []reading
		captured(t, func(fs []source.Frame) {
			batch = batch[:0]
			for _, f := range fs {
				for _, decap := range []uint32{0, allTunnels} {
					for _, have := range heads(len(f.Data)) {
						batch = append(batch, reading{f.LinkType, f.WireLen, decap, have, f.Data})
					}
				}
			}
			frames += len(fs)
			ok += d.compare(batch) / 6
			for _, f := range fs {
				if f.LinkType == packet.LinkEthernet {
					d.add(opQuick, 0, max(f.WireLen, uint32(len(f.Data))), 0, uint32(min(len(f.Data), 96)), f.Data)
				}
			}
			for _, got := range d.run() {
				quick += int(got.value)
			}
		})
		t.Logf("%d frames, %d in flows, %d read in line", frames, ok, quick)
		require.Greater(t, quick, frames/2)
	})
}

// A mutator makes frames out of others.
type mutator struct {
	rng   *rand.Rand
	seeds []reading
}

func newMutator(t *testing.T, seed uint64) *mutator {
	m := &mutator{rng: rand.New(rand.NewPCG(seed, 0))} //nolint:gosec // the same frames every time
	for _, s := range packet.Samples() {
		m.seeds = append(m.seeds, reading{link: s.Link, wireLen: s.Wire, frame: s.Frame})
	}
	t.Run("frames of captures", func(t *testing.T) { // without captures, this alone is skipped
		n := 0
		captured(t, func(fs []source.Frame) {
			for _, f := range fs {
				if n++; n%97 == 0 && len(f.Data) > 0 {
					m.seeds = append(m.seeds, reading{link: f.LinkType, wireLen: f.WireLen, frame: bytes.Clone(f.Data[:min(len(f.Data), 200)])})
				}
			}
		})
	})
	return m
}

var (
	links = []packet.LinkType{0, 1, 9, 10, 12, 14, 50, 51, 100, 101, 104, 105, 108, 113, 117, 119, 127, 163, 192, 228, 229, 276, 147}
	// Numbers that decide something somewhere: Ethernet types, ports, lengths, PPP protocols.
	numbers = []uint16{
		0, 1, 3, 4, 5, 7, 8, 20, 28, 40, 0x05ff, 0x0600, 0x0800, 0x0806, 0x22eb, 0x6558, 0x8035, 0x8100, 0x8137, 0x86dd, 0x8809, 0x880b,
		0x8847, 0x8848, 0x8863, 0x8864, 0x888e, 0x88a8, 0x88be, 0x88cc, 0x88e5, 0x88e7, 0x88f7, 0x8926, 0x9000, 0x9100, 0x9200, 0x9300,
		2152, 4789, 4790, 6081, 8472, 0x0021, 0x0057, 0x0281, 0xc021, 0xff03, 0xaaaa, 0x0300, 0x4242, 0xfefe, 0x0606, 0xffff, 0x2000, 0x1fff, 0x4500, 0x30ff,
	}
	// Bytes that decide something: versions, IP and ICMP numbers, flags.
	octets = []byte{0, 1, 2, 3, 4, 6, 8, 13, 14, 17, 42, 43, 44, 47, 51, 58, 59, 60, 128, 129, 132, 160, 161, 0x45, 0x46, 0x4f, 0x44, 0x60, 0x34, 0x20, 0x40, 0x80, 0x88, 0xff, 0xaa}
)

// next fills r with a frame; its memory is used again.
func (m *mutator) next(r *reading) {
	from := &m.seeds[m.rng.IntN(len(m.seeds))]
	f := append(r.frame[:0], from.frame...)
	r.link, r.wireLen = from.link, from.wireLen
	dice := m.rng.Uint64()
	for range dice & 3 {
		if len(f) == 0 {
			break
		}
		// Headers come first, so changes do too.
		at := m.rng.IntN(len(f))
		if dice&4 != 0 {
			at = m.rng.IntN(min(len(f), 64))
		}
		switch v := m.rng.Uint32(); v % 8 {
		case 0:
			f[at] ^= 1 << (v >> 8 & 7)
		case 1:
			f[at] = byte(v >> 8)
		case 2, 3:
			f[at] = octets[int(v>>8)%len(octets)]
		case 4, 5:
			if at+2 <= len(f) {
				binary.BigEndian.PutUint16(f[at:], numbers[int(v>>8)%len(numbers)])
			}
		case 6:
			f = f[:at]
		case 7: // the rest is another frame
			other := m.seeds[int(v>>8)%len(m.seeds)].frame
			f = append(f[:at], other[min(len(other), int(v>>8&31)):]...)
		}
	}
	switch dice >> 8 & 15 {
	case 0:
		r.wireLen = 0
	case 1:
		r.wireLen = uint32(dice >> 32)
	case 2:
		r.wireLen = uint32(len(f)) + uint32(dice>>32&63)
	}
	if dice>>12&15 == 0 {
		r.link = links[int(dice>>40)%len(links)]
	}
	r.decap = 0
	switch dice >> 16 & 3 {
	case 0:
		r.decap = uint32(dice >> 20 & 15)
	case 1:
		r.decap = allTunnels
	}
	r.have = uint32(len(f))
	switch dice >> 24 & 3 {
	case 0:
		r.have = uint32(m.rng.IntN(len(f) + 1))
	case 1:
		r.have = min(r.have, 64)
	}
	r.frame = f
}

func TestDeviceReadsTenMillionMutatedFramesLikeGo(t *testing.T) {
	for build, frames := range map[string]int{"optimised": 9_000_000 / raceFactor, "sanitized": 1_000_000 / raceFactor} {
		t.Run(build, func(t *testing.T) {
			d, m := newDevice(t, build), newMutator(t, uint64(frames))
			batch := make([]reading, 1000)
			ok := 0
			for range frames / len(batch) {
				for i := range batch {
					m.next(&batch[i])
				}
				ok += d.compare(batch)
			}
			t.Logf("%d of %d in flows, from %d frames", ok, frames, len(m.seeds))
			require.Greater(t, ok, frames/5)
			require.Less(t, ok, frames*9/10)
		})
	}
}

// resolve gives packets to a table in Go and to one on the device.
func (d *device) resolve(log uint32, packets []packet.Info) (known, unknown int) {
	d.t.Helper()
	table := packet.NewFragmentTable(8 << log)
	d.add(opTable, log, 0, 0, 0, nil)
	for i := range packets {
		body := make([]byte, 96)
		*(*packet.Info)(unsafe.Pointer(&body[0])) = packets[i]
		d.add(opResolve, 0, 0, 0, 0, body)
	}
	for i, got := range d.run()[1:] {
		want := packets[i]
		if yes := table.Resolve(&want); yes != (got.value != 0) || want != got.info {
			d.t.Fatalf("packet %d %+v:\n%v %+v, on the device\n%v %+v", i, packets[i], yes, want, got.value, got.info)
		}
		if want.Flags&packet.FlagFragmentLater != 0 && got.value != 0 {
			known++
		} else if got.value == 0 {
			unknown++
		}
	}
	return known, unknown
}

func TestDeviceResolvesFragmentsLikeGo(t *testing.T) {
	each(t, func(t *testing.T, d *device) {
		rng := rand.New(rand.NewPCG(5, 0)) //nolint:gosec // the same packets every time
		known, unknown := 0, 0
		for round := range 400 {
			packets := make([]packet.Info, 1000)
			now := int64(1_700_000_000_000_000_000)
			for i := range packets {
				if rng.IntN(3) > 0 { // else both came at once
					now += rng.Int64N(packet.FragmentLifetimeNs / 100)
				}
				in := packet.Info{
					TimestampNs: now, FragmentID: rng.Uint32N(40), TunnelID: rng.Uint32N(20) / 19, VLAN: uint16(rng.Uint32N(20) / 19),
					SrcPort: uint16(rng.Uint32()), DstPort: uint16(rng.Uint32()), IPVersion: 4 + uint8(rng.Uint32N(2))*2,
					Protocol: []uint8{17, 17, 17, 6, 60}[rng.IntN(5)], WireLen: rng.Uint32(), PayloadLen: rng.Uint32(),
					Flags: []packet.Flags{0, packet.FlagFragment, packet.FlagFragment, 3, 3, 3 | packet.FlagTunnel}[rng.IntN(6)],
				}
				in.Src[rng.IntN(2)*15], in.Dst[3] = byte(rng.Uint32N(8)/7), byte(rng.Uint32N(8)/7)
				switch rng.IntN(200) {
				case 0: // a clock that steps
					in.TimestampNs -= rng.Int64N(10 * packet.FragmentLifetimeNs)
				case 1:
					in.TimestampNs = []int64{math.MinInt64, math.MaxInt64, 0}[rng.IntN(3)]
				case 2:
					in.TimestampNs = packets[max(i-1, 0)].TimestampNs + packet.FragmentLifetimeNs + int64(rng.IntN(2))
				}
				packets[i] = in
			}
			k, u := d.resolve(uint32(round%5), packets)
			known, unknown = known+k, unknown+u
		}
		t.Logf("%d later fragments known, %d unknown", known, unknown)
		require.Greater(t, known, 10_000)
		require.Greater(t, unknown, 10_000)
	})
}

func TestDeviceResolvesCapturedFragmentsLikeGo(t *testing.T) {
	each(t, func(t *testing.T, d *device) {
		var packets []packet.Info
		captured(t, func(fs []source.Frame) {
			for _, f := range fs {
				in := packet.Info{TimestampNs: f.TimestampNs}
				p := packet.Parser{Decap: decapOf(allTunnels)}
				if p.Parse(f.LinkType, f.Data, f.WireLen, &in) == packet.OK && in.Flags&packet.FlagFragment != 0 {
					packets = append(packets, in)
				}
			}
		})
		known, unknown := d.resolve(6, packets)
		t.Logf("%d fragments: %d later ones known, %d unknown", len(packets), known, unknown)
		require.NotZero(t, known)
	})
}

func FuzzDevice(f *testing.F) {
	for _, s := range packet.Samples() {
		f.Add(uint32(s.Link), s.Wire, uint32(allTunnels), uint32(len(s.Frame)), s.Frame)
	}
	d := newDevice(f, "sanitized")
	f.Fuzz(func(t *testing.T, link, wireLen, decap, have uint32, frame []byte) {
		d.t = t
		d.compare([]reading{{packet.LinkType(link), wireLen, decap, min(have, uint32(len(frame))), frame}})
	})
}
