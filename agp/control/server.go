package control

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/agp-net/telegraf-agp/agp/enforce"
	"github.com/agp-net/telegraf-agp/agp/telemetry/agppb"
	"github.com/agp-net/telegraf-agp/agp/telemetry/wire"
)

// DefaultSocket is where the plugin listens.
const DefaultSocket = "/run/telegraf-agp/control.sock"

const (
	maxRequest = 64 << 10
	listPart   = 1000             // rules in one reply
	idleLimit  = 30 * time.Second // between two requests
)

// ErrRequest says that the server does not know what is asked for.
var ErrRequest = errors.New("request is unknown")

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
	*socket
	cfg Config
}

// Listen makes the socket and serves it until Close. A socket that nobody serves any
// more is replaced.
func Listen(cfg Config) (*Server, error) {
	s := &Server{cfg: cfg}
	var err error
	s.socket, err = listen("control socket", cfg.Path, cfg.Log, s.serve, func(err error) proto.Message {
		return &agppb.ControlReply{Error: err.Error()}
	})
	if err != nil {
		return nil, err
	}
	s.start()
	return s, nil
}

func (s *Server) serve(c *net.UnixConn, peer peer) {
	conn := wire.NewLimitedConn(c, maxRequest)
	for {
		var req agppb.ControlRequest
		if err := c.SetReadDeadline(time.Now().Add(idleLimit)); err != nil {
			return
		}
		if err := conn.Receive(&req); err != nil {
			if !errors.Is(err, io.EOF) {
				_ = sendSoon(c, conn, &agppb.ControlReply{Error: err.Error()})
			}
			return
		}
		for r := range s.answer(&req, peer) {
			if sendSoon(c, conn, r) != nil {
				return
			}
		}
	}
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
