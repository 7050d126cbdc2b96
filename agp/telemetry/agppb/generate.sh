#!/bin/sh
# Regenerates agp.pb.go (or another file: generate.sh OUTPUT_FOLDER). The Go
# plugin is the one of go.mod, so that only protoc itself comes from outside;
# its version is kept out of the result, since it does not change the code.
set -eu
cd "$(dirname "$0")"
out=${1:-.}
tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
go build -o "$tools/protoc-gen-go" google.golang.org/protobuf/cmd/protoc-gen-go
protoc --plugin="protoc-gen-go=$tools/protoc-gen-go" --go_out="$tools" --go_opt=paths=source_relative -I . agp.proto
sed '/^\/\/ \tprotoc  *v/d' "$tools/agp.pb.go" >"$out/agp.pb.go"
