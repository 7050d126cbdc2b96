package claim

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestANameIsTakenOnce(t *testing.T) {
	name := fmt.Sprintf("test/%d", os.Getpid())
	first, err := Take(name)
	require.NoError(t, err)
	_, err = Take(name)
	var taken *TakenError
	require.ErrorAs(t, err, &taken)
	require.Equal(t, os.Getpid(), taken.Pid)
	require.EqualError(t, err, fmt.Sprintf("%s is in use by process %d", name, os.Getpid()))
	other, err := Take(name + "/other")
	require.NoError(t, err)
	require.NoError(t, other.Close())
	require.NoError(t, first.Close())
	again, err := Take(name)
	require.NoError(t, err)
	require.NoError(t, again.Close())
}
