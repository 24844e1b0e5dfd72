"""The verbs of the command line as functions: the same words, their JSON as dictionaries.

A keyword is an option's name with underscores: ``max_memory="2GB"`` is ``--max-memory 2GB``. Which
ones a verb takes is asked of the verb itself, so that this module has no list to keep; the stub
beside the installed module, which tools/make_stubs.py makes, spells them out with their types.
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

# Options that are for people and files: they print no object.
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


def _checked(
    verb: str, *arguments: Path, words: Mapping[str, object], progress: Progress | None = None
) -> Report:
    status, report = call(verb, *arguments, words=words, progress=progress)
    if status != 0 and verb not in _FINDERS:
        raise _differs(verb, status, report)
    return report


def command(verb: str, *arguments: Path, progress: Progress | None = None, **words: Any) -> Report:
    """Run any command of the command line: ``command("lint", path, deep=True)``."""
    return _checked(verb, *arguments, words=words, progress=progress)


def inspect(path: Path, **words: Any) -> Report:
    """Say what a checkpoint holds: dialect, layers, shapes."""
    return _checked("inspect", path, words=words)


def lint(path: Path, **words: Any) -> Report:
    """Find defects of a checkpoint, and with ``fix=`` and ``out=`` repair some.

    Findings are the result, not an exception.
    """
    return _checked("lint", path, words=words)


def plan(path: Path | None = None, **words: Any) -> Report:
    """Say what a model takes on each rank: sizes, padding, bytes."""
    return _checked("plan", *(() if path is None else (path,)), words=words)


def matrix(**words: Any) -> Report:
    """Tabulate what every backend can do and who gets which."""
    return _checked("matrix", words=words)


def vllm_versions() -> Report:
    """List releases of vLLM and the policy of each."""
    return _checked("vllm-versions", words={})


def layouts(layout: str | None = None, **words: Any) -> Report:
    """List the weight layouts of every backend, or describe one."""
    return _checked("layouts", *(() if layout is None else (layout,)), words=words)


def doctor(**words: Any) -> Report:
    """Say what this build and machine have and which kernels run."""
    return _checked("doctor", words=words)


def convert(
    path: Path, out: Path | None = None, *, progress: Progress | None = None, **words: Any
) -> Report:
    """Write a checkpoint in a backend's layout: one rank (``tp=(0, 2)``), or with ``tp=2`` all.

    Ctrl-C is a KeyboardInterrupt that leaves nothing half done; ``resume=True`` goes on.
    """
    return _checked("convert", path, words={"out": out, **words}, progress=progress)


def unconvert(*folders: Path, out: Path, progress: Progress | None = None, **words: Any) -> Report:
    """Write the checkpoint that folders, one of each rank, were converted from."""
    return _checked("unconvert", *folders, words={"out": out, **words}, progress=progress)


def verify(folder: Path, *, progress: Progress | None = None, **words: Any) -> Report:
    """Prove that a converted folder is what its source gives; MismatchError where it is not."""
    return _checked("verify", folder, words=words, progress=progress)


def transcode(
    path: Path, out: Path, *, to: str, progress: Progress | None = None, **words: Any
) -> Report:
    """Write a checkpoint in another dialect, bit for bit."""
    return _checked("transcode", path, words={"out": out, "to": to, **words}, progress=progress)


def quantize_checkpoint(
    path: Path, out: Path, *, format: str, progress: Progress | None = None, **words: Any
) -> Report:
    """Quantize the experts of a BF16, F16 or F32 checkpoint."""
    return _checked(
        "quantize", path, words={"out": out, "format": format, **words}, progress=progress
    )


def merge(
    path: Path,
    adapter: Path,
    out: Path | None = None,
    *,
    progress: Progress | None = None,
    **words: Any,
) -> Report:
    """Merge a LoRA adapter into the experts of a checkpoint."""
    return _checked("merge", path, adapter, words={"out": out, **words}, progress=progress)


def synth(out: Path, *, model: str, progress: Progress | None = None, **words: Any) -> Report:
    """Make a seeded test checkpoint in any dialect."""
    return _checked("synth", words={"out": out, "model": model, **words}, progress=progress)


def report(
    path: Path, out: Path | None = None, *, progress: Progress | None = None, **words: Any
) -> Report:
    """Write one HTML page about a checkpoint or a converted folder; without ``out`` its facts alone."""
    return _checked("report", path, words={"out": out, **words}, progress=progress)


def run(path: Path, **words: Any) -> Report:
    """Run MoE layers on tokens, by any backend's numerics."""
    return _checked("run", path, words=words)


def diff(a: str, b: str, **words: Any) -> Report:
    """Compare two backends, splits, batch sizes or output files."""
    return _checked("diff", a, b, words=words)


def bench(benchmark: str, **words: Any) -> Report:
    """Measure this machine, whole layers, codecs and conversion."""
    return _checked("bench", benchmark, words=words)
