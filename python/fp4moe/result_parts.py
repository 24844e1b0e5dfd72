"""Parts that the results of several verbs share: problems, releases, machines, tolerances."""

from __future__ import annotations

from typing import Any, TypedDict


class _Problem(TypedDict):
    code: int
    id: str
    message: str


class Problem(_Problem, total=False):
    """An error: its stable id, the requirement and the fact."""

    file: str
    tensor: str
    expected: str
    found: str
    remedy: str


class Release(TypedDict):
    """The release of vLLM whose rules were asked for."""

    version: str
    release: str
    policy: str
    match: str
    note: str


class _Answer(TypedDict):
    command: str
    status: int


class Answer(_Answer, total=False):
    """What another command says, or its error."""

    result: dict[str, Any]
    error: Problem


class Machine(TypedDict):
    model: str
    architecture: str
    cores: int
    l1d_bytes: int
    l2_bytes: int
    l3_bytes: int
    memory_bytes: int
    features: str


class Tolerance(TypedDict):
    rel_error: float
    cosine: float
