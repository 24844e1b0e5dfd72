"""Which backend a layer gets on a real or described machine, and why not the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fp4moe import commands, errors


@dataclass(frozen=True)
class Refusal:
    """Why a kernel does not run the layer."""

    backend: str  # whose kernel it is
    experts: str  # the kernel's class
    code: str  # stable: "capability", "platform", ...
    requirement: str  # what it needs
    fact: str  # what is there
    remedy: str  # what would help

    def __str__(self) -> str:
        return f"{self.backend}: {self.requirement}; {self.fact}"


@dataclass(frozen=True)
class Change:
    """What to do to get another backend. It was tried: the selection then takes it."""

    backend: str  # what is taken then
    steps: tuple[str, ...]  # flags and variables of vLLM, packages; all of them together

    def __str__(self) -> str:
        return f"{self.backend}: {', '.join(self.steps)}"


class Selection(Mapping[str, Any]):
    """What ``fp4moe explain --json`` prints, as a mapping with its main parts as attributes."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        self.raw: dict[str, Any] = dict(record)

    @property
    def backend(self) -> str | None:
        """The backend, None where nothing supports the layer."""
        found: str | None = self.raw["backend"]
        return found

    @property
    def experts(self) -> str | None:
        """The kernel's class."""
        found: str | None = self.raw["experts"]
        return found

    @property
    def policy(self) -> str:
        """Whose rules decided."""
        return str(self.raw["policy"])

    @property
    def device(self) -> str:
        """The device's name."""
        return str(self.raw["device"]["name"])

    @property
    def summary(self) -> str:
        """The answer in a sentence."""
        return str(self.raw["summary"])

    @property
    def to_change(self) -> list[Change]:
        """What to do to get another backend, or any where there is none."""
        return [Change(to["backend"], tuple(to["steps"])) for to in self.raw["to_change"]]

    @property
    def would_run(self) -> list[str]:
        """Every backend that supports the layer, the chosen one first."""
        return list(self.raw["would_run"])

    @property
    def refusals(self) -> list[Refusal]:
        """Why not the kernels that do not support the layer, in the order of preference."""
        return [
            Refusal(
                kernel["backend"],
                kernel["experts"],
                why["code"],
                why["requirement"],
                why["fact"],
                why["remedy"],
            )
            for kernel in self.raw["candidates"]
            for why in kernel["refusals"]
        ]

    @property
    def warnings(self) -> list[str]:
        """What is odd about the choice."""
        return list(self.raw["warnings"])

    def why_not(self, backend: str) -> list[Refusal]:
        """The refusals of one backend; none where it would run."""
        if backend in self.would_run:
            return []
        return [why for why in self.refusals if why.backend == backend]

    def __getitem__(self, key: str) -> Any:
        return self.raw[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.raw)

    def __len__(self) -> int:
        return len(self.raw)

    def __repr__(self) -> str:
        return (
            f"<fp4moe.Selection {self.backend or 'nothing'} on {self.device}, policy {self.policy}>"
        )


def select(words: Mapping[str, Any]) -> Selection:
    """What ``explain`` of verbs.py gives: one selection, or an error that holds it."""
    status, record = commands.call("explain", words=words)
    selection = Selection(record)
    if status == 0:
        return selection
    message = str(record.get("message") or record["summary"])
    why = errors.make(status, "choice.backend", message, line=f"choice.backend: {message}")
    if isinstance(why, errors.Error):
        why.record = selection
    raise why
