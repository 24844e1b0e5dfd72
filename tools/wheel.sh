#!/usr/bin/env bash
# Builds the wheel into a folder, with a Python that has scikit-build-core and nanobind; the library is
# built where the second folder is, and what is there already is used. What goes on is in BUILD_FOLDER/wheel.log.
#   tools/wheel.sh PYTHON BUILD_FOLDER WHEEL_FOLDER
set -euo pipefail
python=$1 build=$2 wheels=$3
is_new=$([ -e "$build" ] || echo yes)
mkdir -p "$build" "$wheels"
log=$build/wheel.log
rm -f "$wheels"/fp4moe-*.whl
"$python" -m pip wheel --disable-pip-version-check --no-build-isolation --no-deps --verbose \
  -Cbuild-dir="$build" -w "$wheels" . >"$log" 2>&1 || {
  sentence=$(sed -n 's/^ *\(fp4moe: .*\)/\1/p' "$log" | head -n 1)
  [ -n "$sentence" ] || sentence=$(tail -50 "$log")
  [ -z "$is_new" ] || rm -rf "$build"
  echo "$sentence" >&2
  exit 1
}
ls "$wheels"/fp4moe-*.whl
