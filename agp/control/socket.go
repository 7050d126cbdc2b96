package control

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/agp-net/telegraf-agp/agp/telemetry/wire"
)

// MaxPath is the longest path that a socket can have.
const MaxPath = 107

const (
	maxClients  = 16
	replyLimit  = 10 * time.Second
	acceptPause = 100 * time.Millisecond // after an accept that failed, as with too many open files
)

// Errors of a socket's server.
var (
	ErrInUse     = errors.New("another process serves this socket")
	ErrNotSocket = errors.New("the path exists and is not a socket")
	ErrDenied    = errors.New("not allowed: ask as root, as the user of the plugin, or as a member of the socket's group")
	ErrBusy      = errors.New("too many clients")
)

// socket admits clients, and has a goroutine for each.
type socket struct {
	name     string // for people
	path     string
	log      Logger
	serve    func(*net.UnixConn, peer)
	refusal  func(error) proto.Message
	listener *net.UnixListener
	file     unix.Stat_t // of the socket as it was made
	folder   string      // that was made for the socket, "" if there was one

	wg      sync.WaitGroup
	mu      sync.Mutex // guards what follows
	clients map[*net.UnixConn]bool
	closed  bool
}

// listen makes a socket; start follows.
func listen(name, path string, log Logger, serve func(*net.UnixConn, peer), refusal func(error) proto.Message) (*socket, error) {
	fail := func(err error) error { return fmt.Errorf("%s: %w", name, err) }
	if err := clearWay(path); err != nil {
		return nil, fail(err)
	}
	folder := filepath.Dir(path)
	if _, err := os.Stat(folder); err == nil {
		folder = ""
	} else if err := os.MkdirAll(folder, 0o750); err != nil {
		return nil, fail(err)
	}
	// Under another name until its mode is right, so that there is no moment at
	// which the wrong ones can connect.
	temp := fmt.Sprintf("%s.%d", path, os.Getpid())
	if len(temp) > MaxPath {
		return nil, fail(fmt.Errorf("%s: %w", path, unix.ENAMETOOLONG))
	}
	_ = os.Remove(temp) // of an earlier process with this number
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: temp, Net: "unix"})
	if err != nil {
		return nil, fail(err)
	}
	l.SetUnlinkOnClose(false)
	s := &socket{name: name, path: path, log: log, serve: serve, refusal: refusal, listener: l, folder: folder, clients: map[*net.UnixConn]bool{}}
	err = os.Chmod(temp, 0o660)
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err == nil {
		err = unix.Stat(path, &s.file)
	}
	if err != nil {
		return nil, errors.Join(fail(err), l.Close(), ignoreMissing(os.Remove(temp)))
	}
	return s, nil
}

// start admits clients from now on.
func (s *socket) start() { s.wg.Go(s.accept) }

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
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s: %w", path, ErrNotSocket)
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		_ = c.Close()
		return fmt.Errorf("%s: %w", path, ErrInUse)
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return err
	}
	return nil // it is replaced
}

// Close ends all conversations and removes the socket. A second Close does nothing.
func (s *socket) Close() error {
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
	if unix.Stat(s.path, &now) == nil && now.Dev == s.file.Dev && now.Ino == s.file.Ino {
		err = ignoreMissing(os.Remove(s.path))
	}
	if s.folder != "" {
		_ = os.Remove(s.folder) // unless others use it
	}
	err = errors.Join(err, s.listener.Close())
	s.wg.Wait()
	return err
}

func (s *socket) accept() {
	for {
		c, err := s.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			s.log.Warnf("Accepting at the "+s.name+": %v", err)
			time.Sleep(acceptPause)
			continue
		}
		s.mu.Lock()
		switch {
		case s.closed:
			_ = c.Close()
		case len(s.clients) >= maxClients:
			_ = c.SetWriteDeadline(time.Now().Add(acceptPause))
			_ = wire.NewConn(c).Send(s.refusal(ErrBusy))
			_ = c.Close()
		default:
			s.clients[c] = true
			s.wg.Go(func() { s.client(c) })
		}
		s.mu.Unlock()
	}
}

func (s *socket) client(c *net.UnixConn) {
	defer func() {
		s.mu.Lock()
		delete(s.clients, c)
		s.mu.Unlock()
		_ = c.Close()
	}()
	peer, err := peerOf(c)
	if err == nil {
		err = s.check(&peer)
	}
	if err != nil {
		s.log.Warnf("Refused at the "+s.name+": uid %d: %v", peer.uid, err)
		_ = sendSoon(c, wire.NewConn(c), s.refusal(err))
		return
	}
	s.serve(c, peer)
}

// check goes by the present owner of the file, which may have been given to a group.
func (s *socket) check(p *peer) error {
	file := s.file
	if err := unix.Stat(s.path, &file); err != nil || file.Ino != s.file.Ino || file.Dev != s.file.Dev {
		file = s.file
	}
	return p.check(file.Uid, file.Gid)
}

// sendSoon gives up on a client that does not read.
func sendSoon(c *net.UnixConn, conn *wire.Conn, m proto.Message) error {
	if err := c.SetWriteDeadline(time.Now().Add(replyLimit)); err != nil {
		return err
	}
	return conn.Send(m)
}
