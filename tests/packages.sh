#!/bin/bash
# packages.sh COMMAND:PACKAGE... installs the Debian packages of commands that are absent.
# Where it cannot (another distribution, no root), it says what is missing. With
# AGP_REQUIRE set that is a failure; without, tests and benchmarks that need a
# missing program say so themselves.
set -euo pipefail
export PATH="$PATH:/usr/sbin:/sbin"

missing=()
for pair in "$@"; do
	command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}")
done
# The venv module is a package of its own on Debian.
if [[ " $* " == *" python3:python3-venv "* ]] && ! python3 -c 'import ensurepip' 2>/dev/null; then
	missing+=(python3-venv)
fi
[ ${#missing[@]} -eq 0 ] && exit 0

sudo=()
[ "$(id -u)" -eq 0 ] || sudo=(sudo -n)
if ! command -v apt-get >/dev/null || ! "${sudo[@]}" true 2>/dev/null; then
	echo "missing packages: ${missing[*]} (install them by hand)" >&2
	[ "${AGP_REQUIRE:-0}" = 0 ]
	exit
fi
echo "installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
# Some of these packages start a service of their own when they are installed; tests start theirs.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
	printf '#!/bin/sh\nexit 101\n' | "${sudo[@]}" tee $policy >/dev/null
	"${sudo[@]}" chmod +x $policy
	trap '"${sudo[@]}" rm -f $policy' EXIT
fi
"${sudo[@]}" apt-get update -qq
"${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
