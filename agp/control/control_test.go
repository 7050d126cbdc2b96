package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/agp-net/telegraf-agp/agp/enforce"
	"github.com/agp-net/telegraf-agp/agp/telemetry/agppb"
	"github.com/agp-net/telegraf-agp/agp/telemetry/wire"
)

// The test binary is a client of another user when this variable names a socket.
const clientEnv = "AGP_TEST_CONTROL"

func TestMain(m *testing.M) {
	path := os.Getenv(clientEnv)
	if path == "" {
		os.Exit(m.Run())
	}
	c, err := Dial(context.Background(), path)
	if err == nil {
		_, err = c.Block("198.51.100.7", 0, "")
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

type logLines struct {
	mu    sync.Mutex
	lines []string
}

func (l *logLines) add(format string, args []any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, fmt.Sprintf(format, args...))
}

func (l *logLines) Errorf(format string, args ...any) { l.add(format, args) }
func (l *logLines) Warnf(format string, args ...any)  { l.add(format, args) }
func (l *logLines) Infof(format string, args ...any)  { l.add(format, args) }
func (l *logLines) Debugf(format string, args ...any) { l.add(format, args) }

func (l *logLines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "\n")
}

func manager(t testing.TB) *enforce.Manager {
	t.Helper()
	m, err := enforce.New(enforce.Config{
		Log: &logLines{}, MaxEntries: 3000,
		Local: func() ([]enforce.Allowed, error) {
			return []enforce.Allowed{{Prefix: netip.MustParsePrefix("192.0.2.1/32"), Why: "default gateway"}}, nil
		},
	})
	require.NoError(t, err)
	m.Tick()
	return m
}

// folder is one whose sockets have short paths.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "agp")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

func config(t *testing.T, path string) (Config, *logLines) {
	t.Helper()
	l := &logLines{}
	return Config{Path: path, Enforcer: manager(t), EngineUp: func() bool { return true }, Log: l}, l
}

func serve(t *testing.T) (*Server, *logLines) {
	t.Helper()
	cfg, l := config(t, filepath.Join(folder(t), "s"))
	s, err := Listen(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s, l
}

func dial(t *testing.T, s *Server) *Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	c, err := Dial(ctx, s.cfg.Path)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestEveryRequestIsAnswered(t *testing.T) {
	s, l := serve(t)
	c := dial(t, s)
	r, err := c.Block("198.51.100.7", time.Minute, "scanner")
	require.NoError(t, err)
	require.Equal(t, "198.51.100.7/32", r.GetRule().GetPrefix())
	require.Equal(t, int64(time.Minute), r.GetRule().GetExpiresNs()-r.GetRule().GetCreatedNs())
	require.True(t, r.GetState().GetDryRun())
	require.True(t, r.GetState().GetEngineUp())
	require.Contains(t, l.text(), fmt.Sprintf("block 198.51.100.7/32 by uid %d", os.Getuid()))
	r, err = c.RateLimit("2001:db8:7::/48", 9, 0, "")
	require.NoError(t, err)
	require.EqualValues(t, 9, r.GetRule().GetPacketsPerSecond())

	var got []string
	st, err := c.List(func(r *agppb.ControlRule) error { got = append(got, r.GetPrefix()+" "+r.GetReason()); return nil })
	require.NoError(t, err)
	require.Equal(t, []string{"198.51.100.7/32 scanner", "2001:db8:7::/48 "}, got)
	require.EqualValues(t, 1, st.GetBlocked())
	require.EqualValues(t, 1, st.GetRateLimited())

	_, err = c.Unblock("198.51.100.7")
	require.NoError(t, err)
	st, err = c.Status()
	require.NoError(t, err)
	require.Zero(t, st.GetBlocked())
	require.Equal(t, "default gateway", st.GetAllowed()[0].GetWhy())
	for _, f := range []func() (*agppb.ControlReply, error){
		func() (*agppb.ControlReply, error) { return c.Block("192.0.2.0/24", 0, "") },
		func() (*agppb.ControlReply, error) { return c.Block("nonsense", 0, "") },
		func() (*agppb.ControlReply, error) { return c.Block("198.51.100.8", -1, "") },
		func() (*agppb.ControlReply, error) { return c.RateLimit("198.51.100.8", 0, 0, "") },
		func() (*agppb.ControlReply, error) { return c.Unblock("198.51.100.9") },
		func() (*agppb.ControlReply, error) { return c.ask(&agppb.ControlRequest{}, nil) },
	} {
		_, err := f()
		require.ErrorIs(t, err, ErrRefused)
	}
	_, err = c.Block("192.0.2.0/24", 0, "")
	require.ErrorContains(t, err, "contains 192.0.2.1: default gateway")
}

func TestLongListComesInParts(t *testing.T) {
	s, _ := serve(t)
	c := dial(t, s)
	none, err := c.List(func(*agppb.ControlRule) error { return errors.New("unexpected") })
	require.NoError(t, err)
	require.Zero(t, none.GetBlocked())
	for _, n := range []int{listPart, 2*listPart + 1} {
		for i := range n {
			a := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
			_, err := s.cfg.Enforcer.Block(netip.PrefixFrom(a, 32), 0, "", "")
			require.NoError(t, err)
		}
		seen := 0
		_, err = c.List(func(*agppb.ControlRule) error { seen++; return nil })
		require.NoError(t, err)
		require.Equal(t, n, seen)
	}
	_, err = c.Status()
	require.NoError(t, err, "nothing of the list is left in the stream")
	enough := errors.New("enough")
	_, err = c.List(func(*agppb.ControlRule) error { return enough })
	require.ErrorIs(t, err, enough)
}

func TestSocketIsForOwnerAndGroupAndGoesWithTheServer(t *testing.T) {
	dir := folder(t)
	cfg, _ := config(t, filepath.Join(dir, "new", "s"))
	s, err := Listen(cfg)
	require.NoError(t, err)
	info, err := os.Lstat(cfg.Path)
	require.NoError(t, err)
	require.Equal(t, fs.ModeSocket|0o660, info.Mode())
	require.NoError(t, s.Close())
	require.NoError(t, s.Close(), "twice")
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left, "nor is the folder left that was made for it")
	_, err = Dial(t.Context(), cfg.Path)
	require.ErrorIs(t, err, ErrNoServer)
	s, err = Listen(cfg)
	require.NoError(t, err, "again")
	require.NoError(t, s.Close())
	require.NoError(t, os.Mkdir(filepath.Dir(cfg.Path), 0o700))
	s, err = Listen(cfg)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.DirExists(t, filepath.Dir(cfg.Path), "one that was there before stays")
}

func TestStaleSocketIsReplaced(t *testing.T) {
	cfg, _ := config(t, filepath.Join(folder(t), "s"))
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: cfg.Path, Net: "unix"})
	require.NoError(t, err)
	l.SetUnlinkOnClose(false)
	require.NoError(t, l.Close())
	_, err = Dial(t.Context(), cfg.Path)
	require.ErrorIs(t, err, ErrNoServer)
	s, err := Listen(cfg)
	require.NoError(t, err)
	_, err = dial(t, s).Status()
	require.NoError(t, err)
	require.NoError(t, s.Close())
}

func TestSocketOfALivingServerIsLeftAlone(t *testing.T) {
	s, _ := serve(t)
	cfg, _ := config(t, s.cfg.Path)
	_, err := Listen(cfg)
	require.ErrorIs(t, err, ErrInUse)
	_, err = dial(t, s).Status()
	require.NoError(t, err)
}

func TestWhatIsNoSocketIsLeftAlone(t *testing.T) {
	cfg, _ := config(t, filepath.Join(folder(t), "s"))
	require.NoError(t, os.WriteFile(cfg.Path, []byte("precious"), 0o600))
	_, err := Listen(cfg)
	require.ErrorIs(t, err, ErrNotSocket)
	data, err := os.ReadFile(cfg.Path)
	require.NoError(t, err)
	require.Equal(t, "precious", string(data))

	require.NoError(t, os.Remove(cfg.Path))
	require.NoError(t, os.Symlink("/does/not/exist", cfg.Path))
	_, err = Listen(cfg)
	require.ErrorIs(t, err, ErrNotSocket, "a link is not followed")
}

func TestPathsThatCannotBe(t *testing.T) {
	cfg, _ := config(t, filepath.Join(folder(t), strings.Repeat("x", MaxPath)))
	_, err := Listen(cfg)
	require.ErrorIs(t, err, syscall.ENAMETOOLONG)
	file := filepath.Join(folder(t), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	cfg.Path = filepath.Join(file, "s")
	_, err = Listen(cfg)
	require.ErrorIs(t, err, syscall.ENOTDIR)
}

func TestServerRemovesOnlyItsOwnSocket(t *testing.T) {
	s, _ := serve(t)
	require.NoError(t, os.Remove(s.cfg.Path))
	other, err := net.ListenUnix("unix", &net.UnixAddr{Name: s.cfg.Path, Net: "unix"})
	require.NoError(t, err)
	defer other.Close()
	require.NoError(t, s.Close())
	_, err = os.Lstat(s.cfg.Path)
	require.NoError(t, err)
}

func TestSeveralClientsAtOnce(t *testing.T) {
	s, _ := serve(t)
	var wg sync.WaitGroup
	for i := range maxClients {
		c := dial(t, s)
		wg.Go(func() {
			for k := range 20 {
				if _, err := c.Block(fmt.Sprintf("10.0.%d.%d", i, k), 0, ""); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	require.Len(t, s.cfg.Enforcer.List(), maxClients*20)
}

func TestTooManyClientsAreTurnedAway(t *testing.T) {
	s, _ := serve(t)
	clients := make([]*Client, maxClients)
	for i := range clients {
		clients[i] = dial(t, s)
		_, err := clients[i].Status()
		require.NoError(t, err)
	}
	_, err := dial(t, s).Status()
	require.ErrorIs(t, err, ErrRefused)
	require.ErrorContains(t, err, ErrBusy.Error())
	require.NoError(t, clients[0].Close())
	require.Eventually(t, func() bool { _, err := dial(t, s).Status(); return err == nil }, 10*time.Second, time.Millisecond)
}

func TestNonsenseEndsTheConversationAndNothingElse(t *testing.T) {
	s, _ := serve(t)
	for name, bytes := range map[string]string{
		"http": strings.Repeat("GET / HTTP/1.1\r\n", 10), "huge": "\xff\xff\xff\xff\x7f", "beyond the limit": "\x81\x80\x04" + strings.Repeat("x", maxRequest), "not protobuf": "\x04\xff\xff\xff\xff",
	} {
		c := dial(t, s)
		_, err := c.c.Write([]byte(bytes))
		require.True(t, err == nil || errors.Is(err, syscall.EPIPE), name)
		var r agppb.ControlReply
		if err := c.conn.Receive(&r); err == nil {
			require.NotEmpty(t, r.GetError(), name)
			err = c.conn.Receive(&r)
			require.True(t, errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET), name)
		} else {
			require.True(t, errors.Is(err, syscall.ECONNRESET), "%s: %v", name, err)
		}
	}
	_, err := dial(t, s).Status()
	require.NoError(t, err)
}

func TestCloseEndsClientsThatSayNothing(t *testing.T) {
	s, _ := serve(t)
	c := dial(t, s)
	_, err := c.Status()
	require.NoError(t, err)
	_, err = c.c.Write([]byte{100}) // half a request
	require.NoError(t, err)
	require.NoError(t, s.Close())
	_, err = c.Status()
	require.Error(t, err)
}

func TestPeersAreJudgedByUserAndGroup(t *testing.T) {
	const owner, group = 100, 200
	for _, p := range []peer{{uid: 0, gid: 9}, {uid: owner, gid: 9}, {uid: 7, gid: group}, {uid: 7, gid: 9, groups: []uint32{1, group}}} {
		require.NoError(t, p.check(owner, group), p)
	}
	for _, p := range []peer{{uid: 7, gid: 9}, {uid: 7, gid: 9, groups: []uint32{0, owner}}} {
		require.ErrorIs(t, p.check(owner, group), ErrDenied)
	}
}

// askAs blocks an address as another user, and returns what that printed.
func askAs(t *testing.T, path string, cred syscall.Credential) (string, error) {
	t.Helper()
	self, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	program := filepath.Join(filepath.Dir(path), "client")
	require.NoError(t, os.WriteFile(program, self, 0o755)) //nolint:gosec // others run it
	cmd := exec.Command(program)
	cmd.Env = []string{clientEnv + "=" + path}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &cred}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestStrangersAreDeniedEvenIfTheFileLetsThemIn(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can become somebody else")
	}
	s, l := serve(t)
	require.NoError(t, os.Chmod(filepath.Dir(s.cfg.Path), 0o755)) //nolint:gosec // others shall come this far
	const nobody, group = 65534, 4242
	out, err := askAs(t, s.cfg.Path, syscall.Credential{Uid: nobody, Gid: nobody})
	require.Error(t, err)
	require.Contains(t, out, ErrDenied.Error(), "by the mode of the file")

	require.NoError(t, os.Chmod(s.cfg.Path, 0o666)) //nolint:gosec // that is the case tested
	out, err = askAs(t, s.cfg.Path, syscall.Credential{Uid: nobody, Gid: nobody})
	require.Error(t, err)
	require.Contains(t, out, ErrDenied.Error(), "by the server")
	require.Contains(t, l.text(), "uid 65534")
	require.Empty(t, s.cfg.Enforcer.List())
	require.NoError(t, s.Close())

	cfg, _ := config(t, s.cfg.Path)
	s, err = Listen(cfg)
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, os.Chown(s.cfg.Path, 0, group))
	out, err = askAs(t, s.cfg.Path, syscall.Credential{Uid: nobody, Gid: nobody, Groups: []uint32{1, group}})
	require.NoError(t, err, out)
	require.Equal(t, "uid 65534", s.cfg.Enforcer.List()[0].By)
}

// FuzzRequest: whatever comes through the socket, the server answers or hangs up, and
// what is allowed stays so.
func FuzzRequest(f *testing.F) {
	seed := func(r *agppb.ControlRequest) {
		var b bytes.Buffer
		require.NoError(f, wire.NewConn(&b).Send(r))
		f.Add(b.Bytes())
	}
	seed(&agppb.ControlRequest{Request: &agppb.ControlRequest_Block{Block: &agppb.ControlBlock{Prefix: "192.0.2.0/24", TtlNs: 1e9}}})
	seed(&agppb.ControlRequest{Request: &agppb.ControlRequest_RateLimit{RateLimit: &agppb.ControlBlock{Prefix: "::1", PacketsPerSecond: 5}}})
	seed(&agppb.ControlRequest{Request: &agppb.ControlRequest_Unblock{Unblock: &agppb.ControlUnblock{Prefix: "192.0.2.9"}}})
	seed(&agppb.ControlRequest{Request: &agppb.ControlRequest_List{List: &agppb.ControlList{}}})
	seed(&agppb.ControlRequest{Request: &agppb.ControlRequest_Status{}})
	m := manager(f)
	s := &Server{cfg: Config{Enforcer: m, EngineUp: func() bool { return false }, Log: &discard{}}}
	f.Fuzz(func(t *testing.T, data []byte) {
		conn := wire.NewLimitedConn(bytes.NewBuffer(bytes.Clone(data)), maxRequest)
		for {
			var req agppb.ControlRequest
			if err := conn.Receive(&req); err != nil {
				break
			}
			for r := range s.answer(&req, peer{}) {
				_, err := proto.Marshal(r)
				require.NoError(t, err, "texts are what protobuf can carry")
			}
		}
		for _, r := range m.List() {
			require.False(t, r.Prefix.Contains(netip.MustParseAddr("192.0.2.1")))
		}
	})
}

type discard struct{}

func (discard) Warnf(string, ...any) {}
func (discard) Infof(string, ...any) {}
