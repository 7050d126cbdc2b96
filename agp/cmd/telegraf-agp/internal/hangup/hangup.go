// Package hangup keeps SIGHUP, SIGUSR1 and SIGUSR2 from ending a plugin that is
// still starting. It imports next to nothing, so that it is initialised before the
// large packages, which take some milliseconds. Until the runner listens there is
// nothing to reload or to gather: the signals are dropped. It owns no goroutine.
package hangup

import (
	"os"
	"os/signal"
	"syscall"
)

func init() {
	if len(os.Args) > 1 && os.Args[1] == "run" {
		signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2)
	}
}
