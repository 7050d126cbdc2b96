package poll

import (
	"context"
	"errors"
	"io"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/agp-net/telegraf-agp/agp/mlx5"
	"github.com/agp-net/telegraf-agp/agp/source"
)

// The behaviour of ports is tested with the model of one, in agp/source/model.

var layout = mlx5.Layout{LogCQ: 3, LogRQ: 2, Pitch: 64}

func queue(t testing.TB) mlx5.Queue {
	q, err := mlx5.NewQueue(layout)
	require.NoError(t, err)
	return q
}

func put(q *mlx5.Queue, index uint64, c mlx5.CQE) {
	c.OpOwn = mlx5.OpOwn(mlx5.OpcodeOf(c.OpOwn), mlx5.FormatOf(c.OpOwn), mlx5.Lap(index, q.LogCQ))
	var raw [mlx5.CQESize]byte
	c.Encode(raw[:])
	mlx5.WriteCQE(q.CQE(index), &raw)
}

var (
	frame = mlx5.OpOwn(mlx5.OpRespSend, mlx5.FormatPlain, 0)
	tick  = mlx5.OpOwn(mlx5.OpNoPacket, mlx5.FormatPlain, 0)
)

func TestReadyPrefixEndsAtTheFirstGap(t *testing.T) {
	q := queue(t)
	p, err := New(Config{Queue: q})
	require.NoError(t, err)
	put(&q, 0, mlx5.CQE{OpOwn: frame, ByteCnt: 60})
	put(&q, 2, mlx5.CQE{OpOwn: frame, ByteCnt: 60, WQECounter: 2})
	list, err := p.Poll(make([]Packet, 0, 8))
	require.NoError(t, err)
	require.Len(t, list, 1)
	put(&q, 1, mlx5.CQE{OpOwn: frame, ByteCnt: 60, WQECounter: 1})
	list, err = p.Poll(list)
	require.NoError(t, err)
	require.Len(t, list, 2)
}

func TestTicksTakeNoReceiveWQE(t *testing.T) {
	q := queue(t)
	p, err := New(Config{Queue: q, Relay: true, Batch: 3})
	require.NoError(t, err)
	r := mlx5.Relay{LinkType: 101, Side: 3, SegmentSize: 1448, WireLen: 9000, Captured: 20, TimestampNs: -5}
	c := mlx5.CQE{OpOwn: frame}
	r.Put(&c)
	put(&q, 0, mlx5.CQE{OpOwn: tick, Timestamp: 5})
	put(&q, 1, c)
	put(&q, 2, mlx5.CQE{OpOwn: tick, Timestamp: 6})
	c.WQECounter = 1
	put(&q, 3, c)
	list, err := p.Poll(make([]Packet, 0, 8))
	require.NoError(t, err)
	require.Len(t, list, 3, "a batch")
	require.Equal(t, Packet{Tick: true, TimestampNs: 5, TCI: -1}, list[0])
	k := list[1]
	require.Len(t, k.Data, 20)
	require.EqualValues(t, []any{int64(-5), uint32(9000), uint16(1448), uint8(3)}, []any{k.TimestampNs, k.WireLen, k.SegmentSize, k.Side})
	require.EqualValues(t, 101, k.LinkType)
	p.Release()
	require.EqualValues(t, 3, mlx5.LoadBE32(q.CQDB))
	require.EqualValues(t, 1+4, mlx5.LoadBE32(q.RQDB))
	list, err = p.Poll(list)
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.EqualValues(t, 2, p.Counters().Ticks)
}

func TestNothingIsGivenBackBeforeRelease(t *testing.T) {
	q := queue(t)
	p, err := New(Config{Queue: q})
	require.NoError(t, err)
	put(&q, 0, mlx5.CQE{OpOwn: frame, ByteCnt: 60})
	_, err = p.Poll(make([]Packet, 0, 8))
	require.NoError(t, err)
	require.Zero(t, mlx5.LoadBE32(q.CQDB))
	require.EqualValues(t, 4, mlx5.LoadBE32(q.RQDB))
}

// broken is a port that fails.
type broken struct {
	at  mlx5.State
	log []mlx5.State
}

var errBroken = errors.New("broken")

func (b *broken) ModifyRQ(_, to mlx5.State) error {
	if b.log = append(b.log, to); to == b.at {
		return errBroken
	}
	return nil
}

func TestResetThatFailsIsAnError(t *testing.T) {
	for _, at := range []mlx5.State{mlx5.StateERR, mlx5.StateRST, mlx5.StateRDY} {
		q := queue(t)
		e := mlx5.ErrorCQE{Syndrome: mlx5.SyndromeLocalProt, OpOwn: mlx5.OpOwn(mlx5.OpRespErr, mlx5.FormatPlain, 0)}
		e.Encode(q.CQE(0))
		p, err := New(Config{Queue: q})
		require.NoError(t, err)
		s, err := NewSource(SourceConfig{Pollers: []*Poller{p}, Ports: []Modifier{&broken{at: at}}})
		require.NoError(t, err)
		_, err = s.Next(&source.Batch{Frames: make([]source.Frame, 4)})
		require.ErrorIs(t, err, errBroken)
		require.ErrorContains(t, err, at.String())
		require.EqualValues(t, 1, s.Stats().Dropped["rx_local_prot"])
	}
}

func TestResetSetsRecordsInItsOrder(t *testing.T) {
	q := queue(t)
	p, err := New(Config{Queue: q})
	require.NoError(t, err)
	put(&q, 0, mlx5.CQE{OpOwn: frame, ByteCnt: 60})
	_, err = p.Poll(make([]Packet, 0, 8))
	require.NoError(t, err)
	put(&q, 1, mlx5.CQE{OpOwn: frame, ByteCnt: 60, WQECounter: 1}) // not taken before the reset
	seen := map[mlx5.State][2]uint32{}
	require.NoError(t, p.Reset(modifier(func(to mlx5.State) {
		seen[to] = [2]uint32{mlx5.LoadBE32(q.CQDB), mlx5.LoadBE32(q.RQDB)}
	})))
	require.Equal(t, [2]uint32{2, 0}, seen[mlx5.StateRDY], "completions are drained and nothing is posted when the queue becomes ready")
	require.EqualValues(t, 4, mlx5.LoadBE32(q.RQDB), "then all is posted")
	require.EqualValues(t, 1, p.Counters().Skipped)
}

type modifier func(to mlx5.State)

func (m modifier) ModifyRQ(_, to mlx5.State) error {
	m(to)
	return nil
}

func TestErrorsOfASourceComeAfterItsFrames(t *testing.T) {
	q := queue(t)
	put(&q, 0, mlx5.CQE{OpOwn: frame, ByteCnt: 60})
	put(&q, 1, mlx5.CQE{OpOwn: frame, ByteCnt: 60, WQECounter: 9})
	p, err := New(Config{Queue: q})
	require.NoError(t, err)
	s, err := NewSource(SourceConfig{Pollers: []*Poller{p}})
	require.NoError(t, err)
	b := source.Batch{Frames: make([]source.Frame, 4)}
	n, err := s.Next(&b)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	_, err = s.Next(&b)
	require.ErrorIs(t, err, ErrDesync)
}

// A producer thread and a consumer thread on one queue, for the race detector and over many laps.
func TestProducerAndPollerAtOnce(t *testing.T) {
	q := queue(t)
	p, err := New(Config{Queue: q})
	require.NoError(t, err)
	s, err := NewSource(SourceConfig{Pollers: []*Poller{p}})
	require.NoError(t, err)
	const n = 1 << 17
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	stop := context.AfterFunc(ctx, s.Interrupt)
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := uint64(0); i < n && ctx.Err() == nil; {
			if mlx5.Since(mlx5.LoadBE32(q.RQDB), i, 16) == 0 {
				runtime.Gosched()
				continue
			}
			q.Slot(i)[0] = byte(i)
			put(&q, i, mlx5.CQE{OpOwn: frame, ByteCnt: uint32(1 + i%60), WQECounter: uint16(i), Timestamp: i})
			i++
		}
	})
	b := source.Batch{Frames: make([]source.Frame, 16)}
	for i := int64(0); i < n; {
		got, err := s.Next(&b)
		require.NoError(t, err)
		for _, f := range b.Frames[:got] {
			require.Equal(t, i, f.TimestampNs)
			require.Len(t, f.Data, int(1+i%60))
			require.Equal(t, byte(i), f.Data[0])
			i++
		}
	}
	wg.Wait()
	s.Interrupt()
	_, err = s.Next(&b)
	require.ErrorIs(t, err, io.EOF)
	require.EqualValues(t, n, s.Stats().Frames)
}
