"""The command line in this process: the `fp4moe` program, and its words as a call."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

from fp4moe import _core, errors
from fp4moe.commands import command as command


class Outcome(NamedTuple):
    """What a command left behind: its exit status, what it printed, and its warnings."""

    status: int
    out: str
    err: str


def call(words: Sequence[str]) -> Outcome:
    """Run a command by its words, as a shell would; nothing is raised for its failure."""
    if isinstance(words, (str, bytes)):
        raise TypeError("words: expected a sequence of texts, found one text")
    for word in words:
        if not isinstance(word, str):
            raise TypeError(f"words: expected texts, found {type(word).__name__}")
        if "\0" in word:
            raise errors.UsageError(
                "a word holds a zero", id="command.word", expected="no \\0", found=repr(word)
            )
    return Outcome(*_core.command(list(words)))


def main() -> int:
    """Run this process's arguments: the console script."""
    if sys.prefix != sys.base_prefix:  # packages are looked for beside this one
        os.environ.setdefault("VIRTUAL_ENV", sys.prefix)
    return int(_core.main(sys.argv[1:]))
