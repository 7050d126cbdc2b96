package hangup

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const roleEnv = "AGP_TEST_HANGUP"

func TestMain(m *testing.M) {
	if os.Getenv(roleEnv) == "" {
		os.Exit(m.Run())
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGHUP)
	time.Sleep(100 * time.Millisecond) // a signal that ends the process does so meanwhile
	os.Exit(0)
}

func TestHangupEndsOtherCommandsButNotRun(t *testing.T) {
	for command, ends := range map[string]bool{"run": false, "replay": true} {
		// Whoever started the tests may have told them to ignore SIGHUP (nohup).
		cmd := exec.Command("env", "--default-signal=HUP", os.Args[0], command)
		cmd.Env = append(os.Environ(), roleEnv+"=1")
		require.Equal(t, ends, cmd.Run() != nil, command)
	}
}
