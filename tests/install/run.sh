#!/usr/bin/env bash
# Installs into an empty prefix and uses the package as strangers do: CMake, pkg-config, the program;
# from C++ and from C.
#   tests/install/run.sh BUILD_FOLDER SOURCE_FOLDER CXX CC
set -euo pipefail
build=$1 source=$2 cxx=$3 cc=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tests=$source/tests/install

cmake --install "$build" --prefix "$work/prefix" >"$work/install.log"
configure() {  # PROJECT: built in $work/PROJECT
  cmake -S "$tests/$1" -B "$work/$1" -G Ninja -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_C_COMPILER="$cc" \
        -DCMAKE_PREFIX_PATH="$work/prefix" -Wno-dev >"$work/$1.log" 2>&1 || { cat "$work/$1.log"; return 1; }
  cmake --build "$work/$1" >"$work/$1.log" || { cat "$work/$1.log"; return 1; }
}
configure consumer
"$work/consumer/consumer" "$work/a.safetensors"

PKG_CONFIG_PATH=$(dirname "$(find "$work/prefix" -name fp4moe.pc)")
export PKG_CONFIG_PATH
flags=$(pkg-config --cflags --libs fp4moe)
# shellcheck disable=SC2086
"$cxx" -std=c++20 "$tests/consumer/main.cpp" -o "$work/by_pkg_config" $flags
"$work/by_pkg_config" "$work/b.safetensors"

"$work/prefix/bin/fp4moe" --version
[ -s "$work/prefix/share/man/man1/fp4moe.1" ] || { echo "the manual pages are not installed"; exit 1; }

"$work/prefix/bin/fp4moe" synth --model gpt-oss-20b --experts 2 --hidden 64 --intermediate 64 -o "$work/tiny" >"$work/synth.log"
configure c_consumer
"$work/c_consumer/c_consumer" "$work/tiny" >"$work/c.txt"
flags=$(pkg-config --cflags --libs fp4moe-c)
# shellcheck disable=SC2086
"$cc" -std=c99 -Wall -Wextra -Wpedantic -Werror "$tests/c_consumer/main.c" -o "$work/c_by_pkg_config" $flags
LD_LIBRARY_PATH=$(pkg-config --variable=libdir fp4moe-c) "$work/c_by_pkg_config" "$work/tiny" >"$work/c_again.txt"
cmp "$work/c.txt" "$work/c_again.txt"
sed -n 1p "$work/c.txt"
