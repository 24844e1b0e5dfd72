#!/usr/bin/env python3
"""Installs the headers into an empty folder and compiles each of them alone there; fails where another
header is installed than cmake/public_headers.cmake lists, or one of these is not.

    tests/install/headers.py BUILD_FOLDER CXX [DEPS_FOLDER]
"""

import concurrent.futures
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import public_headers  # noqa: E402


def compile_alone(compiler, flags, header):
    """The first lines of what the compiler says against it; empty: nothing."""
    done = subprocess.run(
        [compiler, "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", *flags, "-x", "c++", "-"],
        input=f"#include <fp4moe/{header}>\n", text=True, capture_output=True, check=False)
    return "" if done.returncode == 0 else "\n  ".join(done.stderr.splitlines()[:6])


def main():
    build, compiler, *deps = sys.argv[1:]
    with tempfile.TemporaryDirectory() as prefix:
        subprocess.run(["cmake", "--install", build, "--prefix", prefix, "--component", "headers"],
                       check=True, stdout=subprocess.DEVNULL)
        root = pathlib.Path(prefix, "include/fp4moe")
        installed = {str(file.relative_to(root)) for file in root.rglob("*") if file.is_file()}
        listed = {"fp4moe.h", *public_headers.listed("FP4MOE_PUBLIC_HEADERS"),
                  *public_headers.listed("FP4MOE_INCLUDED_HEADERS")}
        wrong = [f"{header} is installed and not listed" for header in sorted(installed - listed)]
        wrong += [f"{header} is listed and not installed" for header in sorted(listed - installed)]
        flags = [f"-I{root.parent}", *(f"-isystem{folder}/include" for folder in deps)]
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            said = pool.map(lambda header: compile_alone(compiler, flags, header), sorted(installed))
            wrong += [f"{header} does not compile alone:\n  {text}" for header, text in zip(sorted(installed), said) if text]
    for line in wrong:
        print(line, file=sys.stderr)
    if not wrong:
        print(f"{len(installed)} headers installed, each compiles alone")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
