#!/usr/bin/env bash
# Installs zig from PyPI into FOLDER where it is not yet, and prints its path.
#   tools/zig.sh FOLDER
set -euo pipefail
tools/venv.sh "$1" tools/zig-requirements.txt >&2
echo "$PWD"/"$1"/lib/python3*/site-packages/ziglang/zig
