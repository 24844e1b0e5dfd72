"""python/fp4moe/verbs.py: the verbs of the Python package with every keyword, asked of `fp4moe help --json`."""
from __future__ import annotations

import json
import subprocess
import textwrap
from dataclasses import dataclass
from typing import Any

HEAD = '''\
"""The verbs of the command line as functions: a keyword for each option, their JSON as dictionaries.

Written by tools/make_docs.py from ``fp4moe help --json``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, cast

from fp4moe import commands, results, selection
from fp4moe.commands import Path, Progress
'''

TEXTS = {"word": "str", "path": "Path", "number": "int | float | str", "rank": "int | str | tuple[int, int]"}
LISTS = {"word": "Sequence[str]", "path": "Path | Sequence[Path]", "number": "str | int | Sequence[str] | Sequence[int]",
         "pair": "Mapping[str, str] | Sequence[str]"}
TYPES = {"flag": "bool", "integer": "int", "bytes": "int | str", "number": "float"}
# Options that are for people and files: they print no object.
NOT_WORDS = {"json", "help", "markdown"}


@dataclass
class Verb:
    result: str
    name: str = ""  # the function's, if not the verb's
    positional: tuple[str, ...] = ()  # options that may be given by their place
    progress: bool = False
    more: str = ""  # behind the command's own summary


# In the order of the file.
VERBS = {
    "inspect": Verb("Inspect"),
    "lint": Verb("Lint", more="Findings are the result, not an exception; ``fix=`` and ``out=`` repair some."),
    "explain": Verb("Selection", more="Where nothing supports the layer, UnsupportedError has the same record as "
                    "``.record``."),
    "plan": Verb("Plan"),
    "matrix": Verb("Matrix"),
    "vllm-versions": Verb("VllmVersions"),
    "layouts": Verb("Layouts"),
    "doctor": Verb("Doctor"),
    "convert": Verb("Convert", positional=("out",), progress=True,
                    more="One rank is ``tp=(0, 2)``; ``tp=2`` writes all. Ctrl-C is a KeyboardInterrupt that leaves "
                         "nothing half done; ``resume=True`` goes on."),
    "unconvert": Verb("Unconvert", progress=True, more="Of a split model one folder of each rank is needed."),
    "verify": Verb("Verify", progress=True, more="MismatchError where it is not."),
    "transcode": Verb("Transcode", positional=("out",), progress=True),
    "quantize": Verb("Quantize", name="quantize_checkpoint", positional=("out",), progress=True),
    "merge": Verb("Merge", positional=("out",), progress=True),
    "synth": Verb("Synth", positional=("out",), progress=True),
    "report": Verb("Report", positional=("out",), progress=True, more="Without ``out`` it gives the facts alone."),
    "run": Verb("Run"),
    "diff": Verb("Diff", progress=True),
    "bench": Verb("Bench"),
}
# Options of explain that ask for something else than one selection.
NOT_ONE = ("all_devices", "diff", "messages", "verbose")


def literal(words: list[str]) -> str:
    return f"Literal[{', '.join(json.dumps(word) for word in words)}]"


def type_of(option: dict[str, Any]) -> str:
    """The type of a keyword's value, but for None."""
    if option["choices"] and option["type"] != "list":
        return literal(option["choices"])
    if option["implied"] is not None:
        return f"bool | {TYPES[option['type']]}"
    if option["type"] == "text":
        return TEXTS[option["form"]]
    return LISTS[option["form"]] if option["type"] == "list" else TYPES[option["type"]]


def keyword(option: dict[str, Any]) -> str:
    return str(option["name"]).replace("-", "_").lower()


def parameter(option: dict[str, Any]) -> str:
    if option["required"]:
        return f"{keyword(option)}: {type_of(option)}"
    return f"{keyword(option)}: {type_of(option)} | None = None"


def options_of(facts: dict[str, Any]) -> list[dict[str, Any]]:
    """The command's own, and those of its subcommands, which are keywords of one function."""
    own = list(facts["options"])
    names = {option["name"] for option in own}
    for subcommand in facts["subcommands"]:
        for option in subcommand["options"]:
            if not option["positional"] and option["name"] not in names:
                names.add(option["name"])
                own.append({**option, "required": False})
    return own


def keywords_of(verb: str, facts: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What a verb takes by name. A flag's opposite is its False."""
    every = {keyword(option): option for option in options_of(facts)
             if not option["positional"] and option["name"] not in NOT_WORDS}
    hidden = set(NOT_ONE) if verb == "explain" else set()
    return {name: option for name, option in every.items()
            if name not in hidden and not (name.startswith("no_") and name[3:] in every)}


def docstring(verb: Verb, summary: str) -> str:
    if not verb.more:
        return f'    """{summary}."""'
    more = textwrap.fill(verb.more, 96, initial_indent="    ", subsequent_indent="    ")
    return f'    """{summary}.\n\n{more}\n    """'


def parameters(verb_name: str, facts: dict[str, Any]) -> tuple[list[str], list[str]]:
    """The parameters as written, and the names of those that are arguments of the command line."""
    verb, keywords = VERBS[verb_name], keywords_of(verb_name, facts)
    shown, arguments = [], []
    if facts["subcommands"]:
        shown.append(f"benchmark: {literal([each['name'] for each in facts['subcommands']])}")
        arguments.append("benchmark")
    star = False
    for option in facts["options"]:
        if not option["positional"] or keyword(option) in keywords:
            continue
        arguments.append(keyword(option))
        if option["type"] == "list":
            shown.append(f"*{keyword(option)}: {TEXTS[option['form']]}")
            star = True
        else:
            shown.append(parameter(option))
    shown += [parameter(keywords.pop(name)) for name in verb.positional]
    named = sorted(keywords.values(), key=lambda option: (not option["required"], keyword(option)))
    rest = [parameter(option) for option in named] + (["progress: Progress | None = None"] if verb.progress else [])
    return shown + (["*"] if rest and not star else []) + rest, arguments


def function(verb_name: str, facts: dict[str, Any]) -> str:
    verb = VERBS[verb_name]
    shown, arguments = parameters(verb_name, facts)
    name = verb.name or verb_name.replace("-", "_")
    result = "selection.Selection" if verb_name == "explain" else f"results.{verb.result}"
    whole = f"def {name}({', '.join(shown)}) -> {result}:"
    lines = [whole] if len(whole) <= 100 else [f"def {name}(", *(f"    {each}," for each in shown), f") -> {result}:"]
    call = "selection.select(locals())" if verb_name == "explain" else (
        f'cast({result}, commands.checked("{verb_name}", locals(), {json.dumps(arguments)}))')
    return "\n".join([*lines, docstring(verb, facts["summary"]), f"    return {call}"])


def page(program: str) -> str:
    text = subprocess.run([program, "help", "--json"], check=True, capture_output=True, text=True).stdout
    known = {command["name"]: command for command in json.loads(text)["commands"]}
    return HEAD + "".join(f"\n\n{function(verb, known[verb])}\n" for verb in VERBS)
