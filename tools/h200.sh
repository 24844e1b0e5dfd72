#!/usr/bin/env bash
# Builds with the CUDA engine, checks and measures everything on this machine's H200.
#   tools/h200.sh [build] [test] [sanitize] [golden] [bench]     without words: all of them, in this order
#
#   BUILD=FOLDER     where to build (build/h200)
#   OUT=FOLDER       where reports go (bench/results)
#   SECONDS_EACH=N   for each sustained report of bench (8); a burst takes half a second
#
# The status is 1 where compute-sanitizer reports something. Reports of racecheck and synccheck on kernels that
# they misjudge are printed and do not count.
#   CMAKE_OPTIONS    more of them, e.g. -DFP4MOE_CUBINS=FOLDER where there is no nvcc
set -euo pipefail
cd "$(dirname "$0")/.."
build=${BUILD:-build/h200}
out=${OUT:-bench/results}
steps=("$@")
[ ${#steps[@]} -gt 0 ] || steps=(build test sanitize golden bench)
program=$build/bin/fp4moe
tests=(moe_cuda_gpu_test runtime_gpu_test)

# Kernels with mbarriers and with barriers of some of a block's threads, which racecheck and synccheck misjudge
# (docs/cuda-kernels.md#races). The emulator checks them: `make test-all`, cuda.emulated_sm90.
misjudged=kns=fp4moe_sm90_decode,kns=fp4moe_sm90_grouped_gemm

reported=()  # by compute-sanitizer
noted=()     # the same of misjudged kernels

say() { printf '\n== %s\n' "$*"; }

build() {
  say "build in $build"
  generator=()
  command -v ninja >/dev/null && generator=(-G Ninja)
  # shellcheck disable=SC2086
  cmake -S . -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DFP4MOE_CUDA=ON ${CMAKE_OPTIONS:-} >"$build.log" 2>&1 ||
    { cat "$build.log"; return 1; }
  cmake --build "$build" -j "$(nproc)" --target fp4moe_program tests
}

test() {
  say "tests on the device"
  ctest --test-dir "$build" -L gpu --output-on-failure
  "$build/runtime_test" --gtest_brief=1 --gtest_filter='*Conformance*:*MoeLayer*'  # with every engine that computes here
  FP4MOE_CUDA_TEST_ROWS=1 "$build/moe_cuda_gpu_test" --gtest_brief=1 --gtest_filter='*DeviceLayer*'  # few tokens by the way of many
}

# TEST TOOL [OPTION...]: status 9 where the tool reports something. Small shapes: everything takes a hundred times
# as long. One test asks for more memory than there is, so errors of the driver's functions are not reported.
under() {
  say "compute-sanitizer ${*:2}: $1"
  FP4MOE_CUDA_TEST_SMALL=1 compute-sanitizer --tool "$2" "${@:3}" --report-api-errors no --error-exitcode 9 --launch-timeout 120 \
    "$build/$1" --gtest_brief=1
}

sanitize() {
  if ! command -v compute-sanitizer >/dev/null; then
    say "no compute-sanitizer here: left out"
    return 0
  fi
  local name tool status
  for name in "${tests[@]}"; do
    for tool in memcheck initcheck; do
      under "$name" "$tool" || reported+=("$tool $name")
    done
    for tool in racecheck synccheck; do
      under "$name" "$tool" --kernel-name-exclude "$misjudged" || reported+=("$tool $name")
      status=0
      under "$name" "$tool" --kernel-name "$misjudged" || status=$?
      case $status in
        0) ;;
        9) noted+=("$tool $name") ;;
        *) reported+=("$tool $name (status $status)") ;;
      esac
    done
  done
}

golden() {
  say "golden layers"
  "$program" golden testdata/moe.json --engine cuda
}

bench() {
  say "measured with"
  nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.limit,temperature.gpu --format=csv || true
  tools/bench_cuda.py "$program" --out "$out" --seconds "${SECONDS_EACH:-8}"  # bursts, then sustained
  say "clocks after it"
  nvidia-smi --query-gpu=clocks.sm,clocks.mem,power.draw,temperature.gpu --format=csv,noheader || true
}

for step in "${steps[@]}"; do
  case $step in
    build | test | sanitize | golden | bench) "$step" ;;
    *)
      echo "h200.sh: no such step: $step (build, test, sanitize, golden, bench)" >&2
      exit 2
      ;;
  esac
done
say "all done: ${steps[*]}"
[ ${#noted[@]} -eq 0 ] || say "compute-sanitizer reported, of kernels that it misjudges: ${noted[*]}"
[ ${#reported[@]} -eq 0 ] || { say "compute-sanitizer reported: ${reported[*]}"; exit 1; }
