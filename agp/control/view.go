package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/agp-net/telegraf-agp/agp/telemetry"
	"github.com/agp-net/telegraf-agp/agp/telemetry/agppb"
	"github.com/agp-net/telegraf-agp/agp/telemetry/wire"
)

// DefaultViewSocket is where a plugin shows what its engine does.
const DefaultViewSocket = "/run/telegraf-agp/view.sock"

const (
	viewInterval = time.Second
	viewLimit    = 5 * time.Second  // for one view into the socket of a viewer
	viewSilence  = 10 * time.Second // of a plugin that is watched
	viewAlerts   = 50
)

// ErrNoView says that there is nobody to watch.
var ErrNoView = errors.New("no plugin shows its engine here (option view_socket of inputs.agp)")

// Engine is what is known of an engine beside its snapshot.
type Engine struct {
	State       string
	Restarts    uint64
	PacketsLost uint64
	LastError   string
}

// ViewConfig of a ViewServer; all but Interval is required.
type ViewConfig struct {
	Path      string
	Version   string
	Interface string
	// Snapshot fills its argument. Safe from several goroutines.
	Snapshot func(*telemetry.Snapshot) Engine
	Log      Logger
	Interval time.Duration // default 1 s
}

// ViewServer shows an engine to those who watch. Nothing waits for a viewer and nothing is
// kept for one: each has a goroutine that takes the present state when its socket has room,
// and one that does not read for a while is sent away.
type ViewServer struct {
	*socket
	cfg  ViewConfig
	done chan struct{}
	once sync.Once

	alertsMu sync.Mutex
	alerts   []*agppb.Alert // the last ones, oldest first
}

// ListenView makes the socket and serves it until Close.
func ListenView(cfg ViewConfig) (*ViewServer, error) {
	if cfg.Interval <= 0 {
		cfg.Interval = viewInterval
	}
	s := &ViewServer{cfg: cfg, done: make(chan struct{})}
	var err error
	s.socket, err = listen("view socket", cfg.Path, cfg.Log, s.serve, func(err error) proto.Message {
		return &agppb.View{Error: err.Error()}
	})
	if err != nil {
		return nil, err
	}
	s.start()
	return s, nil
}

// Close sends all viewers away and removes the socket. A second Close does nothing.
func (s *ViewServer) Close() error {
	s.once.Do(func() { close(s.done) })
	return s.socket.Close()
}

// Alert remembers an alert for a while. It does not wait.
func (s *ViewServer) Alert(a *telemetry.Alert) {
	p := wire.AlertToProto(a)
	s.alertsMu.Lock()
	defer s.alertsMu.Unlock()
	if len(s.alerts) >= viewAlerts {
		s.alerts = append(s.alerts[:0:0], s.alerts[1:]...) // viewers read the old list
	}
	s.alerts = append(s.alerts, p)
}

func (s *ViewServer) serve(c *net.UnixConn, _ peer) {
	gone := make(chan struct{})
	s.wg.Go(func() { // it says nothing; what ends this is its end
		defer close(gone)
		_, _ = io.CopyN(io.Discard, c, 1)
	})
	conn := wire.NewConn(c)
	var snapshot telemetry.Snapshot
	t := time.NewTicker(s.cfg.Interval)
	defer t.Stop()
	for {
		if err := c.SetWriteDeadline(time.Now().Add(viewLimit)); err != nil {
			return
		}
		if err := conn.Send(s.view(&snapshot)); err != nil {
			return
		}
		select {
		case <-t.C:
		case <-gone:
			return
		case <-s.done:
			return
		}
	}
}

func (s *ViewServer) view(snapshot *telemetry.Snapshot) *agppb.View {
	e := s.cfg.Snapshot(snapshot)
	for i := range snapshot.Sketches {
		snapshot.Sketches[i].State = nil // large, and nothing to look at
	}
	s.alertsMu.Lock()
	alerts := s.alerts
	s.alertsMu.Unlock()
	return &agppb.View{
		Hello:  &agppb.Hello{Protocol: wire.Version, ProtocolMin: wire.VersionMin, Version: s.cfg.Version},
		TimeNs: time.Now().UnixNano(), Interface: s.cfg.Interface,
		State: e.State, Restarts: e.Restarts, PacketsLost: e.PacketsLost, LastError: e.LastError,
		Snapshot: wire.SnapshotToProto(snapshot), Alerts: alerts,
	}
}

// View is one look at an engine.
type View struct {
	Engine
	Version, Interface string
	Time               time.Time
	Snapshot           telemetry.Snapshot
	Alerts             []telemetry.Alert // oldest first
}

// Viewer watches one engine. It belongs to one goroutine, but for Close.
type Viewer struct {
	c    net.Conn
	conn *wire.Conn
	path string
}

// DialView connects to the view socket of a plugin.
func DialView(ctx context.Context, path string) (*Viewer, error) {
	c, err := connect(ctx, path, ErrNoView)
	if err != nil {
		return nil, err
	}
	return &Viewer{c: c, conn: wire.NewConn(c), path: path}, nil
}

// Close ends a Next that waits, too.
func (v *Viewer) Close() error { return v.c.Close() }

// Next waits for the next look.
func (v *Viewer) Next() (*View, error) {
	var p agppb.View
	if err := v.c.SetReadDeadline(time.Now().Add(viewSilence)); err != nil {
		return nil, err
	}
	err := v.conn.Receive(&p)
	switch {
	case errors.Is(err, io.EOF):
		return nil, fmt.Errorf("%s: %w", v.path, io.ErrUnexpectedEOF)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", v.path, err)
	case p.GetError() != "":
		return nil, fmt.Errorf("%s: %w: %s", v.path, ErrRefused, p.GetError())
	}
	if err := wire.CheckHello(p.GetHello()); err != nil {
		return nil, fmt.Errorf("%s: %w", v.path, err)
	}
	look := &View{
		Engine:  Engine{State: p.GetState(), Restarts: p.GetRestarts(), PacketsLost: p.GetPacketsLost(), LastError: p.GetLastError()},
		Version: p.GetHello().GetVersion(), Interface: p.GetInterface(), Time: time.Unix(0, p.GetTimeNs()),
		Alerts: make([]telemetry.Alert, len(p.GetAlerts())),
	}
	if err := wire.SnapshotFromProto(p.GetSnapshot(), &look.Snapshot); err != nil {
		return nil, fmt.Errorf("%s: %w", v.path, err)
	}
	for i, a := range p.GetAlerts() {
		if err := wire.AlertFromProto(a, &look.Alerts[i]); err != nil {
			return nil, fmt.Errorf("%s: %w", v.path, err)
		}
	}
	return look, nil
}
