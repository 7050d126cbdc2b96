#!/bin/bash
# fuzz.sh TIME JOBS runs every fuzz target of the module for TIME, JOBS at a time.
set -euo pipefail

# one PACKAGE TARGET TIME runs one target. Making interesting inputs smaller would take
# up to a minute each, most of the time there is. The go command sometimes reports its own
# deadline as a failure when the time is over (no input is written then): that is a pass.
one() {
	local out
	if out=$(go test -run='^$' -fuzz="^$2\$" -fuzztime="$3" -fuzzminimizetime=10x -parallel=1 "$1" 2>&1); then
		echo "ok   $1 $2: $(grep -E '^fuzz: elapsed' <<<"$out" | tail -1)"
	elif grep -q 'context deadline exceeded' <<<"$out" && ! grep -q 'Failing input written' <<<"$out"; then
		echo "ok   $1 $2: $(grep -E '^fuzz: elapsed' <<<"$out" | tail -1) (ended by its deadline)"
	else
		echo "FAIL $1 $2"
		echo "$out"
		return 1
	fi
}
export -f one

grep -rEo --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' . |
	sed -E 's,^(.*)/[^/]+:func (.*)$,\1 \2,' | sort -u |
	xargs -r -P "$2" -L 1 bash -c "one \"\$0\" \"\$1\" $1"
