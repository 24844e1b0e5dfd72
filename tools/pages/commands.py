"""docs/commands.md: every command and what it takes, asked of `fp4moe help --json`."""
from __future__ import annotations

import json
import subprocess

HEAD = """\
# Commands

Every command also takes `--help`, and `--json` for one JSON object instead of text. `fp4moe help COMMAND` shows the same as `fp4moe COMMAND --help`; `fp4moe help --json` is what this page is made
from. `source <(fp4moe completion bash)` lets bash complete all of it; zsh and fish have their own. `fp4moe list` names what options take, `fp4moe error ID` explains an error.

| in every command | means |
|---|---|
| `--tp N` | N ranks share every expert |
| `--ep N` | N ranks share out whole experts |
| `--backend NAME` | a backend's own name, or the word of vLLM's `--moe-backend`; case does not count, nor does `-` for `_` |
| `--placement` | `linear` or `round-robin` (`round_robin` is the same) |
| exit status | 0 done; 1 failed, or a path does not exist; 2 a wrong request; 3 bad input; 4 no backend; 5 a difference; 6 memory or disk; 7 unavailable here; 130 interrupted |
| a closed pipe | is quiet: `fp4moe matrix \| head -1` ends with the command's own status |
"""
FOOT = "\nWritten by tools/make_docs.py from `fp4moe help --json`.\n"

VALUES = {"integer": "N", "number": "X", "bytes": "SIZE"}
TEXTS = {"path": "PATH", "rank": "R/N", "pair": "NAME=VALUE", "number": "N", "word": "NAME"}


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", "<br>")


def spelling(option: dict) -> str:
    """`-o`, `--out PATH`"""
    if option["positional"]:
        return f"`{option['name']}{'...' if option['type'] == 'list' else ''}`"
    if option["type"] == "flag":
        return ", ".join(f"`{name}`" for name in option["names"])
    value = VALUES.get(option["type"]) or TEXTS[option["form"]]
    if option["implied"] is not None:
        value = f"[{value}]"
    if option["type"] == "list":
        value = f"{option['item']},..." if option["item"] else f"{value}..."
    *short, last = option["names"]
    return ", ".join([*(f"`{name}`" for name in short), f"`{last} {value}`"])


def demands(option: dict) -> str:
    """What a value must be, and what it is without the option."""
    said = ["required"] if option["required"] else []
    if option["choices"]:
        said.append("one of " + ", ".join(f"`{choice}`" for choice in option["choices"]))
    if option["range"]:
        said.append("{} to {}".format(*option["range"]))
    if option["default"] is not None:
        default = option["default"]
        said.append("default " + (default if " " in default else f"`{default}`"))
    return "; ".join(said)


def table(options: list[dict]) -> list[str]:
    rows = [f"| {spelling(option)} | {cell(option['help'])} | {cell(demands(option))} |"
            for option in options if option["name"] != "json"]
    return ["", "| takes | meaning | value |", "|---|---|---|", *rows] if rows else []


def describe(command: dict) -> list[str]:
    out = ["", f"## {command['name']}", "", f"{command['summary']}.", "", f"```\n{command['example']}\n```"]
    out += table(command["options"])
    for subcommand in command["subcommands"]:
        out += ["", f"### {command['name']} {subcommand['name']}", "", f"{subcommand['summary']}.", *table(subcommand["options"])]
    return out


def page(program: str) -> str:
    done = subprocess.run([program, "help", "--json"], capture_output=True, text=True, check=True, env={})
    commands = json.loads(done.stdout)["commands"]
    links = ", ".join(f"[{command['name']}](#{command['name']})" for command in commands)
    return "\n".join([HEAD, links + ".", *(line for command in commands for line in describe(command))]) + "\n" + FOOT
