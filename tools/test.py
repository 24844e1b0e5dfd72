#!/usr/bin/env python3
"""Runs the tests of a ctest preset, without those that nothing has changed for since they passed.

    tools/test.py BUILD_FOLDER TEST_PRESET [--again]

The tests of a GoogleTest program are run again when the program, a library that it loads or the data
change that such tests read; all others when any source or any built file does. --again, or FP4MOE_TEST_AGAIN=1: all of them.
"""
from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

DATA = ("testdata/", "docs/", "README.md")  # what GoogleTest programs read beside what they make
BUILT = (".so", ".whl")


def digest(paths: list[Path]) -> str:
    total = hashlib.sha256()
    for path in sorted(paths):
        total.update(f"{path}\0".encode())
        with path.open("rb") as file:
            total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()


def sources() -> list[Path]:
    """git's files; where git has none (an archive, another user's clone), all outside build/."""
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                            capture_output=True, check=False)
    names = [Path(name) for name in listed.stdout.decode().split("\0") if name] if listed.returncode == 0 else \
        [path for path in Path().rglob("*") if path.parts[0] not in ("build", ".git")]
    return [path for path in names if path.is_file()]


def built(build: Path) -> list[Path]:
    """Programs, shared libraries and the wheel."""
    found = []
    for folder, folders, names in os.walk(build):
        folders[:] = [name for name in folders if name not in ("CMakeFiles", "Testing", "wheel-test")]
        paths = [Path(folder, name) for name in names]
        found += [p for p in paths if p.suffix in BUILT or (not p.suffix and os.access(p, os.X_OK))]
    return [path for path in found if path.is_file() and not path.is_symlink()]


def has_shared_modules(build: Path) -> bool:
    """Under sanitizers a module is a shared library, which its tests load."""
    return bool(re.search(r"^FP4MOE_SANITIZE:\w+=.", (build / "CMakeCache.txt").read_text(), re.M))


def groups(build: Path, preset: str) -> dict[str, tuple[str, list[str]]]:
    """By program, or "others": the key of what its tests depend on, and their names."""
    listed = subprocess.run(["ctest", "--preset", preset, "--show-only=json-v1"],
                            capture_output=True, check=True, text=True).stdout
    names: dict[str, list[str]] = {}
    for test in json.loads(listed)["tests"]:
        program = (test.get("command") or ["others"])[0]
        names.setdefault(program if program.endswith("_test") else "others", []).append(test["name"])
    tree = sources()
    data = digest([path for path in tree if str(path).startswith(DATA)])
    all_built = built(build)
    beside = digest([path for path in all_built if path.suffix == ".so" or path.name == "fp4moe"])
    loaded = digest([path for path in all_built if path.suffix == ".so" and (has_shared_modules(build) or "fake" in path.name)])
    whole = digest(tree + all_built)
    return {group: (whole if group == "others" else
                    digest([Path(group)]) + data + loaded + (beside if "end_to_end" in group else ""), tests)
            for group, tests in names.items()}


def pattern_of(unchanged: list[str], names: dict[str, list[str]]) -> str:
    """A regular expression of the tests of these groups and of no others: short, where a prefix is theirs alone."""
    runs = [name for group, tests in names.items() if group not in unchanged for name in tests]
    patterns = set()
    for group in unchanged:
        prefix = os.path.commonprefix(names[group])
        if group != "others" and not any(name.startswith(prefix) for name in runs):
            patterns.add(re.escape(prefix))
        else:
            patterns |= {re.escape(name) + "$" for name in names[group]}
    return "^(" + "|".join(sorted(patterns)) + ")"


def main() -> int:
    build, preset = Path(sys.argv[1]), sys.argv[2]
    stamp = build / f"passed.{preset}.json"
    again = "--again" in sys.argv or os.environ.get("FP4MOE_TEST_AGAIN")
    passed = json.loads(stamp.read_text()) if stamp.exists() and not again else {}
    found = groups(build, preset)
    unchanged = [group for group, (key, _) in found.items() if passed.get(group) == key]
    skipped = [name for group in unchanged for name in found[group][1]]
    total = sum(len(tests) for _, tests in found.values())
    if len(skipped) == total:
        print(f"test: all {total} tests of '{preset}' passed before, and nothing has changed since "
              f"(FP4MOE_TEST_AGAIN=1 runs them again)\n{total} passed, 0 failed")
        return 0
    command = ["ctest", "--preset", preset, "--progress"]
    if skipped:
        print(f"test: {len(skipped)} of {total} tests passed before with the same programs and data", flush=True)
        command += ["-E", pattern_of(unchanged, {group: tests for group, (_, tests) in found.items()})]
    failed_log = build / "Testing/Temporary/LastTestsFailed.log"
    failed_log.unlink(missing_ok=True)
    status = subprocess.run(command).returncode
    failed = {line.partition(":")[2].strip() for line in failed_log.read_text().splitlines()} if failed_log.exists() else set()
    if status == 0 or failed:
        stamp.write_text(json.dumps({group: key for group, (key, tests) in found.items() if not failed & set(tests)}))
    return status


if __name__ == "__main__":
    sys.exit(main())
