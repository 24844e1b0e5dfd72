#!/usr/bin/env python3
"""Finds files that comments name and that do not exist: `x.hpp`, `dir/x.cpp`, `docs/x.md`.

    tools/check_references.py [ROOT]    exit 1 where there are any

A name without a folder may be that of any file of the tree; one with folders must end the path of one.
"""

import pathlib
import re
import subprocess
import sys

ENDINGS = "hpp|cpp|cuh|cu|md|py|sh|cmake|toml"
# Not preceded by what makes it part of a longer word, a pattern, an option's value or an address.
NAME = re.compile(rf"(?<![\w/.<>{{}}*$@%-])((?:[\w.-]+/)*[\w-]+\.(?:{ENDINGS}))(?![\w*(/-]|\.\w)")
COMMENT = {
    "//": re.compile(r"//(.*)"),
    "#": re.compile(r"(?:^|\s)#(?!\s*include\b|!)(.*)"),
}
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


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else str(pathlib.Path(__file__).resolve().parent.parent)
    found = list(stale(root))
    print("\n".join(found) if found else "every file that a comment names is there")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
