#!/usr/bin/env bash
# A wheel where there is no compiler: what it needs of the machine, its import, a layer, the program.
#   tests/install/wheel.sh WHEEL_FOLDER PYTHON
set -euo pipefail
wheel=$(ls -t "$1"/fp4moe-*.whl | head -1) python=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-index --no-deps "$wheel"
# The one package it asks for, as it is.
numpy=$("$python" -c 'import numpy, pathlib; print(pathlib.Path(numpy.__file__).parent.parent)')
mkdir "$work/packages"
for part in "$numpy"/numpy "$numpy"/numpy.libs; do [ ! -e "$part" ] || ln -s "$part" "$work/packages/"; done

# What may be in it, and is: the package, its compiled part and its papers; no tests, no tools.
expected=$(sort <<'FILES'
fp4moe/__init__.py
fp4moe/__main__.py
fp4moe/_core.abi3.so
fp4moe/_core.pyi
fp4moe/cli.py
fp4moe/commands.py
fp4moe/converted.py
fp4moe/errors.py
fp4moe/formats.py
fp4moe/py.typed
fp4moe/quantize.py
fp4moe/result_parts.py
fp4moe/results.py
fp4moe/selection.py
fp4moe/torch/__init__.py
fp4moe/torch/moe.py
fp4moe/torch/ops.py
fp4moe/transformers/__init__.py
fp4moe/transformers/activation.py
fp4moe/transformers/claims.py
fp4moe/transformers/config.py
fp4moe/transformers/experts.py
fp4moe/transformers/linear.py
fp4moe/transformers/quantize.py
fp4moe/transformers/quantizer.py
fp4moe/transformers/registration.py
fp4moe/transformers/source.py
fp4moe/verbs.py
fp4moe/vllm/__init__.py
fp4moe/vllm/method.py
fp4moe/vllm/oracle/__init__.py
fp4moe/vllm/oracle/arrays.py
fp4moe/vllm/oracle/config.py
fp4moe/vllm/oracle/kernels.py
fp4moe/vllm/oracle/mxfp4.py
fp4moe/vllm/oracle/nvfp4.py
fp4moe/vllm/plugin/__init__.py
fp4moe/vllm/plugin/__main__.py
fp4moe/vllm/plugin/choice.py
fp4moe/vllm/plugin/configs.py
fp4moe/vllm/plugin/contract.py
fp4moe/vllm/plugin/experts.py
fp4moe/vllm/plugin/folder.py
fp4moe/vllm/plugin/linear.py
fp4moe/vllm/plugin/methods.py
fp4moe/vllm/plugin/mode.py
fp4moe/vllm/plugin/support.py
fp4moe/vllm/plugin/weights.py
DIST/METADATA
DIST/RECORD
DIST/WHEEL
DIST/entry_points.txt
DIST/licenses/LICENSE
FILES
)
held=$("$python" -m zipfile -l "$wheel" | awk 'NR > 1 {print $1}' | grep -v '/$' |
  sed 's|^fp4moe-[0-9.]*\.dist-info/|DIST/|; s|_core\.cpython-[^/]*\.so|_core.abi3.so|' | sort)
differ=$(diff <(echo "$expected") <(echo "$held") || true)
[ -z "$differ" ] || { printf 'the wheel holds other files (<: missing, >: not expected):\n%s\n' "$differ" >&2; exit 1; }

module=$(ls "$work"/venv/lib/python*/site-packages/fp4moe/_core.*.so)
for library in $(readelf -d "$module" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'); do
  case $library in
    libstdc++.so.6 | libm.so.6 | libgcc_s.so.1 | libc.so.6 | libpthread.so.0 | libdl.so.2 | ld-linux-*) ;;
    *) echo "the wheel needs $library, which a machine need not have" >&2; exit 1 ;;
  esac
done
shown=$(nm -D --defined-only "$module" | awk '$3 != "PyInit__core" {print $3}' | head -3)
[ -z "$shown" ] || { echo "the module shows more than its entry point: $shown" >&2; exit 1; }

# Nothing of this shell's world but the environment's own programs.
in_venv() { env -i HOME="$work" PATH="$work/venv/bin" PYTHONPATH="$work/packages" "$@"; }
if in_venv python -c 'import shutil, sys; sys.exit(not any(map(shutil.which, ["cc", "gcc", "g++", "clang", "nvcc"])))'; then
  echo "there is a compiler after all" >&2
  exit 1
fi
in_venv fp4moe synth --model gpt-oss-20b --experts 4 --hidden 64 --intermediate 64 -o "$work/layer" >/dev/null
in_venv python - "$work/layer" <<'PYTHON'
import importlib.resources
import sys

import numpy as np

import fp4moe

assert "torch" not in sys.modules
layer = fp4moe.Layer.open(sys.argv[1], 0)
out = layer.run(np.ones((2, 64), np.float32), np.zeros((2, 4), np.float32))
assert out.shape == (2, 64) and np.isfinite(out).all() and out.any()
assert np.array_equal(out[0], out[1])
for name in ("py.typed", "_core.pyi"):
    assert (importlib.resources.files("fp4moe") / name).is_file(), name
PYTHON
version=$(in_venv python -c 'import fp4moe; print(fp4moe.__version__)')
[ "$(in_venv fp4moe --version)" = "fp4moe $version" ]
case $wheel in
  */fp4moe-"$version"-cp3*-linux_"$(uname -m)".whl) ;;
  *) echo "the wheel's name does not say what it is for: $wheel" >&2; exit 1 ;;
esac
status=0
in_venv fp4moe nonsense 2>/dev/null || status=$?
[ "$status" = 2 ]
echo "$(basename "$wheel") works without compilers"
