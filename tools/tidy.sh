#!/usr/bin/env bash
# Runs clang-tidy on the named files, or on every source but the unit tests; nothing is compiled first.
# A header is checked with every source that includes it; a named header stands for one of those.
# Kernels of the other architecture, and sources that ask which one it is, are checked for that one
# too where its C++ headers are installed (tools/packages.sh check).
#   tools/tidy.sh [FILE...]
set -euo pipefail
cd "$(dirname "$0")/.."

case $(uname -m) in
  aarch64) other=x86_64 ;;
  x86_64) other=aarch64 ;;
  *) other= ;;
esac

configure() {  # PRESET [OPTION...]
  mkdir -p "build/$1"
  cmake --preset "$@" >"build/$1/configure.log" 2>&1 || { cat "build/$1/configure.log" >&2; return 1; }
}
knows() { grep -qF "\"$PWD/$2\"" "build/$1/compile_commands.json"; }  # PRESET SOURCE
sources() { git ls-files '*.cpp' | grep -v -e '_test\.cpp$' -e '^tests/install/'; }

source_for() {  # FILE: itself, or a source that includes the header
  case $1 in
    *_test.cpp) ;;
    *.hpp) if [ -f "${1%.hpp}.cpp" ]; then echo "${1%.hpp}.cpp"; else
             sources | xargs grep -lF "#include \"${1#src/}\"" | sed -n 1p; fi ;;
    *.cpp) echo "$1" ;;
  esac
}

# One clang-tidy; its findings go to a file, because lines of two would mix.
check() {  # PRESET SOURCE
  local log="build/$1/findings/${2//\//+}" verdict=ok begin=$SECONDS
  clang-tidy --quiet -p "build/$1" "$2" >"$log" 2>"$log.err" || verdict=FOUND
  if [ $verdict = FOUND ] && [ ! -s "$log" ]; then mv "$log.err" "$log"; fi
  echo "$verdict $1 $2 $((SECONDS - begin)) $log"
}
export -f check

# The Python module, too, where `make venv` has fetched what it is bound with.
python=$PWD/build/venv/bin/python
if [ -x "$python" ] && "$python" -c 'import nanobind' 2>/dev/null; then
  configure tidy -DFP4MOE_PYTHON=ON -DPython_EXECUTABLE="$python"
else
  configure tidy
fi
if [ -n "$other" ] && compgen -G "/usr/lib/gcc-cross/$other-linux-gnu/*" >/dev/null; then
  configure "tidy-$other"
else
  other=
fi

jobs=() skipped=()
while IFS= read -r source; do
  known=
  if knows tidy "$source"; then known=1 jobs+=("tidy $source"); fi
  if [ -n "$other" ] && knows "tidy-$other" "$source" &&
     { [ -z "$known" ] || grep -qE '__(x86_64|aarch64)__' "$source"; }; then
    known=1 jobs+=("tidy-$other $source")
  fi
  [ -n "$known" ] || skipped+=("$source")
done < <(if [ $# -gt 0 ]; then for file; do source_for "${file#"$PWD/"}"; done | sort -u; else sources; fi)

[ ${#skipped[@]} -eq 0 ] || printf 'tidy: not checked, no build here compiles it: %s\n' "${skipped[@]}"
if [ ${#jobs[@]} -eq 0 ]; then echo "tidy: nothing to check"; exit 0; fi

rm -rf build/tidy*/findings
for preset in tidy ${other:+tidy-$other}; do mkdir -p "build/$preset/findings"; done
done_count=0 found=() start=$SECONDS
while read -r verdict preset source seconds log; do
  done_count=$((done_count + 1))
  name=$source
  [ "$preset" = tidy ] || name+=" for $other"
  printf '[%d/%d] %-5s %s (%d s)\n' $done_count ${#jobs[@]} "$verdict" "$name" "$seconds"
  if [ "$verdict" != ok ]; then found+=("$name"); cat "$log"; fi
done < <(printf '%s\n' "${jobs[@]}" | xargs -P "$(nproc)" -L 1 bash -c 'check "$@"' check)

echo "tidy: $done_count of ${#jobs[@]} checked in $((SECONDS - start)) s, ${#found[@]} with findings," \
  "${#skipped[@]} not checked"
[ ${#found[@]} -eq 0 ] || printf '  %s\n' "${found[@]}"
[ ${#found[@]} -eq 0 ] && [ "$done_count" -eq ${#jobs[@]} ]
