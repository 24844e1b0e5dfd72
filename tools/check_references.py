#!/usr/bin/env python3
"""Finds what comments name and what does not exist: files (`x.hpp`, `dir/x.cpp`, `docs/x.md`), and error
ids after "Errors:" that have no row in docs/errors.toml.

    tools/check_references.py [ROOT]    exit 1 where there are any

A file's name without a folder may be that of any file of the tree; one with folders must end the path of one.
"""

import pathlib
import re
import subprocess
import sys
import tomllib

ENDINGS = "hpp|cpp|cuh|cu|md|py|sh|cmake|toml"
# Not preceded by what makes it part of a longer word, a pattern, an option's value or an address.
NAME = re.compile(rf"(?<![\w/.<>{{}}*$@%-])((?:[\w.-]+/)*[\w-]+\.(?:{ENDINGS}))(?![\w*(/-]|\.\w)")
COMMENT = {
    "//": re.compile(r"//(.*)"),
    "#": re.compile(r"(?:^|\s)#(?!\s*include\b|!)(.*)"),
}
# From here to the end of the comment stand ids: kernel.lora; lora.* for any of them; .pair after another of its area.
ERRORS = re.compile(r"\bErrors\b[^:;]*:\s")
ID = re.compile(r"(?<![\w/.`:>)-])([a-z][a-z0-9_]*)?\.([a-z][a-z0-9_]*(?:\.[a-z][a-z0-9_]*)*|\*)(?![\w(/`-]|\.\w|::)")
NO_ID = re.compile(rf"\.(?:{ENDINGS}|json)$")
NOT_SECTIONS = ("indirect", "codes", "not_ids")
MARK = {"cpp": "//", "hpp": "//", "h": "//", "cu": "//", "cuh": "//", "c": "//",
        "py": "#", "sh": "#", "cmake": "#", "txt": "#", "toml": "#"}
# Placeholders, files of other projects, files made when building.
ELSEWHERE = re.compile(r"^([a-z]|NAME)(_\w+)?\.\w+$|^(nlohmann|CLI|fmt|nvtx3)/|^llama\.cpp$|^version\.hpp$")


def tracked(root):
    listed = subprocess.run(["git", "-C", root, "ls-files", "-co", "--exclude-standard"],
                            text=True, capture_output=True, check=False)
    if listed.returncode == 0:
        return [file for file in listed.stdout.splitlines() if (pathlib.Path(root) / file).is_file()]
    return [str(file.relative_to(root)) for file in pathlib.Path(root).rglob("*")
            if file.is_file() and file.relative_to(root).parts[0] != "build"]


def stale(root):
    files = tracked(root)
    ends = set()
    for file in files:
        parts = file.split("/")
        ends.update("/".join(parts[at:]) for at in range(len(parts)))
    for file in sorted(files):
        mark = MARK.get(file.rsplit(".", 1)[-1])
        if mark is None:
            continue
        for number, line in enumerate((pathlib.Path(root) / file).read_text(errors="replace").splitlines(), 1):
            comment = COMMENT[mark].search(line)
            if not comment:
                continue
            for name in NAME.findall(comment.group(1)):
                if name not in ends and not ELSEWHERE.search(name):
                    yield f"{file}:{number}: no file {name}"


def comments(lines):
    """Comments of C++ with the number of their first line: whole lines, or what stands behind code and the whole lines below."""
    found = []
    for number, line in enumerate([*lines, ""], 1):
        is_whole = line.lstrip().startswith("//")
        if found and not is_whole:
            yield found[0][0], "\n".join(text for _, text in found)
            found = []
        if comment := COMMENT["//"].search(line):
            found.append((number, comment.group(1)))


def unknown_ids(text, ids):
    """The ids of a comment's errors that are none of these, with the line of the comment that has them."""
    area = ""
    if not (begin := ERRORS.search(text)):
        return
    for found in ID.finditer(text, begin.end()):
        area = found[1] or area
        name = f"{area}.{found[2]}"
        is_known = any(each.startswith(f"{area}.") for each in ids) if found[2] == "*" else name in ids
        if not is_known and not NO_ID.search(name):
            yield text.count("\n", 0, found.start()), name


def stale_ids(root):
    table = pathlib.Path(root) / "docs/errors.toml"
    if not table.is_file():
        return
    sections = tomllib.loads(table.read_text())
    ids = {name for key, section in sections.items() if key not in NOT_SECTIONS for name in section}
    for file in sorted(tracked(root)):
        if MARK.get(file.rsplit(".", 1)[-1]) != "//":
            continue
        for first, text in comments((pathlib.Path(root) / file).read_text(errors="replace").splitlines()):
            for after, name in unknown_ids(text, ids):
                yield f"{file}:{first + after}: no error {name}"


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else str(pathlib.Path(__file__).resolve().parent.parent)
    found = [*stale(root), *stale_ids(root)]
    print("\n".join(found) if found else "every file and error that a comment names is there")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
