#!/bin/bash
# build.sh FOLDER writes the deb and the rpm into FOLDER, and the bill of materials
# beside them. The same commit gives the same bytes, wherever and whenever. AGP_VERSION
# and SOURCE_DATE_EPOCH can be given; else they are those of the commit.
set -euo pipefail
NFPM=github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.2

out=$(mkdir -p "$1" && cd "$1" && pwd)
cd "$(dirname "$0")/.."
umask 022
export TZ=UTC LC_ALL=C
go=${GO:-go}
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}

# v1.2.3 is 1.2.3, five commits later 1.2.3+5.gabc; before any tag versions go up with the time of the commit.
if [ -z "${AGP_VERSION:-}" ]; then
	if tag=$(git describe --tags --match 'v[0-9]*' 2>/dev/null); then
		AGP_VERSION=$(sed -E 's/^v//; s/-([0-9]+)-(g[0-9a-f]+)$/+\1.\2/; s/-/~/g' <<<"$tag")
	else
		AGP_VERSION=0.0~git$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y%m%d%H%M%S).$(git rev-parse --short=8 HEAD)
	fi
	[ -z "$(git status --porcelain --untracked-files=no)" ] || AGP_VERSION+=+dirty
fi
AGP_ARCH=$($go env GOARCH)
export AGP_VERSION AGP_ARCH

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
put() { install -D -m 644 "$1" "$stage/$2"; }

share=usr/share/telegraf-agp
doc=usr/share/doc/telegraf-agp
program=$stage/usr/lib/telegraf-agp/telegraf-agp
CGO_ENABLED=0 $go build -trimpath -ldflags "-s -w -buildid= -X main.version=$AGP_VERSION" -o "$program" ./agp/cmd/telegraf-agp
put configs/agp.conf $share/agp.conf
# The section of the example that starts the plugin, up to the empty line.
mkdir -p "$stage/$share/telegraf.d"
{
	echo "# Written by \"telegraf-agp enable\"; \"telegraf-agp disable\" takes it out again."
	echo "# Upgrades keep changes that you make here."
	sed -n '/^\[\[inputs\.execd\]\]/,/^$/{/./p}' configs/telegraf.conf
} >"$stage/$share/telegraf.d/agp.conf"
for f in configs/models/*.onnx configs/models/*.md; do put "$f" "$share/models/${f##*/}"; done
for f in configs/dashboards/README.md configs/dashboards/{influxql,flux}/*.json configs/dashboards/provisioning/*/*.yaml; do put "$f" "$share/grafana/${f#configs/dashboards/}"; done
put packaging/50-agp.conf usr/lib/systemd/system/telegraf.service.d/50-agp.conf
put README.md $doc/README.md
put plugins/inputs/agp/README.md $doc/inputs.agp.md
put LICENSE $doc/copyright
$go run ./packaging/bom -program "$program" -version "$AGP_VERSION" -bom "$stage/$doc/telegraf-agp.cdx.json" -licences "$stage/$doc/third-party-licences.txt"
cp -r packaging/scripts "$stage/"

cp packaging/nfpm.yaml "$stage/"
for format in deb rpm; do
	(cd "$stage" && $go run $NFPM package --packager $format --target "$out/")
done
cp "$stage/$doc/telegraf-agp.cdx.json" "$out/telegraf-agp_$AGP_VERSION.cdx.json"
