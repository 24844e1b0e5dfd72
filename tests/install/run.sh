#!/usr/bin/env bash
# Installs into an empty prefix and uses the package as strangers do: CMake, pkg-config, the program.
#   tests/install/run.sh BUILD_FOLDER SOURCE_FOLDER CXX
set -euo pipefail
build=$1 source=$2 cxx=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --prefix "$work/prefix" >"$work/install.log"
cmake -S "$source/tests/install/consumer" -B "$work/consumer" -G Ninja -DCMAKE_CXX_COMPILER="$cxx" \
      -DCMAKE_PREFIX_PATH="$work/prefix" >"$work/configure.log"
cmake --build "$work/consumer" >"$work/build.log"
"$work/consumer/consumer" "$work/a.safetensors"

pc=$(dirname "$(find "$work/prefix" -name fp4moe.pc)")
flags=$(PKG_CONFIG_PATH=$pc pkg-config --cflags --libs fp4moe)
# shellcheck disable=SC2086
"$cxx" -std=c++20 "$source/tests/install/consumer/main.cpp" -o "$work/by_pkg_config" $flags
"$work/by_pkg_config" "$work/b.safetensors"

"$work/prefix/bin/fp4moe" --version
