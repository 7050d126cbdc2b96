// The device's parser and fragment table as a program, for device_test.go: it reads batches of
// requests from standard input and writes one answer for each to standard output. Every frame
// ends where its memory ends, so that a sanitizer sees each byte read too many.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fragment.cuh"
#include "parse.cuh"

// There are no lanes here for the emulated device to switch between.
void simt::touch() {}

namespace {

enum { PARSE = 0, TABLE = 1, RESOLVE = 2, VERDICT_COUNT = 3, QUICK = 4 };

// request is followed by len bytes: the frame, or for RESOLVE an agp_packet.
struct request {
	uint32_t op, link, wire_len, decap, have, len; // TABLE: link is log_buckets
};

struct answer {
	uint32_t value; // verdict, whether the fragment is known, or whether the frame is read in line
	uint32_t zero;
	agp_packet packet;
};

// tail is memory that ends with the n bytes at from.
class tail {
	size_t room = 0;
	uint8_t *p = nullptr;

public:
	~tail() { free(p); }
	const uint8_t *hold(const uint8_t *from, size_t n) {
		if (n > room) {
			free(p);
			room = n + n / 2 + 64;
			p = (uint8_t *)malloc(room);
		}
		return n == 0 ? p + room : (const uint8_t *)memcpy(p + room - n, from, n);
	}
};

bool get(void *p, size_t n) { return fread(p, 1, n, stdin) == n; }

} // namespace

int main() {
	uint32_t batch[2]; // requests, bytes
	tail head, frame;
	agp_fragment *table = nullptr;
	uint32_t log_buckets = 0;
	uint8_t *in = nullptr;
	answer *out = nullptr;
	while (get(batch, sizeof batch)) {
		in = (uint8_t *)realloc(in, batch[1] + 1);
		out = (answer *)realloc(out, (batch[0] + 1) * sizeof *out);
		if (!get(in, batch[1]))
			return 1;
		const uint8_t *at = in;
		for (uint32_t i = 0; i < batch[0]; i++) {
			request q;
			memcpy(&q, at, sizeof q);
			at += sizeof q;
			answer &a = out[i];
			memset(&a, 0, sizeof a);
			switch (q.op) {
			case PARSE:
			case QUICK: {
				view f;
				f.head = head.hold(at, q.have);
				f.have = q.have;
				f.rest = (uint64_t)frame.hold(at, q.len);
				f.len = q.len;
				memset((void *)&a.packet, 0xa5, sizeof a.packet); // all that parse owns must be overwritten
				if (q.op == QUICK)
					a.value = packet::quick(f, q.wire_len, q.decap, &a.packet);
				else
					a.value = parse(q.link, f, q.wire_len, q.decap, &a.packet);
				break;
			}
			case TABLE:
				free(table);
				log_buckets = q.link;
				table = (agp_fragment *)calloc((size_t)AGP_WAYS << log_buckets, sizeof *table);
				break;
			case RESOLVE:
				memcpy((void *)&a.packet, at, sizeof a.packet);
				a.value = resolve(table, log_buckets, &a.packet);
				break;
			case VERDICT_COUNT:
				a.value = packet::VERDICTS;
				break;
			}
			at += q.len;
		}
		fwrite(out, sizeof *out, batch[0], stdout);
		fflush(stdout);
	}
	free(table);
	free(in);
	free(out);
	return 0;
}
