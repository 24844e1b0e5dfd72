#!/usr/bin/env python3
"""Writes the pages that are made from sources, and with --check only says whether they stand there.

    tools/make_docs.py [--check] [--program FP4MOE] [--stub _core.pyi] PAGE...

    commands          docs/commands.md: every command and what it takes, asked of the program
    c-api-reference   docs/c-api-reference.md: every declaration of the header
    environment       docs/environment.md: every environment variable, asked of the program
    errors            docs/errors.md: every error id, from the sources and docs/errors.toml
    machine           docs/machine.md: what described devices get, asked of the program
    verbs             python/fp4moe/verbs.py: the verbs with every keyword, asked of the program
    python            docs/python.md: the public names of the package, which must be installed
    vllm-messages     docs/vllm-messages.md: vLLM's sentences and what to do, asked of the program
    vllm-versions     docs/vllm-versions.md: releases of vLLM and their policies, asked of the program
"""
from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(Path(__file__).resolve().parent))


def errors(_: argparse.Namespace) -> str:
    from pages import errors as source

    return source.page()


def machine(options: argparse.Namespace) -> str:
    from pages import machine as source

    return source.page(options.program)


def commands(options: argparse.Namespace) -> str:
    from pages import commands as source

    return source.page(options.program)


def environment(options: argparse.Namespace) -> str:
    from pages import environment as source

    return source.page(options.program)


def c_api(_: argparse.Namespace) -> str:
    from pages import c_api as source

    return source.page()


def python(options: argparse.Namespace) -> str:
    from pages import python_api as source

    return source.page(options.stub)


def verbs(options: argparse.Namespace) -> str:
    from pages import verbs as source

    return source.page(options.program)


def vllm_messages(options: argparse.Namespace) -> str:
    import subprocess

    return subprocess.run([options.program, "explain", "--messages"], check=True, capture_output=True, text=True).stdout


def vllm_versions(options: argparse.Namespace) -> str:
    import subprocess

    return subprocess.run([options.program, "vllm-versions", "--markdown"], check=True, capture_output=True, text=True).stdout


PAGES = {"c-api-reference": c_api, "commands": commands, "environment": environment, "errors": errors, "machine": machine, "python": python,
         "verbs": verbs, "vllm-messages": vllm_messages, "vllm-versions": vllm_versions}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--program", default="fp4moe")
    parser.add_argument("--stub", type=Path, help="_core.pyi, if not the one beside the installed module")
    parser.add_argument("page", nargs="+", choices=sorted(PAGES))
    options = parser.parse_args()
    stale = False
    for name in options.page:
        page = "python/fp4moe/verbs.py" if name == "verbs" else f"docs/{name}.md"
        path = ROOT / page
        text = PAGES[name](options)
        old = path.read_text() if path.exists() else ""
        if not options.check:
            path.write_text(text)
        elif old != text:
            stale = True
            lines = difflib.unified_diff(old.splitlines(), text.splitlines(), str(path), "what the sources say", lineterm="", n=0)
            print("\n".join(list(lines)[:40]))
            print(f"{page} is stale: run tools/make_docs.py {name}")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
