#!/usr/bin/env bash
# Runs clang-tidy on the sources named on standard input that a build compiles, on all cores; kernels
# of another architecture are not among them.
#   git ls-files 'src/*.cpp' | tools/tidy.sh build/dev
set -euo pipefail
build=$1
while IFS= read -r source; do
  if grep -q "/$source\"" "$build/compile_commands.json"; then echo "$source"; fi
done | xargs -P "$(nproc)" -n 1 clang-tidy --quiet --extra-arg=-Wno-unknown-warning-option -p "$build"
