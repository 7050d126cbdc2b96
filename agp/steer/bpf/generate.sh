#!/bin/sh
# generate.sh [FOLDER] compiles the programs and writes objects and bindings to FOLDER (here).
set -eu
out=${1:-.}
flags="-O2 -Wall -Wextra -Werror -mcpu=v3 -nostdinc"
bpf2go="go run github.com/cilium/ebpf/cmd/bpf2go"
export GOPACKAGE=bpf GOFILE=doc.go BPF2GO_STRIP=llvm-strip-19
$bpf2go -cc clang-19 -target bpfel -no-global-types -output-dir "$out" -cflags "$flags" Steer steer.bpf.c
# For tests alone.
$bpf2go -cc clang-19 -target bpfel -no-global-types -output-dir "$out" -output-suffix _test -cflags "$flags" Parser parser.bpf.c
