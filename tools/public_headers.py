#!/usr/bin/env python3
"""The public C++ headers, cmake/public_headers.cmake, held against the sources and docs/cpp-api.md.

    tools/public_headers.py            checks: exit 1 where they differ
    tools/public_headers.py --write    writes FP4MOE_INCLUDED_HEADERS anew, from the public ones
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIST = ROOT / "cmake/public_headers.cmake"
PAGE = ROOT / "docs/cpp-api.md"
# No code outside includes these, nor what includes them.
PRIVATE = re.compile(r"^(bench|capi|cli|golden)/|^kernels/cuda/sm\d+/|(^|/)test_|_test\.hpp$")


def listed(name, text=None):
    text = LIST.read_text() if text is None else text
    found = re.search(rf"set\({name}\s([^)]*)\)", text)
    return found.group(1).split() if found else []


def includes(header):
    """What a header of the sources includes: ours, without fp4moe/, and others."""
    file = ROOT / "src/fp4moe" / header
    text = file.read_text() if file.exists() else (file.parent / (file.name + ".in")).read_text()
    every = re.findall(r'^\s*#\s*include\s*[<"]([^">]+)[">]', text, re.M)
    return {e[7:] for e in every if e.startswith("fp4moe/")}, {e for e in every if not e.startswith("fp4moe/")}


def closure(headers):
    seen, todo = set(), list(headers)
    while todo:
        header = todo.pop()
        if header not in seen:
            seen.add(header)
            todo += includes(header)[0]
    return seen


def problems():
    public, included = listed("FP4MOE_PUBLIC_HEADERS"), listed("FP4MOE_INCLUDED_HEADERS")
    for header in public:
        file = ROOT / "src/fp4moe" / header
        if not file.exists() and not file.with_name(file.name + ".in").exists():
            yield f"{LIST.name} names {header}, which does not exist"
            return
    wanted = closure(public)
    page = re.findall(r"^\| `([\w/]+\.hpp)` \|", PAGE.read_text(), re.M)
    rows = [
        ("is listed twice", {h for h in public + included if (public + included).count(h) > 1}),
        ("is public and has no row in docs/cpp-api.md", set(public) - set(page)),
        ("has a row in docs/cpp-api.md and is not public", set(page) - set(public)),
        ("is included by a public header and not listed", wanted - set(public) - set(included)),
        ("is listed and no public header includes it", set(included) - wanted),
        ("is included by a public header and private", {h for h in wanted if PRIVATE.search(h)}),
        ("includes GoogleTest", {h for h in wanted if any("gtest" in o or "gmock" in o for o in includes(h)[1])}),
    ]
    for why, headers in rows:
        for header in sorted(headers):
            yield f"{header} {why}"


def write():
    text = LIST.read_text()
    public = listed("FP4MOE_PUBLIC_HEADERS", text)
    rest = "".join(f"\n  {h}" for h in sorted(closure(public) - set(public)))
    LIST.write_text(re.sub(r"(set\(FP4MOE_INCLUDED_HEADERS)[^)]*\)", lambda m: m.group(1) + rest + ")", text))


def main():
    if sys.argv[1:] == ["--write"]:
        write()
    found = list(problems())
    for problem in found:
        print(problem, file=sys.stderr)
    if not found:
        print(f"{len(listed('FP4MOE_PUBLIC_HEADERS'))} public headers and {len(listed('FP4MOE_INCLUDED_HEADERS'))} that they include")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
