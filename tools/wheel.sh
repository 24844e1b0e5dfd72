#!/usr/bin/env bash
# Builds the wheel into a folder, with a Python that has scikit-build-core and nanobind; the library is
# built where the second folder is, and what is there already is used. What goes on is in BUILD_FOLDER/wheel.log.
# With --install, Python gets it, too; then nothing is done where neither sources nor library have changed.
#   tools/wheel.sh PYTHON BUILD_FOLDER WHEEL_FOLDER [--install]
set -euo pipefail
python=$1 build=$2 wheels=$3 install=${4:-}
is_new=$([ -e "$build" ] || echo yes)
mkdir -p "$build" "$wheels"
log=$build/wheel.log
pip=("$python" -m pip --disable-pip-version-check)

state() { sha256sum pyproject.toml README.md LICENSE $(git ls-files python/fp4moe) "$build"/python/fp4moe/* 2>/dev/null; }
if [ -n "$install" ] && [ "$(state)" = "$(cat "$wheels/installed" 2>/dev/null)" ] && "${pip[@]}" show --quiet fp4moe 2>/dev/null; then
  exit 0
fi

rm -f "$wheels"/*
# A folder that is there keeps its kernels, or its lack of them.
cuda=$(sed -n 's/^FP4MOE_CUDA:STRING=//p' "$build/CMakeCache.txt" 2>/dev/null || true)
"${pip[@]}" wheel --no-build-isolation --no-deps --verbose -Cbuild-dir="$build" -Ccmake.define.FP4MOE_CUDA="${cuda:-AUTO}" -w "$wheels" . >"$log" 2>&1 || {
  sentence=$(sed -n 's/^ *\(fp4moe: .*\)/\1/p' "$log" | head -n 1)
  [ -n "$sentence" ] || sentence=$(tail -50 "$log")
  [ -z "$is_new" ] || rm -rf "$build"
  echo "$sentence" >&2
  exit 1
}
ls "$wheels"/fp4moe-*.whl
[ -z "$install" ] && exit 0
"${pip[@]}" install --quiet --no-index --no-deps --force-reinstall "$wheels"/fp4moe-*.whl
state >"$wheels/installed"
