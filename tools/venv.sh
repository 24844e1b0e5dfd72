#!/usr/bin/env bash
# Makes a Python environment with the given requirements, once per version of each list; whole or not at all.
# A list that comes later is added to what is there.
#   tools/venv.sh FOLDER REQUIREMENTS...
set -euo pipefail
folder=$1
shift
stop() { rm -rf "$folder"; echo "fp4moe: $*" >&2; exit 1; }

for requirements in "$@"; do
  stamp=$folder/$(basename "$requirements")
  cmp -s "$requirements" "$stamp" && continue
  command -v python3 >/dev/null || stop "python3 is missing: install it (Debian: apt-get install python3 python3-venv)"
  [ -e "$stamp" ] && rm -rf "$folder"  # of another version
  [ -x "$folder/bin/pip" ] || python3 -m venv "$folder" >/dev/null 2>&1 ||
    stop "python3 cannot make the environment $folder: install its venv (Debian: apt-get install python3-venv), and see that there is room on the disk"
  echo "Installing $requirements into $folder" >&2
  said=$("$folder/bin/pip" install --quiet --disable-pip-version-check -r "$requirements" 2>&1) || {
    why=$(grep '^ERROR: ' <<<"$said" | tail -n 1 || true)
    stop "pip cannot install $requirements (${why#ERROR: }): check the network, or name an index that can be reached (PIP_INDEX_URL), and run the command again"
  }
  cp "$requirements" "$stamp"
done
