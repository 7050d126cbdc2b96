// Package live tests capture from running interfaces: the engine, the plugin and a
// stock telegraf on veth pairs, bridges and macvlans in namespaces of the test. What
// the engine reports is compared with replays of the same frames, with frames
// written beyond the last offload, and with what the senders counted.
package live
