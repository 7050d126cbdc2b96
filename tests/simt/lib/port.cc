// port RINGS WARPS PACKETS ORDER runs the NIC model on the device and the kernel that reads its
// rings side by side, and prints the records.
#include "host.h"

int main(int argc, char **argv) {
	if (argc < 5) fail("arguments");
	run_config c = {};
	c.rings = (uint32_t)atoi(argv[1]);
	uint32_t warps = (uint32_t)atoi(argv[2]);
	c.order = strtoull(argv[4], nullptr, 10);
	c.seed = 1;
	c.idle_ns = 60000000000, c.active_ns = 300000000000, c.linger_ns = 10000000000;
	c.log_rq = 7, c.pitch = 128, c.batch = 32, c.buckets = 128, c.log_records = 14, c.flags = AGP_LOSSLESS, c.per_block = 1, c.shards = 2;
	host h(c);
	void *reader = h.launch();
	agp_control *control = make<agp_control>();
	uint64_t *sent = make<uint64_t>(c.rings);
	agp_nic n = {};
	n.control = (uint64_t)control;
	n.rings = (uint64_t)h.rings;
	n.sent = (uint64_t)sent;
	n.count = c.rings;
	n.warps = warps;
	n.flows = 50;
	n.frame_len = 100;
	n.packets = strtoull(argv[3], nullptr, 10);
	n.seed = 5;
	n.start_ns = 1700000000000000000;
	n.gap_ns = 1000000;
	n.new_per_1024 = 100;
	void *port;
	if (simt_launch("agp_nic_send", c.rings * warps, 1, &n, sizeof n, &port)) fail("launch");
	while (simt_wait(port, 100000) != 0) h.take();
	simt_release(port);
	for (uint32_t i = 0; i < c.rings; i++)
		if (sent[i] != n.packets) fail("the port has not sent everything");
	h.c.flush_ns = n.start_ns + (int64_t)n.packets * n.gap_ns;
	h.finish(reader);
}
