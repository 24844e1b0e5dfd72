#!/usr/bin/env python3
"""The one-way include check: a folder may include only the folders in its row.

Changing ALLOWED is an architecture decision; ARCHITECTURE.md draws the same arrows.
"""
import re
import sys
from pathlib import Path

BELOW = "base formats platform tensor tensor/files"
CHECKPOINT = "checkpoint checkpoint/write checkpoint/edit checkpoint/lint checkpoint/lora checkpoint/synth"
CONVERT = "convert convert/pack convert/folder"
MOE = "moe moe/routing moe/exchange moe/reference moe/cpu moe/cuda"
ORACLE = "oracle oracle/vllm oracle/explain backends"
LIBRARY = f"{BELOW} kernels layout {CHECKPOINT} {ORACLE} {CONVERT} {MOE} plan"
ALLOWED = {
    "base": "",
    "formats": "base",
    "platform": "base",
    "tensor": "base",
    "tensor/files": "base tensor",
    "layout": "base formats tensor",
    "kernels": "base formats platform layout",
    "checkpoint": f"{BELOW} kernels",
    "checkpoint/write": f"{BELOW} kernels checkpoint",
    "checkpoint/lint": f"{BELOW} kernels checkpoint",
    "checkpoint/lora": f"{BELOW} kernels checkpoint",
    "checkpoint/edit": f"{BELOW} kernels checkpoint checkpoint/write checkpoint/lint checkpoint/lora",
    "checkpoint/synth": f"{BELOW} kernels checkpoint checkpoint/write checkpoint/lora",
    "oracle": "base formats platform",
    "oracle/vllm": "base formats platform oracle",
    "oracle/explain": "base formats platform oracle oracle/vllm",
    "backends": "base formats platform tensor layout oracle",
    "convert": f"{BELOW} kernels layout checkpoint oracle backends",
    "convert/pack": f"{BELOW} kernels layout checkpoint oracle backends convert",
    "convert/folder": f"{BELOW} kernels layout checkpoint checkpoint/write oracle backends convert convert/pack",
    "moe/routing": "base formats tensor kernels",
    "moe": f"{BELOW} kernels checkpoint checkpoint/lora oracle moe/routing",
    "moe/exchange": f"{BELOW} checkpoint oracle moe",
    "moe/reference": f"{BELOW} checkpoint oracle moe",
    "moe/cpu": f"{BELOW} kernels checkpoint oracle moe moe/reference",
    "moe/cuda": f"{BELOW} kernels checkpoint oracle moe moe/routing moe/reference",
    "plan": f"{BELOW} checkpoint oracle oracle/vllm oracle/explain backends moe moe/exchange",
    "runtime": LIBRARY,
    "vllm": f"{LIBRARY} runtime",
    "capi": f"include {LIBRARY} runtime",
    "bench": f"{LIBRARY} runtime",
    "report": f"{BELOW} layout checkpoint oracle backends {CONVERT} bench",
    "cli": f"{LIBRARY} runtime bench report",
    "golden": f"{LIBRARY} runtime cli",
}
FOR_TESTS = ("checkpoint/synth", "oracle/vllm", "oracle/explain")  # what any test may include
# The only file that knows golden data beside their own folder: the program's main.
PROGRAM = "cli/main.cpp"
ROOT = Path(__file__).resolve().parent.parent
# Modules that name no backend: one entirely, of the other what is compiled into the library.
SILENT = "layout/"
NEUTRAL = "convert/"
# Where one header declares what many sources hold: a table's rows, the commands, the C functions, a
# kernel for each instruction set, an exchange for each kind.
DECLARED_TOGETHER = ("backends/", "cli/", "capi/", "kernels/cpu/", "moe/exchange/")
NOT_FAMILIES = {"none", "emulation"}  # words of the language


def folder(path: str) -> str:
    parts = path.split("/")[:-1]
    for depth in range(len(parts), 0, -1):
        name = "/".join(parts[:depth])
        if name in ALLOWED:
            return name
    return parts[0] if parts else "include"  # the C header


def violations(root: Path, golden: Path):
    """`root` holds the folders; `golden` is one that stands elsewhere. Tests may read their whole module."""
    for source in (*sorted(root.rglob("*.[ch]pp")), *sorted(golden.rglob("*.[ch]pp"))):
        here = source.relative_to(golden.parent if source.is_relative_to(golden) else root).as_posix()
        mine = folder(here)
        if mine not in ALLOWED:
            yield f"{here}: folder '{mine}' has no row in tools/check_layers.py"
            continue
        allowed = {mine, *ALLOWED[mine].split()}
        module = mine.split("/")[0]
        for number, line in enumerate(source.read_text().splitlines(), 1):
            found = re.match(r'\s*#include "(?:fp4moe/|(?=golden/))(.+)"', line)
            if not found or here == PROGRAM or folder(found[1]) in allowed:
                continue
            if here.endswith("_test.cpp") and (found[1].startswith(f"{module}/") or folder(found[1]) in FOR_TESTS):
                continue
            yield f"{here}:{number}: {mine} may not include {folder(found[1])} ({found[1]})"


def named_families(root: Path):
    """A backend is its folder: what is shared by all names none of them."""
    names = {each.parent.name for each in (root / "backends").glob("*/backend.cpp")} - NOT_FAMILIES
    pattern = re.compile("|".join((*sorted(names), "native_sm", "trtllm", "cutlass")))
    for source in sorted(root.rglob("*.[ch]pp")):
        here = source.relative_to(root).as_posix()
        is_silent = here.startswith(SILENT)
        if not is_silent and (not here.startswith(NEUTRAL) or here.endswith("_test.cpp")):
            continue
        for number, line in enumerate(source.read_text().splitlines(), 1):
            found = pattern.search((line if is_silent else line.split("//")[0]).lower())
            if found:
                yield f"{here}:{number}: names '{found[0]}': it belongs into backends/"


def names_without_header(root: Path):
    """A source has the name of the header that declares what it holds: layer.cpp, layer_apply.cpp."""
    for source in sorted(root.rglob("*.cpp")):
        here = source.relative_to(root).as_posix()
        name = source.stem
        if here.startswith(DECLARED_TOGETHER) or name.startswith("no_") or name.endswith("_test") or here == PROGRAM:
            continue
        parts = name.split("_")
        if not any((source.parent / f"{'_'.join(parts[:n])}.hpp").exists() for n in range(1, len(parts) + 1)):
            yield f"{here}: no header of this name or of its beginning"


if __name__ == "__main__":
    tree = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "src/fp4moe"
    wrong = [*violations(tree, ROOT / "tests/golden"), *named_families(tree), *names_without_header(tree)]
    print("\n".join(wrong) or f"{len(ALLOWED)} folders, every include follows the arrows, every source has its header's name")
    sys.exit(1 if wrong else 0)
