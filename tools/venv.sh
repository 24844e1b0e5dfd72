#!/usr/bin/env bash
# Makes a Python environment with the given requirements, once per version of each list; whole or not at all.
# A list that comes later is added to what is there; where that fails, what was there stays.
#   tools/venv.sh FOLDER REQUIREMENTS...
set -euo pipefail
folder=$1
shift
had=$([ -x "$folder/bin/pip" ] && echo yes || true)
stop() { [ -n "$had" ] || rm -rf "$folder"; echo "fp4moe: $*" >&2; exit 1; }

for requirements in "$@"; do
  stamp=$folder/$(basename "$requirements")
  cmp -s "$requirements" "$stamp" && continue
  command -v python3 >/dev/null || stop "python3 is missing: install it (Debian: apt-get install python3 python3-venv)"
  oldest=$(sed -n 's/^# Needs Python \([0-9.]*[0-9]\)\.$/\1/p' "$requirements")
  [ -z "$oldest" ] || python3 -c "import sys; sys.exit(sys.version_info < tuple(map(int, '$oldest'.split('.'))))" ||
    stop "$(python3 --version) is too old: $requirements needs Python $oldest or newer as python3"
  [ -x "$folder/bin/pip" ] || python3 -m venv "$folder" >/dev/null 2>&1 ||
    stop "python3 cannot make the environment $folder: install its venv (Debian: apt-get install python3-venv), and see that there is room on the disk"
  echo "Installing $requirements into $folder" >&2
  said=$("$folder/bin/pip" install --quiet --disable-pip-version-check -r "$requirements" 2>&1) || {
    why=$(grep '^ERROR: ' <<<"$said" | tail -n 1 || true)
    case $said in
      *"No space left"*) remedy="free some room on the disk of $folder" ;;
      *) remedy="check the network, or name an index that can be reached (PIP_INDEX_URL)" ;;
    esac
    stop "pip cannot install $requirements (${why#ERROR: }): $remedy, and run the command again"
  }
  cp "$requirements" "$stamp"
done
