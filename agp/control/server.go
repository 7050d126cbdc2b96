package control

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agp-net/telegraf-agp/agp/enforce"
	"github.com/agp-net/telegraf-agp/agp/telemetry/agppb"
	"github.com/agp-net/telegraf-agp/agp/telemetry/wire"
)

// DefaultSocket is where the plugin listens.
const DefaultSocket = "/run/telegraf-agp/control.sock"

// MaxPath is the longest path that a socket can have.
const MaxPath = 107

const (
	maxRequest  = 64 << 10
	maxClients  = 16
	listPart    = 1000             // rules in one reply
	idleLimit   = 30 * time.Second // between two requests
	replyLimit  = 10 * time.Second
	acceptPause = 100 * time.Millisecond // after an accept that failed, as with too many open files
)

// Errors of the server.
var (
	ErrInUse     = errors.New("another process serves this socket")
	ErrNotSocket = errors.New("the path exists and is not a socket")
	ErrDenied    = errors.New("not allowed: ask as root, as the user of the plugin, or as a member of the socket's group")
	ErrBusy      = errors.New("too many clients")
	ErrRequest   = errors.New("request is unknown")
)

// Enforcer is the part of enforce.Manager that is served.
type Enforcer interface {
	Block(p netip.Prefix, ttl time.Duration, reason, by string) (enforce.Rule, error)
	Unblock(p netip.Prefix) error
	RateLimit(p netip.Prefix, pps uint64, ttl time.Duration, reason, by string) (enforce.Rule, error)
	List() []enforce.Rule
	Allowed() []enforce.Allowed
	Stats() enforce.Stats
}

// Logger is the part of telegraf.Logger that is used.
type Logger interface {
	Warnf(format string, args ...any)
	Infof(format string, args ...any)
}

// Config of a Server; all of it is required.
type Config struct {
	Path     string
	Enforcer Enforcer
	EngineUp func() bool
	Log      Logger
}

// Server answers requests.
type Server struct {
	cfg      Config
	listener *net.UnixListener
	file     unix.Stat_t // of the socket as it was made

	wg      sync.WaitGroup
	mu      sync.Mutex // guards what follows
	clients map[*net.UnixConn]bool
	closed  bool
}

// Listen makes the socket and serves it until Close. A socket that nobody serves any
// more is replaced.
func Listen(cfg Config) (*Server, error) {
	if err := clearWay(cfg.Path); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(cfg.Path), 0o750); err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	// Under another name until its mode is right, so that there is no moment at
	// which the wrong ones can connect.
	temp := fmt.Sprintf("%s.%d", cfg.Path, os.Getpid())
	if len(temp) > MaxPath {
		return nil, fmt.Errorf("control socket: %s: %w", cfg.Path, unix.ENAMETOOLONG)
	}
	_ = os.Remove(temp) // of an earlier process with this number
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: temp, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	l.SetUnlinkOnClose(false)
	s := &Server{cfg: cfg, listener: l, clients: map[*net.UnixConn]bool{}}
	err = os.Chmod(temp, 0o660) //nolint:gosec // the group is meant
	if err == nil {
		err = os.Rename(temp, cfg.Path)
	}
	if err == nil {
		err = unix.Stat(cfg.Path, &s.file)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("control socket: %w", err), l.Close(), ignoreMissing(os.Remove(temp)))
	}
	s.wg.Go(s.accept)
	return s, nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// clearWay says why there can be no socket at path; one that nobody serves is no reason.
func clearWay(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("control socket: %w", err)
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("control socket: %s: %w", path, ErrNotSocket)
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		_ = c.Close()
		return fmt.Errorf("control socket: %s: %w", path, ErrInUse)
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("control socket: %w", err)
	}
	return nil // it is replaced
}

// Close ends all conversations and removes the socket. A second Close does nothing.
func (s *Server) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	for c := range s.clients {
		_ = c.Close()
	}
	s.mu.Unlock()
	var now unix.Stat_t
	var err error
	if unix.Stat(s.cfg.Path, &now) == nil && now.Dev == s.file.Dev && now.Ino == s.file.Ino {
		err = ignoreMissing(os.Remove(s.cfg.Path))
	}
	err = errors.Join(err, s.listener.Close())
	s.wg.Wait()
	return err
}

func (s *Server) accept() {
	for {
		c, err := s.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			s.cfg.Log.Warnf("Control socket: %v", err)
			time.Sleep(acceptPause)
			continue
		}
		s.mu.Lock()
		switch {
		case s.closed:
			_ = c.Close()
		case len(s.clients) >= maxClients:
			_ = c.SetWriteDeadline(time.Now().Add(acceptPause))
			_ = wire.NewConn(c).Send(&agppb.ControlReply{Error: ErrBusy.Error()})
			_ = c.Close()
		default:
			s.clients[c] = true
			s.wg.Go(func() { s.serve(c) })
		}
		s.mu.Unlock()
	}
}

func (s *Server) serve(c *net.UnixConn) {
	defer func() {
		s.mu.Lock()
		delete(s.clients, c)
		s.mu.Unlock()
		_ = c.Close()
	}()
	conn := wire.NewLimitedConn(c, maxRequest)
	send := func(r *agppb.ControlReply) error {
		if err := c.SetWriteDeadline(time.Now().Add(replyLimit)); err != nil {
			return err
		}
		return conn.Send(r)
	}
	peer, err := peerOf(c)
	if err == nil {
		err = s.check(&peer)
	}
	if err != nil {
		s.cfg.Log.Warnf("Control socket: uid %d: %v", peer.uid, err)
		_ = send(&agppb.ControlReply{Error: err.Error()})
		return
	}
	for {
		var req agppb.ControlRequest
		if err := c.SetReadDeadline(time.Now().Add(idleLimit)); err != nil {
			return
		}
		if err := conn.Receive(&req); err != nil {
			if !errors.Is(err, io.EOF) {
				_ = send(&agppb.ControlReply{Error: err.Error()})
			}
			return
		}
		for r := range s.answer(&req, peer) {
			if send(r) != nil {
				return
			}
		}
	}
}

// check goes by the present owner of the file, which may have been given to a group.
func (s *Server) check(p *peer) error {
	file := s.file
	if err := unix.Stat(s.cfg.Path, &file); err != nil || file.Ino != s.file.Ino || file.Dev != s.file.Dev {
		file = s.file
	}
	return p.check(file.Uid, file.Gid)
}

// answer obeys a request and yields the replies.
func (s *Server) answer(req *agppb.ControlRequest, who peer) func(func(*agppb.ControlReply) bool) {
	reply := &agppb.ControlReply{}
	by := fmt.Sprintf("uid %d", who.uid)
	e := s.cfg.Enforcer
	switch r := req.GetRequest().(type) {
	case *agppb.ControlRequest_List:
		return s.list
	case *agppb.ControlRequest_Status:
		reply.State = s.state()
		for _, a := range e.Allowed() {
			reply.State.Allowed = append(reply.State.Allowed, &agppb.ControlAllowed{Prefix: a.Prefix.String(), Why: a.Why})
		}
		return one(reply)
	case *agppb.ControlRequest_Block:
		s.change(reply, r.Block.GetPrefix(), by, "block", func(p netip.Prefix) (enforce.Rule, error) {
			return e.Block(p, time.Duration(r.Block.GetTtlNs()), r.Block.GetReason(), by)
		})
	case *agppb.ControlRequest_RateLimit:
		s.change(reply, r.RateLimit.GetPrefix(), by, "rate-limit", func(p netip.Prefix) (enforce.Rule, error) {
			return e.RateLimit(p, r.RateLimit.GetPacketsPerSecond(), time.Duration(r.RateLimit.GetTtlNs()), r.RateLimit.GetReason(), by)
		})
	case *agppb.ControlRequest_Unblock:
		s.change(reply, r.Unblock.GetPrefix(), by, "unblock", func(p netip.Prefix) (enforce.Rule, error) {
			return enforce.Rule{}, e.Unblock(p)
		})
	default:
		reply.Error = ErrRequest.Error()
	}
	reply.State = s.state()
	return one(reply)
}

func one(r *agppb.ControlReply) func(func(*agppb.ControlReply) bool) {
	return func(yield func(*agppb.ControlReply) bool) { yield(r) }
}

// change makes one change and says so in the log: who did what has to be found later.
func (s *Server) change(reply *agppb.ControlReply, prefix, by, what string, do func(netip.Prefix) (enforce.Rule, error)) {
	p, err := enforce.ParsePrefix(prefix)
	var rule enforce.Rule
	if err == nil {
		rule, err = do(p)
	}
	if err != nil {
		reply.Error = err.Error()
		return
	}
	if rule.Prefix.IsValid() {
		reply.Rule = ruleToProto(&rule)
	}
	// A format for each: the log's limit is on formats, and many blocks must not hide
	// the one that was taken away.
	s.cfg.Log.Infof("Control: "+what+" %s by %s", p, by)
}

// list yields all rules in parts.
func (s *Server) list(yield func(*agppb.ControlReply) bool) {
	rules := s.cfg.Enforcer.List()
	for part := range slices.Chunk(rules, listPart) {
		reply := &agppb.ControlReply{State: s.state(), More: &part[len(part)-1] != &rules[len(rules)-1]}
		for i := range part {
			reply.Rules = append(reply.Rules, ruleToProto(&part[i]))
		}
		if !yield(reply) {
			return
		}
	}
	if len(rules) == 0 {
		yield(&agppb.ControlReply{State: s.state()})
	}
}

func (s *Server) state() *agppb.ControlState {
	st := s.cfg.Enforcer.Stats()
	return &agppb.ControlState{
		DryRun: st.DryRun, EngineUp: s.cfg.EngineUp(), Blocked: st.Blocked, RateLimited: st.RateLimited, MaxEntries: st.MaxEntries,
		Added: st.Added, Expired: st.Expired, RefusedAllowed: st.RefusedAllowed, RefusedFull: st.RefusedFull,
		RefusedRate: st.RefusedRate, RefusedOther: st.RefusedOther, RefusedUnconfirmed: st.RefusedUnconfirmed,
	}
}

func ruleToProto(r *enforce.Rule) *agppb.ControlRule {
	return &agppb.ControlRule{
		Prefix: r.Prefix.String(), PacketsPerSecond: r.PacketsPerSecond, Reason: r.Reason, By: r.By,
		CreatedNs: r.Created.UnixNano(), ExpiresNs: r.Expires.UnixNano(),
	}
}
