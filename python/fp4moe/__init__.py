"""Select, convert and run the Mixture-of-Experts layers of FP4 models."""

from __future__ import annotations

from typing import Any

from fp4moe import cli, errors, formats, results
from fp4moe._core import VERSION as __version__
from fp4moe._core import Adapters, Layer, Model
from fp4moe.commands import command
from fp4moe.errors import (
    Error,
    FailedError,
    InvalidInputError,
    MismatchError,
    ResourceExhaustedError,
    UnavailableError,
    UnsupportedError,
    UsageError,
)
from fp4moe.quantize import Quantized, dequantize, quantize, quantize_rules
from fp4moe.selection import Change, Refusal, Selection
from fp4moe.verbs import (
    bench,
    convert,
    diff,
    doctor,
    explain,
    inspect,
    layouts,
    lint,
    matrix,
    merge,
    plan,
    quantize_checkpoint,
    report,
    run,
    synth,
    transcode,
    unconvert,
    verify,
    vllm_versions,
)

__all__ = [
    "Adapters",
    "Change",
    "Error",
    "FailedError",
    "InvalidInputError",
    "Layer",
    "MismatchError",
    "Model",
    "Quantized",
    "Refusal",
    "ResourceExhaustedError",
    "Selection",
    "UnavailableError",
    "UnsupportedError",
    "UsageError",
    "__version__",
    "bench",
    "cli",
    "command",
    "convert",
    "dequantize",
    "diff",
    "doctor",
    "errors",
    "explain",
    "formats",
    "inspect",
    "layouts",
    "lint",
    "matrix",
    "merge",
    "plan",
    "quantize",
    "quantize_checkpoint",
    "quantize_rules",
    "report",
    "results",
    "run",
    "synth",
    "transcode",
    "unconvert",
    "verify",
    "vllm_versions",
]


def __getattr__(name: str) -> Any:
    return errors.renamed(name, __name__)
