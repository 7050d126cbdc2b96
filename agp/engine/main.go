package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// socketFD is where the plugin puts the engine's end of the socket pair.
const socketFD = 3

// ErrNotAChild says that the process was not started by the plugin.
var ErrNotAChild = errors.New("the engine is started by the plugin (telegraf-agp run); to process a capture without telegraf use telegraf-agp replay")

// Main serves the plugin over the inherited socket. When the plugin dies, and at
// SIGTERM, the whole process ends as soon as ports are as before, whatever the pipeline is doing.
func Main(ctx context.Context, version string, build Builder) error {
	kind, err := unix.GetsockoptInt(socketFD, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil || kind != unix.AF_UNIX {
		return ErrNotAChild
	}
	// A process that the engine starts must not hold the socket open.
	unix.CloseOnExec(socketFD)
	f := os.NewFile(socketFD, "plugin")
	conn, err := net.FileConn(f)
	_ = f.Close() // FileConn has its own copy
	if err != nil {
		return fmt.Errorf("plugin socket: %w", err)
	}
	defer conn.Close()
	ctx, stop := signal.NotifyContext(ctx, unix.SIGTERM)
	defer stop()
	err = Serve(ctx, conn, Options{Version: version, Build: build, Gone: func() { os.Exit(1) }})
	if errors.Is(err, ErrPluginGone) || errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
