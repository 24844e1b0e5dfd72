"""docs/environment.md: every environment variable, asked of `fp4moe list variables --json`."""
from __future__ import annotations

import json
import re
import subprocess

HEAD = """\
# Environment variables

`fp4moe list variables` prints this page's facts, `fp4moe doctor` what is set here and what is wrong with it. An empty value counts as unset.

## Of fp4moe

A wrong value is refused before a command does anything.

| variable | takes | does |
|---|---|---|
"""
VLLM = """
## Of vLLM

`fp4moe explain` reads them on this machine, and `--env NAME=VALUE` sets them for a described one. They count under the policies that are named.

| variable | takes | does | policies |
|---|---|---|---|
"""
FOOT = """
Others: `TMPDIR` (where `demo`, `bench` and tests write), `NO_COLOR` (no bold text). Those of builds and tests: [contributing](../CONTRIBUTING.md).

Written by tools/make_docs.py from `fp4moe list variables --json`.
"""


def page(program: str) -> str:
    text = subprocess.run([program, "list", "variables", "--json"], check=True, capture_output=True, text=True).stdout
    ours, theirs = "", ""
    for row in json.loads(text)["rows"]:
        found = re.fullmatch(r"([^:]+): (.*) \((.*)\)", row["what"])
        assert found, row
        readers, effect, accepted = (part.replace("|", "\\|") for part in found.groups())
        if readers == "fp4moe":
            ours += f"| `{row['name']}` | {accepted} | {effect} |\n"
        else:
            theirs += f"| `{row['name']}` | {accepted} | {effect} | {readers} |\n"
    return HEAD + ours + VLLM + theirs + FOOT
