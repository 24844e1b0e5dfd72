#!/usr/bin/env python3
"""The one-way include check: a room may include only the rooms in its row.

Changing ALLOWED is an architecture decision; ARCHITECTURE.md draws the same arrows.
"""
import re
import sys
from pathlib import Path

ALLOWED = {
    "base": "",
    "formats": "base",
    "platform": "base",
    "tensor": "base",
    "tensor/files": "base tensor",
    "layout": "base formats tensor",
    "kernels": "base formats platform layout",
    "moe": "base formats platform kernels tensor tensor/files weights oracle",
    "weights": "base formats platform tensor tensor/files kernels",
    "oracle": "base formats platform",
    "backends": "base formats platform tensor layout oracle",
    "convert": "base formats platform kernels tensor tensor/files layout weights oracle backends",
    "plan": "base formats platform tensor tensor/files moe weights oracle backends",
    "runtime": "base formats platform kernels tensor tensor/files layout moe weights oracle backends convert plan",
    "vllm": "base formats platform kernels tensor tensor/files layout moe weights oracle backends convert plan runtime",
    "capi": "include base formats platform kernels tensor tensor/files layout moe weights oracle backends convert plan runtime",
    "bench": "base formats platform kernels tensor tensor/files layout moe weights oracle backends convert plan runtime",
    "cli": "base formats platform kernels tensor tensor/files layout moe weights oracle backends convert bench plan runtime",
    "golden": "base formats platform tensor layout moe weights oracle backends convert runtime cli",
}
# The only file that knows golden data beside their own folder: the program's main.
PROGRAM = "cli/main.cpp"
ROOT = Path(__file__).resolve().parent.parent


def room(path: str) -> str:
    parts = path.split("/")[:-1]
    for depth in range(len(parts), 0, -1):
        name = "/".join(parts[:depth])
        if name in ALLOWED:
            return name
    return parts[0] if parts else "include"  # the C header


def violations(root: Path, golden: Path):
    """`root` holds the rooms; `golden` is one that stands elsewhere."""
    for source in (*sorted(root.rglob("*.[ch]pp")), *sorted(golden.rglob("*.[ch]pp"))):
        here = source.relative_to(golden.parent if source.is_relative_to(golden) else root).as_posix()
        mine = room(here)
        if mine not in ALLOWED:
            yield f"{here}: room '{mine}' has no row in tools/check_layers.py"
            continue
        allowed = {mine, *ALLOWED[mine].split()}
        for number, line in enumerate(source.read_text().splitlines(), 1):
            found = re.match(r'\s*#include "(?:fp4moe/|(?=golden/))(.+)"', line)
            if found and here != PROGRAM and room(found[1]) not in allowed:
                yield f"{here}:{number}: {mine} may not include {room(found[1])} ({found[1]})"


if __name__ == "__main__":
    tree = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "src/fp4moe"
    wrong = list(violations(tree, ROOT / "tests/golden"))
    print("\n".join(wrong) or f"{len(ALLOWED)} rooms, every include follows the arrows")
    sys.exit(1 if wrong else 0)
