package options

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestThresholdsAreCheckedByNameAndValue(t *testing.T) {
	require.NoError(t, CheckThresholds(nil))
	for _, n := range ThresholdNames() {
		require.NoError(t, CheckThresholds(map[string]float64{n: -1}), n)
		for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
			err := CheckThresholds(map[string]float64{n: v})
			require.ErrorIs(t, err, ErrThreshold)
			require.ErrorContains(t, err, n+" = ")
		}
	}
	err := CheckThresholds(map[string]float64{"port_scan": 1, "zzz": 1, "syn_flud": 1})
	require.ErrorIs(t, err, ErrThreshold)
	require.ErrorContains(t, err, `no threshold "syn_flud"; known are syn_flood, `, "the first by name")
}
