# The two commands: `make run` and `make test`. Everything else is listed by `make help`.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PREFIX ?= /usr/local
VENV := build/venv
NVCC := build/nvcc
FP4MOE := build/release/bin/fp4moe
export CTEST_PARALLEL_LEVEL ?= $(shell nproc)
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell nproc)

.NOTPARALLEL:
.PHONY: help run build test test-release test-asan check format format-check tidy tree asan tsan \
        fuzz bench bench-layer cuda static python install clean packages-build packages-cuda packages-python packages-test packages-check venv

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

run: build ## build, then show the whole main job on an embedded default
	@$(FP4MOE) demo

build: packages-build ## build build/release/bin/fp4moe
	@tools/build.sh release fp4moe_program

test: test-release test-asan ## every test: C++, Python witnesses, command line, docs, examples; then sanitizers

test-release: packages-test venv
	@nvcc=$$(tools/nvcc.sh $(NVCC)) && tools/build.sh release all tests \
	  -DFP4MOE_TEST_PYTHON=$(CURDIR)/$(VENV)/bin/python -DFP4MOE_CUDA=ON -DFP4MOE_NVCC=$$nvcc \
	  -DFP4MOE_PYTHON=ON -DPython_EXECUTABLE=$(CURDIR)/$(VENV)/bin/python
	@tools/wheel.sh $(VENV)/bin/python build/release build/release/wheel
	@$(VENV)/bin/pip install --quiet --disable-pip-version-check --no-index --no-deps --force-reinstall build/release/wheel/*.whl
	@ctest --preset release

test-asan: packages-test
	@tools/build.sh asan tests
	@ctest --preset asan

check: format-check tree tidy asan tsan fuzz ## format, include arrows, kernel objects, tidy, sanitizers, fuzzing
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

asan: test-asan

tsan: packages-test
	@tools/build.sh tsan tests
	@ctest --preset tsan

fuzz: packages-check ## fuzz each parser for FUZZ_SECONDS (60)
	@tools/build.sh fuzz fuzzers
	@tools/fuzz.sh build/fuzz $${FUZZ_SECONDS:-60}

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

packages-build packages-cuda packages-python packages-test packages-check:
	@tools/packages.sh $(@:packages-%=%)

venv: packages-test
	@tools/venv.sh $(VENV) tests/requirements.txt
