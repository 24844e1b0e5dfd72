#!/usr/bin/env bash
# Prints the path of an nvcc: this machine's, or else one installed from PyPI into FOLDER.
#   tools/nvcc.sh FOLDER
set -euo pipefail
folder=$1
oldest=12.8

is_new_enough() {
  local release
  release=$("$1" --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\).*/\1/p')
  [ -n "$release" ] && [ "$(printf '%s\n' "$oldest" "$release" | sort -V | head -1)" = "$oldest" ]
}

for nvcc in "${CUDA_HOME:-}/bin/nvcc" "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc; do
  if [ -x "$nvcc" ] && is_new_enough "$nvcc"; then
    echo "$nvcc"
    exit 0
  fi
done
tools/venv.sh "$folder" tools/nvcc-requirements.txt >&2
ls "$PWD/$folder"/lib/python3*/site-packages/nvidia/cu13/bin/nvcc
