#!/usr/bin/env bash
# Runs clang-tidy on the sources named on standard input, on all cores.
#   git ls-files 'src/*.cpp' | tools/tidy.sh build/dev
set -euo pipefail
xargs -P "$(nproc)" -n 1 clang-tidy --quiet --extra-arg=-Wno-unknown-warning-option -p "$1"
