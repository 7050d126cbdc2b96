package packet

import "fmt"

// A Sample is a frame of this package's tests, for tests outside of it.
type Sample struct {
	Name  string
	Link  LinkType
	Frame []byte
	Wire  uint32
}

// Samples returns all frames that this package's tests write out.
func Samples() (all []Sample) {
	for _, s := range samples() {
		all = append(all, Sample{s.name, s.link, s.frame, s.wireLen()})
	}
	for _, c := range append(nonIPFrames(), badFrames()...) {
		frame := unhex(c.text)
		all = append(all, Sample{c.want.String(), c.link, frame, uint32(len(frame))})
	}
	for n := range maxTunnels + 2 {
		frame := nestedGRE(n)
		all = append(all, Sample{fmt.Sprint("tunnels ", n), LinkRaw, frame, uint32(len(frame))})
	}
	return all
}
