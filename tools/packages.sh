#!/usr/bin/env bash
# Installs the Debian packages a target needs, quietly when nothing is missing. What cannot be done is said in
# one sentence.
#   tools/packages.sh build|cuda|python|test|all|check
set -euo pipefail

build=(g++ cmake ninja-build git nlohmann-json3-dev libfmt-dev libxxhash-dev libgtest-dev)
cuda=("${build[@]}" python3 python3-venv)
python=("${build[@]}" python3-dev python3-venv)
test=("${python[@]}" pkg-config)
all=("${test[@]}" libopenmpi-dev openmpi-bin chromium)  # chromium: tests/browser
check=("${all[@]}" clang clang-format clang-tidy libclang-rt-14-dev)
# Tests and clang-tidy read the kernels of the other architecture.
case $(uname -m) in
  aarch64) all+=(g++-x86-64-linux-gnu) check+=(libstdc++-12-dev-amd64-cross) ;;
  x86_64) all+=(g++-aarch64-linux-gnu) check+=(libstdc++-12-dev-arm64-cross) ;;
esac

stop() { echo "fp4moe: $*" >&2; exit 1; }
declare -n wanted="$1"
if ! command -v dpkg-query >/dev/null; then
  # Another distribution: CMake looks for headers and says which are missing.
  for program in cmake ninja git "${CXX:-c++}"; do
    command -v "$program" >/dev/null ||
      stop "$program is missing and this is no Debian: install it, and what these packages of Debian's hold: ${wanted[*]}"
  done
  exit 0
fi
missing=()
for package in "${wanted[@]}"; do
  dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

by_hand="apt-get install ${missing[*]}"
command -v apt-get >/dev/null || stop "packages are missing and there is no apt-get: install ${missing[*]}, and run the command again"
[ "$(id -u)" -eq 0 ] || stop "packages are missing and only root may install them: run sudo $by_hand, then the command again"
echo "Installing ${missing[*]}" >&2
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
{ apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}"; } >"$log" 2>&1 || {
  why=$(grep -m 1 '^E: ' "$log" || tail -n 1 "$log")
  stop "apt-get failed (${why#E: }): check the network and the sources of apt, run $by_hand, then the command again"
}
