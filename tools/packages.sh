#!/usr/bin/env bash
# Installs the Debian packages a target needs, quietly when nothing is missing.
#   tools/packages.sh build|cuda|python|test|check
set -euo pipefail

build=(g++ cmake ninja-build git nlohmann-json3-dev libcli11-dev libfmt-dev libxxhash-dev libgtest-dev)
cuda=("${build[@]}" python3 python3-venv)
python=("${build[@]}" python3-dev python3-venv)
test=("${python[@]}" pkg-config libopenmpi-dev openmpi-bin)
check=("${test[@]}" clang clang-format clang-tidy libclang-rt-14-dev)
# clang-tidy reads the kernels of the other architecture with its headers.
case $(uname -m) in
  aarch64) check+=(libstdc++-12-dev-amd64-cross) ;;
  x86_64) check+=(libstdc++-12-dev-arm64-cross) ;;
esac

declare -n wanted="$1"
missing=()
for package in "${wanted[@]}"; do
  dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
  echo "These packages are needed and missing: ${missing[*]}" >&2
  echo "Install them (as root: apt-get install ${missing[*]}) and run the command again." >&2
  exit 1
fi
echo "Installing ${missing[*]}" >&2
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
{ apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}"; } >"$log" 2>&1 || {
  cat "$log" >&2
  echo "Installing failed; the missing packages are: ${missing[*]}" >&2
  exit 1
}
