# SPDX-License-Identifier: MIT
# The front door. `make help` lists what there is; CMake does the work in build/.
BUILD  ?= build
JOBS   ?= $(shell nproc)
PREFIX ?= /usr/local
TRACE  := data/trace_a.safetensors
RESULT := $(BUILD)/trace_a.result.safetensors
ROWS   ?= 16

.DEFAULT_GOAL := help
.PHONY: help setup configure build run test test-gpu asan replay fuzz bench bench-accept gate format \
        format-check abi abi-accept amalgamation install clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install what the build and the tests need (Debian packages)
	@tools/setup.sh build

configure: setup
	@cmake -S . -B $(BUILD) -G Ninja -DCMAKE_INSTALL_PREFIX=$(PREFIX) >$(BUILD).log 2>&1 || \
	  { cat $(BUILD).log; exit 1; }
	@rm -f $(BUILD).log

build: configure ## build everything into build/
	@cmake --build $(BUILD) -j $(JOBS)

run: configure ## the main job: both levels on the bundled trace, then checked by the oracle
	@cmake --build $(BUILD) -j $(JOBS) --target tamis_command
	$(BUILD)/tamis run $(TRACE) -o $(RESULT)
	@$(BUILD)/tamis check $(TRACE) $(RESULT) --rows $(ROWS)

test: build ## build and run all tests
	@tools/run-tests.sh $(BUILD)

test-gpu: ## tests of the CUDA backend, on a machine with an NVIDIA GPU
	@tools/gpu-test.sh

asan: setup ## all tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@cmake -S . -B build-asan -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
	  -DTAMIS_SANITIZE=address,undefined >/dev/null
	@cmake --build build-asan -j $(JOBS)
	@tools/run-tests.sh build-asan

replay: setup ## 10,000 steps of random server lives under the sanitizers, each held to the oracle
	@cmake -S . -B build-asan -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
	  -DTAMIS_SANITIZE=address,undefined >/dev/null
	@cmake --build build-asan -j $(JOBS) --target tamis_command
	@tests/replay/many_steps.sh build-asan/tamis $(or $(REPLAY_SCRIPTS),40)

fuzz: setup ## fuzz the trace reader and expand for FUZZ_SECONDS (default 600) each
	@tools/fuzz.sh $(or $(FUZZ_SECONDS),600)

bench: configure ## compare dense and sparse on the shapes of bench/shapes
	@cmake --build $(BUILD) -j $(JOBS) --target tamis_command
	$(BUILD)/tamis bench

gate: configure ## instruction counts, and registers of CUDA kernels, against the committed figures
	@cmake --build $(BUILD) -j $(JOBS)
	@tools/gate.sh check $(BUILD)
	@tools/gpu-gate.py check

bench-accept: configure ## renew the committed figures of gate; say why in the commit
	@cmake --build $(BUILD) -j $(JOBS)
	@tools/gate.sh accept $(BUILD)
	@tools/gpu-gate.py accept

abi: setup ## the ABI against the committed dump
	@tools/abi.sh check

abi-accept: setup ## renew the committed ABI dump; say why in the commit
	@tools/abi.sh accept

amalgamation: ## the core library as one .c and one .h, in build/amalgamation
	@tools/amalgamate.py $(BUILD)/amalgamation

format: ## format every C and CUDA source
	@git ls-files '*.c' '*.h' '*.cpp' '*.cu' '*.cuh' | xargs clang-format -i

format-check: ## fail when a C or CUDA source is not formatted
	@git ls-files '*.c' '*.h' '*.cpp' '*.cu' '*.cuh' | xargs clang-format --dry-run -Werror

install: build ## install the library, headers, command and man page under PREFIX
	@cmake --install $(BUILD) --prefix $(PREFIX)

clean: ## remove what was built
	rm -rf build build-*
