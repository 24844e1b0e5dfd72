#!/usr/bin/env bash
# Makes a Python environment with the given requirements, once per version of the list.
#   tools/venv.sh FOLDER REQUIREMENTS
set -euo pipefail
folder=$1 requirements=$2
stamp=$folder/requirements.txt
cmp -s "$requirements" "$stamp" && exit 0
rm -rf "$folder"
python3 -m venv "$folder"
pip=("$folder/bin/pip" install --quiet --disable-pip-version-check)
# PyPI's torch for x86 brings gigabytes of CUDA; its makers keep one without. Where they cannot be
# reached, PyPI's has to do.
torch=$(grep '^torch==' "$requirements" || true)
if [ -n "$torch" ] && [ "$(uname -m)" = x86_64 ]; then
  "${pip[@]}" --no-deps --retries 1 --timeout 20 --index-url https://download.pytorch.org/whl/cpu "$torch" || true
fi
"${pip[@]}" -r "$requirements"
cp "$requirements" "$stamp"
