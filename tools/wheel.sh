#!/usr/bin/env bash
# Builds the wheel into a folder, with a Python that has scikit-build-core and nanobind; the library is
# built where the second folder is, and what is there already is used.
#   tools/wheel.sh PYTHON BUILD_FOLDER WHEEL_FOLDER
set -euo pipefail
python=$1 build=$2 wheels=$3
mkdir -p "$build" "$wheels"
log=$build/wheel.log
rm -f "$wheels"/fp4moe-*.whl
"$python" -m pip wheel --disable-pip-version-check --no-build-isolation --no-deps --verbose \
  -Cbuild-dir="$build" -w "$wheels" . >"$log" 2>&1 || { tail -50 "$log" >&2; exit 1; }
ls "$wheels"/fp4moe-*.whl
