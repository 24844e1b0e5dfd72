"""The figure of ARCHITECTURE.md's two walks, drawn from its tables: a block scale, and a token."""
from __future__ import annotations

import re
from pathlib import Path

from drawing import Drawing

PAGE = Path(__file__).resolve().parent.parent / "ARCHITECTURE.md"
HEADING = re.compile(r"^\*\*(.+?)\*\* ?(.*?):$", re.MULTILINE)
ROW = re.compile(r"^\| (\d+) \| `([^`]+)` \| `([^`]+)` \|", re.MULTILINE)
WIDTH, BOX, GAP, HEIGHT = 960, 108, 10.5, 74


def walks() -> list[tuple[str, list[tuple[str, str]]]]:
    """(title, stations) of each; a station is its folder and its type."""
    _, _, text = PAGE.read_text().partition("## Two walks")
    text = text.split("\n## ")[0]
    heads = list(HEADING.finditer(text))
    ends = [head.start() for head in heads[1:]] + [len(text)]
    return [(f"{head[1]} {head[2]}", [(path.rpartition("/")[0], kind.split("::")[-1]) for _, path, kind in ROW.findall(text[head.end():end])])
            for head, end in zip(heads, ends, strict=True)]


def wrapped(folder: str) -> list[str]:
    *above, last = folder.split("/")
    return ["/".join(above) + "/", last] if above else [last]


def named(kind: str) -> list[str]:
    """The name of a type, in two lines where it is long."""
    if len(kind) <= 14:
        return [kind]
    last = max(i for i, letter in enumerate(kind) if letter.isupper())
    return [kind[:last], kind[last:]]


def svg() -> str:
    drawing = Drawing(WIDTH, 226, "Two walks through the modules")
    for i, (title, stations) in enumerate(walks()):
        top = 10 + i * 110
        drawing.text(10, top + 12, title, "title")
        for j, (folder, kind) in enumerate(stations):
            x = 10 + j * (BOX + GAP)
            shade = "yes" if j == len(stations) - 1 else "gray" if folder.startswith(("tensor", "python")) else "blue" if folder.startswith(("moe", "kernels")) else "violet"
            drawing.box(x, top + 20, BOX, HEIGHT, shade, *named(kind), *wrapped(folder))
            if j:
                drawing.line((x - GAP, top + 20 + HEIGHT / 2), (x - 1, top + 20 + HEIGHT / 2), arrow=True)
    return str(drawing)
