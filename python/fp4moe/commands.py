"""Any command of the command line as a function: the same words, its JSON as a dictionary.

A keyword is an option's name with underscores: ``max_memory="2GB"`` is ``--max-memory 2GB``. Which
ones a command takes is asked of the command itself, so that this module has no list to keep;
verbs.py spells them out with their types.
"""

from __future__ import annotations

import difflib
import functools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fp4moe import _core, errors

Path = str | os.PathLike[str]
Report = dict[str, Any]
# Called as progress(title, done, total), in bytes, about ten times a second.
Progress = Callable[[str, int, int], object]

# Options that are for humans and files: they print no object.
_NOT_WORDS = ("json", "help", "markdown")
# Verbs whose findings are their result; what others disagree with is an error.
_FINDERS = ("lint", "explain", "doctor")


@functools.cache
def options(verb: str) -> dict[str, dict[str, Any]]:
    """The keywords that a verb takes, each with what its option is."""
    facts = _core.options(verb)
    every = facts["options"] + [
        option for subcommand in facts["subcommands"] for option in subcommand["options"]
    ]
    return {
        option["name"].replace("-", "_"): option
        for option in every
        if not option["positional"] and option["name"] not in _NOT_WORDS
    }


def _text(word: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int, float, os.PathLike)):
        raise TypeError(f"{word}: expected a text, number or path, found {type(value).__name__}")
    text = os.fsdecode(value) if isinstance(value, os.PathLike) else str(value)
    if "\0" in text:
        raise errors.UsageError(
            f"{word} holds a zero", id="command.word", expected="no \\0", found=repr(text)
        )
    return text


def _values(word: str, option: dict[str, Any], value: object) -> list[str]:
    takes_many = option["type"] == "list"
    if takes_many and isinstance(value, Mapping):
        return [f"{name}={_text(word, item)}" for name, item in value.items()]
    if takes_many and isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [_text(word, item) for item in value]
    if option["form"] == "rank" and isinstance(value, tuple) and len(value) == 2:
        return [f"{_text(word, value[0])}/{_text(word, value[1])}"]
    return [_text(word, value)]


def _unknown(verb: str, word: str, known: Mapping[str, object]) -> TypeError:
    near = difflib.get_close_matches(word, known, 1)
    meant = f"did you mean {near[0]}? " if near else ""
    return TypeError(f"{verb}: no such word {word!r}; {meant}accepted: {', '.join(sorted(known))}")


def _option_words(verb: str, words: Mapping[str, object]) -> list[str]:
    known = options(verb)
    result: list[str] = []
    for word, value in words.items():
        option = known.get(word)
        if option is None:
            raise _unknown(verb, word, known)
        if value is None:
            continue
        if isinstance(value, bool) and option["implied"] is not None:
            result += [f"--{option['name']}"] if value else []
        elif option["type"] != "flag":
            result += [f"--{option['name']}={text}" for text in _values(word, option, value)]
        elif not isinstance(value, bool):
            raise TypeError(f"{word}: expected True or False, found {type(value).__name__}")
        elif value:
            result.append(f"--{option['name']}")
        elif f"no_{word}" in known:
            result.append(f"--no-{option['name']}")
    return result


def _refusal(verb: str, status: int, err: str) -> BaseException:
    """What a status without an error object means."""
    line = err.strip().removeprefix(f"fp4moe {verb}: ") or f"{verb} ended with status {status}"
    return errors.make(status, "command.status", line, line=line)


def call(
    verb: str,
    *arguments: Path,
    words: Mapping[str, object] | None = None,
    progress: Progress | None = None,
) -> tuple[int, Report]:
    """Run a verb; its exit status and its object. Errors are raised."""
    texts = [_text("path", argument) for argument in arguments]
    asked = texts[:1] if _core.options(verb)["subcommands"] else []  # bench layer
    rest = texts[len(asked) :]
    parts = [verb, *asked, *_option_words(verb, words or {}), "--json"]
    status, out, err = _core.command(parts + (["--", *rest] if rest else []), progress)
    try:
        report: Report = json.loads(out)
    except ValueError:
        raise _refusal(verb, status, err or out) from None
    if "error" in report and status != 0:
        raise errors.from_json(report["error"])
    return status, report


def _differs(verb: str, status: int, report: Report) -> BaseException:
    """A report that ends with a status of failure, as an exception that holds it."""
    files = report.get("files")
    broken = [f["error"] for f in files if "error" in f] if isinstance(files, list) else []
    found = report.get("findings") or report.get("failed") or "some"
    why = (
        errors.from_json(broken[0])
        if broken
        else errors.make(
            status,
            "command.differs",
            f"{verb} found differences",
            expected="none",
            found=str(len(found) if isinstance(found, list) else found),
        )
    )
    if isinstance(why, errors.Error):
        why.record = report
    return why


def _fine(verb: str, status: int, report: Report) -> Report:
    if status != 0 and verb not in _FINDERS:
        raise _differs(verb, status, report)
    return report


def checked(verb: str, given: Mapping[str, Any], arguments: Sequence[str]) -> Report:
    """Run a verb with the parameters of its function; `arguments` are those without a name on the
    command line."""
    words = dict(given)
    progress = words.pop("progress", None)
    facts = _core.options(verb)["options"]
    optional = {option["name"].lower() for option in facts if not option["required"]}
    paths: list[Path] = []
    for name in arguments:
        value = words.pop(name)
        if value is not None or name not in optional:
            paths += value if isinstance(value, tuple) else (value,)
    return _fine(verb, *call(verb, *paths, words=words, progress=progress))


def command(verb: str, *arguments: Path, progress: Progress | None = None, **words: Any) -> Report:
    """Run any command of the command line: ``command("lint", path, deep=True)``."""
    return _fine(verb, *call(verb, *arguments, words=words, progress=progress))
