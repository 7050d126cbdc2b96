#!/bin/bash
# gpu.sh DIR runs the test programs that "make gpu-tests" has put into DIR, each in the folder of
# its package, on the first GPU. Without compute-sanitizer its part is left out and said so. The last
# line says what has failed.
set -euo pipefail
dir=$(realpath "$1")
cd "$(dirname "$0")/.."
nvidia-smi -L

failed=()
step() { # name, folder, command
	local name=$1 folder=$2
	shift 2
	echo "== $name"
	(cd "$folder" && "$@") || failed+=("$name")
}
run() { # program, folder, arguments
	local program=$dir/$1 folder=$2
	shift 2
	step "$folder $*" "$folder" "$program" -test.timeout 10m "$@"
}
run cuda.test cuda -test.run Live
run agp-telemetry-gpu.test agp/telemetry/gpu -test.run Live
run agp-engine.test agp/engine -test.run '^TestLive'
run tests-bench-gpu.test tests/bench/gpu
run agp-pipeline-cuda.test agp/pipeline/cuda

# racecheck knows barriers, but not the order that the warps of a block give each other by release
# and acquire. So it reports the queues between them, whose order the host build proves under the
# thread sanitizer; a test reads the report and fails for everything else in it.
racecheck() { # program
	local log status=0
	log=$(mktemp)
	compute-sanitizer --tool racecheck --racecheck-report hazard --print-limit 0 --report-api-errors no \
		"$1" -test.run '^TestPacketsComeThroughTheQueues$' >"$log" 2>&1 || status=$?
	grep -v '^=========' "$log" | tail -n 20
	AGP_RACECHECK=$log "$1" -test.v -test.run '^TestHazardsAreOnlyInTheQueues$' || status=1
	rm -f "$log"
	return $status
}

if command -v compute-sanitizer >/dev/null; then
	for tool in memcheck synccheck; do
		step "compute-sanitizer $tool" tests/bench/gpu compute-sanitizer --tool "$tool" --report-api-errors no --error-exitcode 9 \
			"$dir/tests-bench-gpu.test" -test.run 'NICModel.*/(prefilled|producer)'
	done
	step "compute-sanitizer racecheck" tests/bench/gpu racecheck "$dir/tests-bench-gpu.test"
else
	echo "no compute-sanitizer: not run under it"
fi

if [ ${#failed[@]} -gt 0 ]; then
	printf 'FAILED: %s\n' "$(printf '%s; ' "${failed[@]}" | sed 's/; $//')"
	exit 1
fi
echo "all steps passed"
