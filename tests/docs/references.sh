#!/usr/bin/env bash
# Comments name files that exist; and the tool finds a name that does not.
#   tests/docs/references.sh PYTHON
set -euo pipefail
python=$1
root=$(cd "$(dirname "$0")/../.." && pwd)
"$python" "$root/tools/check_references.py"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
printf '// See there.hpp, and gone.hpp.\n#include "missing.hpp"\n' >"$work/here.cpp"
printf '// docs/page.md is not\n' >"$work/there.hpp"
said=$("$python" "$root/tools/check_references.py" "$work") && { echo "a stale name was not found" >&2; exit 1; }
[ "$said" = "here.cpp:1: no file gone.hpp
there.hpp:1: no file docs/page.md" ] || { printf 'other faults were found:\n%s\n' "$said" >&2; exit 1; }
