#!/bin/bash
# gpu.sh DIR runs the test programs that "make gpu-tests" has put into DIR, each in the folder of
# its package, on the first GPU. Without compute-sanitizer its part is left out and said so.
set -euo pipefail
dir=$(realpath "$1")
cd "$(dirname "$0")/.."
nvidia-smi -L

failed=0
run() { # program, folder, arguments
	local program=$dir/$1 folder=$2
	shift 2
	echo "== $folder $*"
	(cd "$folder" && "$program" -test.timeout 10m "$@") || failed=1
}
run cuda.test cuda -test.run Live
run agp-telemetry-gpu.test agp/telemetry/gpu -test.run Live
run agp-engine.test agp/engine -test.run '^TestLive'
run tests-bench-gpu.test tests/bench/gpu
run agp-pipeline-cuda.test agp/pipeline/cuda

if command -v compute-sanitizer >/dev/null; then
	for tool in memcheck racecheck synccheck; do
		echo "== compute-sanitizer $tool"
		(cd tests/bench/gpu && compute-sanitizer --tool "$tool" --report-api-errors no --error-exitcode 9 "$dir/tests-bench-gpu.test" -test.run 'NICModel.*/(prefilled|producer)') || failed=1
	done
else
	echo "no compute-sanitizer: not run under it"
fi
exit $failed
