// run FILE replays frames through the packet path's kernel, in a build with a sanitizer or
// without, and prints the records. The file is what replay.go writes: a run_config, then for each
// frame a run_frame and its bytes.
#include "host.h"

int main(int argc, char **argv) {
	FILE *in = argc > 1 ? fopen(argv[1], "rb") : nullptr;
	run_config c;
	if (!in || fread(&c, sizeof c, 1, in) != 1) fail("no input");
	host h(c);
	void *handle = h.launch();
	uint8_t *data = make<uint8_t>(c.pitch);
	run_frame f;
	while (fread(&f, sizeof f, 1, in) == 1) {
		if (f.ring >= c.rings || f.captured > c.pitch || fread(data, 1, f.captured, in) != f.captured) fail("a frame of the input is malformed");
		host_ring &r = h.ring[f.ring];
		while (!r.room(!f.tick)) {
			int n = h.take();
			if (simt_wait(handle, 0) == 0) fail("the kernel ended early");
			if (n == 0) usleep(20);
		}
		r.write(f, data, c.early);
	}
	h.finish(handle);
}
