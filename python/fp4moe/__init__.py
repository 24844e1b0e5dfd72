"""Select, convert and run the Mixture-of-Experts layers of FP4 models."""

from __future__ import annotations

from fp4moe import cli, errors
from fp4moe._core import Layer, Model, __version__
from fp4moe.errors import (
    Error,
    ExhaustedError,
    FailedError,
    InvalidInputError,
    LackingError,
    MismatchError,
    UnsupportedError,
    UsageError,
)

__all__ = [
    "Error",
    "ExhaustedError",
    "FailedError",
    "InvalidInputError",
    "LackingError",
    "Layer",
    "MismatchError",
    "Model",
    "UnsupportedError",
    "UsageError",
    "__version__",
    "cli",
    "errors",
]
