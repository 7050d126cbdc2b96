# Everything is built into build/, which "make clean" removes. Packages that
# tests need are installed by "make deps" (Debian and Ubuntu, as root or with sudo).

SHELL       := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
GO          ?= go
PYTHON      ?= python3
BUILD       := build
PROFILE     ?= demo
FUZZTIME    ?= 40s
FUZZJOBS    ?= 2
CAPTURES    ?= $(wildcard ../shared/captures)
# Packages that shorten their longest tests under the race detector: tested without it as well.
FULL        := ./agp/detect ./agp/packet ./agp/steer
LINT        := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

VERSION = $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS = -s -w -X main.version=$(VERSION)

export AGP_PYTHON   ?= $(CURDIR)/$(BUILD)/venv/bin/python
export AGP_CAPTURES ?= $(abspath $(CAPTURES))
ifeq ($(AGP_CAPTURES),)
unexport AGP_CAPTURES
endif

# go-nvml, which tests use, wraps deprecated functions as well.
export CGO_CFLAGS ?= -O2 -g -Wno-deprecated-declarations

.DEFAULT_GOAL := help
.PHONY: help build cuda cuda-compiler demo test test-unit test-simt test-e2e test-live lint fuzz bench bench-live bench-gpu test-gpu gpu-tests packages train generate cover deps deps-bench clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build/telegraf-agp
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BUILD)/telegraf-agp ./agp/cmd/telegraf-agp

packages: ## build/packages: deb, rpm and bill of materials; the same commit gives the same bytes
	@rm -rf $(BUILD)/packages
	GO=$(GO) packaging/build.sh $(BUILD)/packages

cuda: ## device code again, with nvcc 13.0 of the system or of pinned wheels; prints what the kernels use
	PYTHON=$(PYTHON) cuda/kernels/build.sh

cuda-compiler: # for the test that compares
	@PYTHON=$(PYTHON) cuda/kernels/build.sh -c

demo: build ## synthetic capture -> telegraf -> plugin -> metrics, and what was expected
	CGO_ENABLED=0 $(GO) run ./tests/demo -plugin $(BUILD)/telegraf-agp -dir $(BUILD)/demo

# A program that "make deps" installs and that is missing all the same fails the tests; AGP_REQUIRE=0 skips instead.
test: export AGP_REQUIRE ?= 1
test: deps $(BUILD)/venv/.ready lint test-unit test-simt fuzz test-e2e test-live ## everything, with the packages it needs

lint: $(BUILD)/bin/golangci-lint ## gofmt, go vet, golangci-lint
	@echo "== gofmt"; bad=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$bad" || { echo "not formatted: $$bad"; exit 1; }
	@echo "== go vet"; $(GO) vet ./...
	@echo "== golangci-lint"; $< run ./...

test-unit: $(BUILD)/venv/.ready cuda-compiler ## unit, property and oracle tests, with the race detector
	@test -n "$${AGP_CAPTURES:-}" || echo "no captures (AGP_CAPTURES): tests that compare with real traffic are skipped"
	$(GO) test -race -timeout 25m $$($(GO) list ./... | grep -v -e /tests/e2e -e /tests/live -e /tests/packaging -e /tests/simt)
	$(GO) test -timeout 15m $(FULL)

test-simt: ## device code on the host: emulated warps, address, undefined-behaviour and thread sanitizers
	$(GO) test -race -timeout 10m ./tests/simt

# Test programs need neither Go nor a compiler where they run, so that they can be carried to a GPU.
gpu-tests: # build/gpu/*.test and the benchmark
	@mkdir -p $(BUILD)/gpu
	for p in cuda agp/pipeline/cuda agp/telemetry/gpu agp/engine tests/bench/gpu; do \
		CGO_ENABLED=0 $(GO) test -c -o $(BUILD)/gpu/$$(echo $$p | tr / -).test ./$$p || exit; done
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BUILD)/gpu/agp-bench-gpu ./tests/bench/cmd/agp-bench-gpu

test-gpu: gpu-tests ## what the GPU does, where there is one; compute-sanitizer on short runs
	tests/gpu.sh $(BUILD)/gpu

bench-gpu: gpu-tests ## the packet path on a GPU, fed by the NIC model; writes the table of tests/bench/RESULTS-GPU.md
	$(BUILD)/gpu/agp-bench-gpu -out tests/bench/RESULTS-GPU.md

test-e2e: ## telegraf, plugin, engine, InfluxDB and a browser together, packages from installation to removal; pictures in build/e2e
	@rm -rf $(BUILD)/e2e && mkdir -p $(BUILD)/e2e
	$(GO) test -count=1 -timeout 25m -artifacts -outputdir $(CURDIR)/$(BUILD)/e2e ./tests/e2e/... ./tests/packaging

test-live: ## capture from interfaces of network namespaces, as root; AGP_OVERLOAD=60s for the long overload
	$(GO) test -count=1 -p 1 -timeout 20m ./tests/live/...

fuzz: ## every fuzz target for FUZZTIME (40s), FUZZJOBS (2) at a time
	@tests/fuzz.sh $(FUZZTIME) $(FUZZJOBS)

bench: build deps-bench $(BUILD)/venv-bench/.ready ## packets/s against other flow meters, in one run; writes tests/bench/RESULTS.md
	$(GO) run ./tests/bench/cmd/agp-bench -plugin $(BUILD)/telegraf-agp -python $(BUILD)/venv-bench/bin/python -dir $(BUILD)/bench -out tests/bench/RESULTS.md

# The overload of the tests lasts as long here as it is asked for: a minute.
bench-live: build deps-bench ## packets/s from an interface against other flow meters, as root; writes tests/bench/RESULTS-LIVE.md
	$(GO) run ./tests/bench/cmd/agp-bench-live -plugin $(BUILD)/telegraf-agp -dir $(BUILD)/bench-live -out tests/bench/RESULTS-LIVE.md
	AGP_REQUIRE=1 AGP_OVERLOAD=60s $(GO) test -count=1 -timeout 15m -v -run Overload ./tests/live | tee $(BUILD)/bench-live/overload.txt

$(BUILD)/%.pcap:
	@mkdir -p $(@D)
	$(GO) run ./tests/traffic/cmd/agp-traffic -profile $* -o $@ -truth $(BUILD)/$*.json

train: ## train both models again (CAPTURES=folder of labelled captures)
	$(MAKE) -C configs/models/train train CAPTURES=$(abspath $(CAPTURES))

generate: ## generated files again: protobuf, vector code, BPF objects, device code
	$(GO) generate ./...

cover: ## test coverage, build/cover.html
	@mkdir -p $(BUILD)
	$(GO) test -coverprofile=$(BUILD)/cover.out $$($(GO) list ./... | grep -v -e /tests/e2e -e /tests/live -e /tests/packaging)
	$(GO) tool cover -html=$(BUILD)/cover.out -o $(BUILD)/cover.html
	$(GO) tool cover -func=$(BUILD)/cover.out | tail -1

$(BUILD)/bin/golangci-lint: Makefile
	@mkdir -p $(@D)
	GOBIN=$(CURDIR)/$(@D) $(GO) install $(LINT)
	@touch $@

$(BUILD)/venv/.ready: tests/requirements.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet --disable-pip-version-check -r $<
	touch $@

$(BUILD)/venv-bench/.ready: tests/bench/requirements.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet --disable-pip-version-check -r $<
	touch $@

deps: ## packages for "make test"
	@tests/packages.sh gcc:gcc g++:g++ influxd:influxdb tshark:tshark softflowd:softflowd protoc:protobuf-compiler python3:python3-venv ethtool:ethtool clang-19:clang-19 llvm-strip-19:llvm-19 qemu-system-x86_64:qemu-system-x86 chromium:chromium rpm:rpm rpm2cpio:rpm2cpio cpio:cpio setcap:libcap2-bin systemd-analyze:systemd

deps-bench: ## packages for "make bench"
	@tests/packages.sh argus:argus-server racount:argus-client nfpcapd:nfdump softflowd:softflowd ndpiReader:libndpi-bin python3:python3-venv taskset:util-linux

clean: ## remove build/
	rm -rf $(BUILD)
