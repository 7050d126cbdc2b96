package packet

import "testing"

func BenchmarkParse(b *testing.B) {
	for _, s := range samples() {
		b.Run(s.name, func(b *testing.B) {
			p := Parser{Decap: s.decap}
			var in Info
			b.ReportAllocs()
			for b.Loop() {
				p.Parse(s.link, s.frame, s.wireLen(), &in)
			}
		})
	}
}
