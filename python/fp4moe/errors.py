"""What goes wrong, as exceptions with a stable id and words to act on.

The classes follow the exit codes of the command line; each is also the built-in exception that
callers of such a function expect.
"""

from __future__ import annotations

import warnings
from typing import Any, Mapping


class Error(Exception):
    """A failure of the library; str() is its one human-readable line."""

    code: int = 1
    record: Mapping[str, Any] | None = None  # what a command printed before it failed

    def __init__(
        self,
        message: str,
        *,
        id: str = "",
        path: str = "",
        tensor: str = "",
        expected: str = "",
        found: str = "",
        remedy: str = "",
        line: str = "",
    ) -> None:
        super().__init__(line or _line(id, path, tensor, message, expected, found, remedy))
        self.id = id
        self.message = message
        self.path = path
        self.tensor = tensor
        self.expected = expected
        self.found = found
        self.remedy = remedy

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.args[0], dict(self.__dict__)))


class FailedError(Error, OSError):
    """The work could not be done: input or output failed, or there is a bug."""

    code = 1


class UsageError(Error, ValueError):
    """The request itself is wrong."""

    code = 2


class InvalidInputError(Error, ValueError):
    """A file or tensor breaks its format."""

    code = 3


class UnsupportedError(Error, RuntimeError):
    """No backend supports the configuration; `record` is the selection record, where there is one."""

    code = 4


class MismatchError(Error, ValueError):
    """Verification or golden data disagree."""

    code = 5


class ResourceExhaustedError(Error, MemoryError):
    """Out of memory or disk."""

    code = 6


class UnavailableError(Error, RuntimeError):
    """This machine or build lacks what is needed."""

    code = 7


CLASSES: Mapping[int, type[Error]] = {
    kind.code: kind
    for kind in (
        FailedError,
        UsageError,
        InvalidInputError,
        UnsupportedError,
        MismatchError,
        ResourceExhaustedError,
        UnavailableError,
    )
}
INTERRUPTED = 130

# Old names, which warn.
_RENAMED: Mapping[str, type[Error]] = {
    "ExhaustedError": ResourceExhaustedError,
    "LackingError": UnavailableError,
}


def renamed(name: str, module: str) -> type[Error]:
    """Give what an old name of `module` means now, with a DeprecationWarning."""
    if name not in _RENAMED:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    kind = _RENAMED[name]
    warnings.warn(f"{module}.{name} is now {kind.__name__}", DeprecationWarning, stacklevel=3)
    return kind


def __getattr__(name: str) -> Any:
    return renamed(name, __name__)


def make(code: int, id: str, message: str, **parts: str) -> Error | KeyboardInterrupt:
    """Make the exception of an exit code; parts are path, tensor, expected, found, remedy, line."""
    if code == INTERRUPTED:
        return KeyboardInterrupt(parts.get("line") or message)
    return CLASSES.get(code, FailedError)(message, id=id, **parts)


def from_json(error: Mapping[str, Any]) -> Error | KeyboardInterrupt:
    """Make the exception of the object that `--json` prints."""
    return make(
        int(error.get("code", 1)),
        str(error.get("id", "")),
        str(error.get("message", "")),
        path=str(error.get("file", "")),
        tensor=str(error.get("tensor", "")),
        expected=str(error.get("expected", "")),
        found=str(error.get("found", "")),
        remedy=str(error.get("remedy", "")),
    )


def _line(
    id: str, path: str, tensor: str, message: str, expected: str, found: str, remedy: str
) -> str:
    line = id
    line += f": {path}" if path else ""
    line += f': "{tensor}"' if tensor else ""
    line += (": " if line else "") + message
    line += f"; expected {expected}" if expected else ""
    if found:
        line += f", found {found}" if expected else f"; found {found}"
    return line + (f". {remedy}" if remedy else "")


def _rebuild(kind: type[Error], line: str, state: dict[str, Any]) -> Error:
    result = kind("", line=line)
    result.__dict__.update(state)
    return result
