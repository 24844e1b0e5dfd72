#!/usr/bin/env bash
# Configures a preset when needed and builds targets. Where the machine lacks something, it says so in one
# sentence, and no folder is left behind.
#   tools/build.sh PRESET TARGET... [-DNAME=VALUE...]
set -euo pipefail
preset=$1
shift
targets=() options=()
for word in "$@"; do
  case $word in
    -D*) options+=("$word") ;;
    *) targets+=("$word") ;;
  esac
done
stop() { echo "fp4moe: $*" >&2; exit 1; }
for program in cmake ninja; do
  command -v $program >/dev/null || stop "$program is missing: install it (Debian: apt-get install cmake ninja-build)"
done
version=$(cmake --version | sed -n '1s/[^0-9]*\([0-9.]*\).*/\1/p')
[ "$(printf '%s\n' 3.25 "$version" | sort -V | head -n 1)" = 3.25 ] ||
  stop "cmake $version is too old: install 3.25 or newer (Debian 12 has it; elsewhere: pip install cmake)"
build=build/$preset
if [ ! -f "$build/build.ninja" ] || [ ${#options[@]} -gt 0 ]; then
  is_new=$([ -e "$build" ] || echo yes)
  mkdir -p "$build" 2>/dev/null || stop "$PWD/$build cannot be made: it must be a folder that $(id -un) may write to"
  log=$build/configure.log cache=$build/CMakeCache.txt
  [ ! -e "$cache" ] || cp -p "$cache" "$cache.before"
  if ! cmake --preset "$preset" "${options[@]}" >"$log" 2>&1; then
    sentence=$(sed -n 's/^ *\(fp4moe: .*\)/\1/p' "$log" | head -n 1)
    [ -n "$sentence" ] || sentence=$(cat "$log")
    # What CMake refused is not kept: the folder builds what it built before.
    if [ -n "$is_new" ]; then rm -rf "$build"; elif [ -e "$cache.before" ]; then mv -f "$cache.before" "$cache"; fi
    echo "$sentence" >&2
    exit 1
  fi
  rm -f "$cache.before"
fi
cmake --build "$build" --target "${targets[@]}"
