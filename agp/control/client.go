package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agp-net/telegraf-agp/agp/telemetry/agppb"
	"github.com/agp-net/telegraf-agp/agp/telemetry/wire"
)

// Errors of a client.
var (
	ErrNoServer = errors.New("no plugin with enforcement listens here")
	ErrRefused  = errors.New("refused")
)

// Client asks one server. It belongs to one goroutine.
type Client struct {
	c    net.Conn
	conn *wire.Conn
	path string
}

// Dial connects to the socket of a plugin.
func Dial(ctx context.Context, path string) (*Client, error) {
	c, err := connect(ctx, path, ErrNoServer)
	if err != nil {
		return nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		if err := c.SetDeadline(deadline); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	return &Client{c: c, conn: wire.NewConn(c), path: path}, nil
}

// connect dials to the socket of a plugin; absent says that there is none.
func connect(ctx context.Context, path string, absent error) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ECONNREFUSED):
		return nil, fmt.Errorf("%w: %w", absent, err)
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("%s: %w", path, ErrDenied)
	case err != nil:
		return nil, err
	}
	return c, nil
}

// Close ends the conversation.
func (c *Client) Close() error { return c.c.Close() }

// ask sends a request and gives each reply to f, which may be nil.
func (c *Client) ask(req *agppb.ControlRequest, f func(*agppb.ControlReply) error) (*agppb.ControlReply, error) {
	sent := c.conn.Send(req)
	for {
		var r agppb.ControlReply
		// Also if sending failed: a server that refuses its peer says why and closes.
		switch err := c.conn.Receive(&r); {
		case err != nil && sent != nil:
			return nil, fmt.Errorf("%s: %w", c.path, sent)
		case errors.Is(err, io.EOF):
			return nil, fmt.Errorf("%s: %w", c.path, io.ErrUnexpectedEOF)
		case err != nil:
			return nil, fmt.Errorf("%s: %w", c.path, err)
		case r.GetError() != "":
			return nil, fmt.Errorf("%w: %s", ErrRefused, r.GetError())
		}
		if f != nil {
			if err := f(&r); err != nil {
				return nil, err
			}
		}
		if !r.GetMore() {
			return &r, nil
		}
	}
}

// Block asks to block a prefix; ttl 0 is the configured lifetime.
func (c *Client) Block(prefix string, ttl time.Duration, reason string) (*agppb.ControlReply, error) {
	return c.ask(&agppb.ControlRequest{Request: &agppb.ControlRequest_Block{
		Block: &agppb.ControlBlock{Prefix: prefix, TtlNs: int64(ttl), Reason: reason}}}, nil)
}

// RateLimit asks to let only some packets per second of a prefix pass.
func (c *Client) RateLimit(prefix string, pps uint64, ttl time.Duration, reason string) (*agppb.ControlReply, error) {
	return c.ask(&agppb.ControlRequest{Request: &agppb.ControlRequest_RateLimit{
		RateLimit: &agppb.ControlBlock{Prefix: prefix, TtlNs: int64(ttl), Reason: reason, PacketsPerSecond: pps}}}, nil)
}

// Unblock asks to take a rule away.
func (c *Client) Unblock(prefix string) (*agppb.ControlReply, error) {
	return c.ask(&agppb.ControlRequest{Request: &agppb.ControlRequest_Unblock{Unblock: &agppb.ControlUnblock{Prefix: prefix}}}, nil)
}

// List gives every rule to f, by prefix, and returns the state.
func (c *Client) List(f func(*agppb.ControlRule) error) (*agppb.ControlState, error) {
	r, err := c.ask(&agppb.ControlRequest{Request: &agppb.ControlRequest_List{List: &agppb.ControlList{}}}, func(r *agppb.ControlReply) error {
		for _, rule := range r.GetRules() {
			if err := f(rule); err != nil {
				return err
			}
		}
		return nil
	})
	return r.GetState(), err
}

// Status returns the state with the allow list.
func (c *Client) Status() (*agppb.ControlState, error) {
	r, err := c.ask(&agppb.ControlRequest{Request: &agppb.ControlRequest_Status{Status: &agppb.ControlStatus{}}}, nil)
	return r.GetState(), err
}
