#!/usr/bin/env bash
# Comments name files and errors that exist; and the tool finds names that do not.
#   tests/docs/references.sh PYTHON
set -euo pipefail
python=$1
root=$(cd "$(dirname "$0")/../.." && pwd)
"$python" "$root/tools/check_references.py"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
printf '// See there.hpp, and gone.hpp.\n#include "missing.hpp"\n' >"$work/here.cpp"
printf '// docs/page.md is not\n' >"$work/there.hpp"
mkdir "$work/docs"
printf '[run]\ntitle = "Runs"\n"run.input" = ["a.", "b."]\n' >"$work/docs/errors.toml"
printf 'int run;  // Errors: run.*, run.input, .tokens\n// (none.lib.1), rum.*,\n// those of `run.it` and run.call().\n// run.free\n\n// run.loose\n' >"$work/run.hpp"
said=$("$python" "$root/tools/check_references.py" "$work") && { echo "a stale name was not found" >&2; exit 1; }
[ "$said" = "here.cpp:1: no file gone.hpp
there.hpp:1: no file docs/page.md
run.hpp:1: no error run.tokens
run.hpp:2: no error rum.*
run.hpp:4: no error run.free" ] || { printf 'other faults were found:\n%s\n' "$said" >&2; exit 1; }
