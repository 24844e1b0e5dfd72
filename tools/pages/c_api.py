"""docs/c-api-reference.md: every declaration of fp4moe.h with its comment, and what docs/c-api.md says it does."""
from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

TITLE = re.compile(r"/\* -+ (.*?) -+ \*/")
DECLARATION = re.compile(r"(?:FP4MOE_API|typedef) (?:[^;{]|\{[^}]*\})*;(?: */\*.*?\*/)?", re.S)
NAME = re.compile(r"\b(fp4moe_\w+)\(|\(\*(fp4moe_\w+)\)|(fp4moe_\w+);\s*(?:/\*.*\*/)?$", re.S)

HEAD = """\
# C API reference

Every declaration of [`fp4moe/fp4moe.h`](../include/fp4moe/fp4moe.h), in its order. The guide is [c-api](c-api.md), the errors are in [errors](errors.md).
"""
FOOT = "\nWritten by tools/make_docs.py from include/fp4moe/fp4moe.h and docs/c-api.md.\n"


def comment_text(comment: str) -> str:
    lines = (re.sub(r"^\s*\*? ?", "", line) for line in comment.removeprefix("/*").removesuffix("*/").splitlines())
    return " ".join(" ".join(lines).split())


def rows_of_the_guide() -> dict[str, str]:
    guide = (ROOT / "docs/c-api.md").read_text()
    return dict(re.findall(r"^\| `(fp4moe_\w+)\([^`]*\)` \| (.*?) \|$", guide, re.M))


def declarations(text: str) -> list[tuple[str, str, str]]:
    """Name, comment above and declaration. A comment that begins a paragraph counts for all of it, another
    one for what follows it."""
    found = []
    for paragraph in re.split(r"\n\s*\n", text):
        of_all = ""
        position = 0
        for declared in DECLARATION.finditer(paragraph):
            between = re.findall(r"/\*.*?\*/", paragraph[position:declared.start()], re.S)
            above = comment_text(between[-1]) if between else of_all
            if position == 0:
                of_all = above
            position = declared.end()
            code = declared[0].strip()
            name = next(filter(None, NAME.search(code).groups()))
            found.append((name, above, code))
    return found


def page() -> str:
    header = (ROOT / "include/fp4moe/fp4moe.h").read_text()
    body = header[header.index('extern "C" {'):header.rindex("#ifdef __cplusplus")]
    does = rows_of_the_guide()
    parts = TITLE.split("/* ---- Statuses, types and handles ---- */" + body.split("#endif", 1)[1])
    out = [HEAD]
    for title, text in zip(parts[1::2], parts[2::2]):
        out.append(f"## {title}\n")
        for name, comment, code in declarations(text):
            said = does.get(name, "")
            sentence = f"{said[0].upper()}{said[1:]}." if said else ""
            words = "\n\n".join(filter(None, (sentence, comment)))
            out.append(f"### `{name}`\n\n" + (words + "\n\n" if words else "") + f"```c\n{code}\n```\n")
    return "\n".join(out) + FOOT
