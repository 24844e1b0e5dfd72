#!/usr/bin/env python3
"""The C API is one thing in three places: the header declares it, the shared library shows exactly
that and nothing else, and docs/c-api.md has a row for every function.

    tools/check_c_api.py LIBRARY [--nm NM]
"""
import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("--nm", default="nm")
    options = parser.parse_args()

    header = (ROOT / "include/fp4moe/fp4moe.h").read_text()
    declared = set(re.findall(r"FP4MOE_API [^(]*?\b(fp4moe_\w+)\(", header))
    listed = subprocess.run([options.nm, "-D", "--defined-only", options.library], check=True, text=True,
                            capture_output=True).stdout
    # A version's own name is an absolute symbol (A).
    shown = {words[2].split("@")[0] for words in map(str.split, listed.splitlines()) if words[1] != "A"}
    documented = set(re.findall(r"^\| `(fp4moe_\w+)\(", (ROOT / "docs/c-api.md").read_text(), re.M))

    wrong = []
    for place, found in (("the library shows", shown), ("docs/c-api.md has", documented)):
        wrong += [f"{place} no {name}" for name in sorted(declared - found)]
        wrong += [f"{place} {name}, which the header does not declare" for name in sorted(found - declared)]
    print("\n".join(wrong) or f"{len(declared)} functions, the same in the header, the library and the guide")
    return 1 if wrong or not declared else 0


if __name__ == "__main__":
    sys.exit(main())
