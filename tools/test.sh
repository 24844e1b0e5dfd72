#!/usr/bin/env bash
# Runs the tests of a ctest preset; not again where nothing that they could see has changed since all of them passed.
#   tools/test.sh BUILD_PRESET TEST_PRESET      FP4MOE_RETEST=1 runs them in any case
set -euo pipefail
build=build/$1 preset=$2
stamp=$build/passed.$preset

# The sources, and what was built of them: programs, libraries, the installed wheel.
state() {
  git ls-files -z --cached --others --exclude-standard | xargs -0 sha256sum 2>/dev/null
  find "$build" \( -name CMakeFiles -o -name Testing \) -prune -o -type f \( -perm -u+x -o -name '*.a' -o -name '*.whl' \) -print0 |
    sort -z | xargs -0 sha256sum
}

now=$(state | sha256sum)
if [ -z "${FP4MOE_RETEST:-}" ] && [ "$now" = "$(cat "$stamp" 2>/dev/null)" ]; then
  echo "test: nothing has changed since all of '$preset' passed (FP4MOE_RETEST=1 runs them again)"
  sed -n 's/^\(100% tests passed.*\)/\1/p' "$build/$preset.log"
  exit 0
fi
rm -f "$stamp"
ctest --preset "$preset" --progress | tee "$build/$preset.log"
[ "$(state | sha256sum)" != "$now" ] || echo "$now" >"$stamp"
