// Package model is a software ConnectX port: it receives frames into queues in mlx5 layout, and
// sends from them, as the card does, with the faults that a card, a bus or a driver can have.
// What it writes is what agp/mlx5 describes, into memory that it is given or makes: host
// memory that a poller shares, or a buffer that is copied to a GPU before the poller starts.
//
// A Port belongs to one goroutine. The memory of its queues is shared with one poller for each;
// words that both touch are loaded and stored with the order that agp/mlx5 states. It
// starts no goroutine, reads no clock and draws all chance from Config.Seed, so that a run can
// be repeated. Time comes with the frames, in ns since the Unix epoch; the port's own
// ticks only say when late writes land.
//
// The port reads doorbell records when it has a frame to deliver and not before. It drops a
// frame when no receive WQE is posted and counts it in OutOfBuffer.
//
// Results that were obtained with this package are those of a model, not of a card.
package model
