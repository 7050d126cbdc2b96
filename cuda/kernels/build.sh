#!/bin/bash
# Compiles the device code: build.sh [-c | -n] [OUTPUT_FOLDER]. The result depends
# on the sources and on the compiler's version alone, which is why that is pinned: a
# compiler that is installed is used if it is of this version (NVCC names one that
# is not in PATH), else the one of requirements.txt, in a Python environment in build/.
#  -c  only see to it that there is a compiler
#  -n  only say whether there is one
set -euo pipefail
version=V13.0.88
only=
while getopts cn o; do only=$o; done
shift $((OPTIND - 1))
out=$(realpath "${1:-.}")
cd "$(dirname "$0")"
[ $# -gt 0 ] || out=$PWD
venv=$(realpath ../..)/build/venv-cuda

is() { "$1" --version 2>/dev/null | grep -q "$version\$"; }
nvcc=
for n in "${NVCC:-}" nvcc /usr/local/cuda-13.0/bin/nvcc /usr/local/cuda/bin/nvcc; do
	if [ -n "$n" ] && n=$(command -v "$n") && is "$n"; then
		nvcc=$n
		break
	fi
done
if [ -z "$nvcc" ]; then
	nvcc=$(echo "$venv"/lib/python*/site-packages/nvidia/cu13/bin/nvcc)
	if [ ! "$venv/.ready" -nt requirements.txt ] || ! is "$nvcc"; then
		[ "$only" != n ] || { echo "nvcc $version is not installed" >&2; exit 1; }
		"${PYTHON:-python3}" -m venv "$venv"
		"$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps -r requirements.txt
		touch "$venv/.ready"
		nvcc=$(echo "$venv"/lib/python*/site-packages/nvidia/cu13/bin/nvcc)
	fi
	is "$nvcc" || { echo "$nvcc is not of version $version" >&2; exit 1; }
fi
[ -z "$only" ] || exit 0
bin=$(dirname "$nvcc")

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The compiler puts a hash of the folder into the names of what is static.
ptx() { # architecture, result
	"$nvcc" -std=c++17 -O3 -Werror all-warnings -ptx -arch="$1" -o "$work/raw.ptx" main.cu
	sed -E 's/_INTERNAL_[0-9a-f]{8}_([0-9]+_[A-Za-z0-9_]*_cu_)[0-9a-f]{8}/_INTERNAL_00000000_\100000000/g' "$work/raw.ptx" >"$work/$2"
}
ptx compute_80 agp.compute_80.ptx
ptx compute_90a agp.compute_90a.ptx
{
	"$bin/ptxas" -arch=sm_90a -O3 -v -o "$work/agp.sm_90a.cubin" "$work/agp.compute_90a.ptx"
	# As an older device's driver would compile it.
	"$bin/ptxas" -arch=sm_80 -O3 -v -o "$work/unused" "$work/agp.compute_80.ptx"
} 2>&1 | grep -v 'Compile time' >"$work/agp.resources.txt"
for f in agp.sm_90a.cubin agp.compute_80.ptx; do
	gzip -9nc "$work/$f" >"$out/$f.gz"
done
cp "$work/agp.resources.txt" "$out"
sed -n "/Compiling entry function/,/Used/p" "$work/agp.resources.txt" | grep -v 'Function properties'
