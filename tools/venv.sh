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
"${pip[@]}" -r "$requirements"
cp "$requirements" "$stamp"
