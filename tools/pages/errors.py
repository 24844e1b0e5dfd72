"""docs/errors.md: every error id of the sources beside its meaning in docs/errors.toml."""
from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
TABLE = ROOT / "docs/errors.toml"
NOT_SECTIONS = ("indirect", "codes", "not_ids")

CODES = {"failed": 1, "usage": 2, "invalid_input": 3, "no_backend": 4, "mismatch": 5, "exhausted": 6,
         "unavailable": 7, "interrupted": 130}
CLASSES = {1: "FailedError", 2: "UsageError", 3: "InvalidInputError", 4: "UnsupportedError",
           5: "MismatchError", 6: "ResourceExhaustedError", 7: "UnavailableError", 130: "KeyboardInterrupt"}
MEANINGS = {1: ("`OSError`", "the work could not be done: input/output error, bug"),
            2: ("`ValueError`", "the request itself is wrong"),
            3: ("`ValueError`", "a file or tensor breaks its format"),
            4: ("`RuntimeError`", "no backend supports the configuration; `.record` says why"),
            5: ("`ValueError`", "verification or golden data disagree"),
            6: ("`MemoryError`", "out of memory or disk"),
            7: ("`RuntimeError`", "this machine or build lacks what is needed"),
            130: ("", "interrupted")}

WORD = re.compile(r'"([a-z][a-z0-9_]*(?:\.[a-z][a-z0-9_]*)+|internal|interrupted)"')
# What stands before an id that is an argument of the makers of base/result.hpp, and its codes.
MAKERS = ((re.compile(r"\busage\(\s*$"), (2,)), (re.compile(r"\binvalid\(\s*$"), (3,)),
          (re.compile(r"\b(?:system_error|file_error)\(\s*$"), (1, 6)))
BY_CODE = re.compile(r"\berror\(\s*ErrorCode::(\w+),\s*$")
RAISED = re.compile(r'\b([A-Z]\w+Error)\((?:(?!Error\()[^#]){0,400}?\bid="([a-z_.]+)"')
MADE = re.compile(r'errors\.make\(\s*\w+,\s*"([a-z_.]+)"')
# Findings of lint are no errors; docs/lint.md has them.
FINDINGS = re.compile(r"checkpoint/lint/lint\w*\.cpp$")


def sources() -> list[Path]:
    files = [file for folder in ("src", "python/src", "tests/golden") for file in (ROOT / folder).rglob("*.[ch]pp")]
    return sorted(f for f in files if not f.stem.endswith("_test") and not f.name.startswith("test_"))


def made_with(before: str) -> tuple[int, ...]:
    """The codes of the maker that `before` ends with; none where an id is not made directly."""
    if found := BY_CODE.search(before):
        return (CODES[found[1]],)
    return next((codes for maker, codes in MAKERS if maker.search(before)), ())


def scan(table: dict, areas: set[str]) -> tuple[dict[str, set[int]], set[str]]:
    """The ids of the sources with their codes, and those among them that are made directly."""
    found: dict[str, set[int]] = defaultdict(set)
    direct: set[str] = set()
    for path in sources():
        if FINDINGS.search(str(path)):
            continue
        text = re.sub(r"//[^\n]*|^#include[^\n]*", "", path.read_text(), flags=re.M)
        place = str(path.relative_to(ROOT)).removeprefix("src/fp4moe/")
        for word in WORD.finditer(text):
            name = word[1]
            codes = made_with(text[max(0, word.start() - 120):word.start()])
            if codes:
                direct.add(name)
            elif name.split(".")[0] not in areas or name in table["not_ids"]["words"]:
                continue
            found[name].update(codes or table["indirect"].get(place, ()))
    scan_python(found, direct)
    for name, codes in table["codes"].items():
        found[name].update(codes)
    return found, direct


def scan_python(found: dict[str, set[int]], direct: set[str]) -> None:
    """The same of the Python package, whose errors are made by their class or by errors.make()."""
    codes = {name: code for code, name in CLASSES.items()}
    for path in sorted((ROOT / "python/fp4moe").rglob("*.py")):
        text = path.read_text()
        for result in RAISED.finditer(text):
            direct.add(result[2])
            found[result[2]].add(codes[result[1]])
        for result in MADE.finditer(text):
            direct.add(result[1])
            found[result[1]].update(())


def row(name: str, meaning: str, remedy: str, codes: set[int]) -> str:
    numbers = ", ".join(map(str, sorted(codes)))
    classes = ", ".join(f"`{CLASSES[code]}`" for code in sorted(codes))
    if len(codes) > 2:
        numbers, classes = "any", "that of the code"
    return f'| <a id="{name}"></a>`{name}` | {numbers} | {classes} | {meaning} | {remedy} |'


HEAD = """\
# Errors

Every failure has a stable id and a sentence; where they apply also the file, the tensor, what was expected, what was found and what to do.

| where | what you get |
|---|---|
| command line | three lines: what, found, do; with `--json` one object. `fp4moe error ID` prints the row of this page |
| Python | `fp4moe.Error` with `.id`, `.code`, `.message`, `.path`, `.tensor`, `.expected`, `.found`, `.remedy` |
| C | a code; `fp4moe_last_error()`, `fp4moe_last_error_id()` |
| a link | `errors.md#file.exists`: the id is the anchor |

```python
try:
    layer = fp4moe.Layer.open("gpt-oss-20b", 99)
except fp4moe.UsageError as why:
    print(why.id, why.expected, why.found)  # layer.number below 24 99
```

| code | Python | also a | meaning |
|---|---|---|---|
"""

FOOT = """
Written by tools/make_docs.py from the sources and docs/errors.toml.
"""


def problems(table: dict, found: dict[str, set[int]], direct: set[str], rows: dict[str, list[str]]) -> list[str]:
    wrong = [f"{name} has no row in docs/errors.toml" for name in sorted((set(found) | direct) - set(rows))]
    wrong += [f"docs/errors.toml has a row for {name}, which no source has" for name in sorted(set(rows) - set(found))]
    wrong += [f"{name}: no source line shows its code; add it to [indirect] or [codes]"
              for name in sorted(found) if name in rows and not found[name]]
    for name, words in rows.items():
        if len(words) != 2 or not all(part.endswith((".", ")")) and len(part) > 3 for part in words):
            wrong.append(f"{name}: a row is [meaning, what to do], two sentences")
    known = {str(path.relative_to(ROOT)).removeprefix("src/fp4moe/") for path in sources()}
    return wrong + [f"[indirect] names {place}, which is no source" for place in table["indirect"] if place not in known]


def page() -> str:
    table = tomllib.loads(TABLE.read_text())
    sections = {key: value for key, value in table.items() if key not in NOT_SECTIONS}
    rows = {name: words for section in sections.values() for name, words in section.items()
            if name not in ("title", "about")}
    found, direct = scan(table, {name.split(".")[0] for name in rows})
    if wrong := problems(table, found, direct, rows):
        raise SystemExit("\n".join(wrong))
    out = [HEAD + "\n".join(f"| {code} | `{CLASSES[code]}` | {also} | {meaning} |"
                            for code, (also, meaning) in MEANINGS.items())]
    out.append("\nSections: " + ", ".join(f"[{s['title']}](#{anchor(s['title'])})" for s in sections.values()) + ".")
    for section in sections.values():
        out.append(f"\n## {section['title']}\n\n{section['about']}\n\n| id | code | Python | means | do |\n|---|---|---|---|---|")
        out += [row(name, *section[name], found[name]) for name in sorted(section) if name not in ("title", "about")]
    return "\n".join(out) + "\n" + FOOT


def anchor(title: str) -> str:
    return re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")
