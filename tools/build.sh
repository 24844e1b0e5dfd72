#!/usr/bin/env bash
# Configures a preset when needed and builds targets.
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
if [ ! -f "build/$preset/build.ninja" ] || [ ${#options[@]} -gt 0 ]; then
  mkdir -p "build/$preset"
  log=build/$preset/configure.log
  cmake --preset "$preset" "${options[@]}" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
fi
cmake --build "build/$preset" --target "${targets[@]}"
