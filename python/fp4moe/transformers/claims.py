"""Claims of a configuration about modules outside the experts.

Names, types and shapes of tensors say how they are dequantized. A configuration says what they do
not show: the format of scales that are bytes, and rotations of activations when the model runs.
Where it contradicts how tensors are read, the model is refused.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn

from fp4moe.errors import UnsupportedError
from fp4moe.transformers.config import QUARK_FP4, entries, method_of, quark_blocks, quark_dtype
from fp4moe.transformers.linear import QuantizedLinear, unread

# A module as the checkpoint names it, its name in the model, and what it is there.
Linears = Iterable[tuple[QuantizedLinear, str, nn.Linear]]

# Places of transforms that ask for nothing when the model runs: in the codes, and in attention,
# where that of queries undoes that of keys.
FOLDED = ("weight_input", "weight_output", "q_attn", "k_cache")

# ModelOpt's names of FP4 that is read; others with FP4 in them are of unknown kinds.
MODELOPT_FP4 = (
    "NVFP4",
    "W4A16_NVFP4",
    "NVFP4_AWQ",
    "W4A8_NVFP4_FP8",
    "MXFP4",
    "W4A16_MXFP4",
    "W4A8_MXFP4_FP8",
)


def check_transforms(stored: dict[str, Any] | None) -> None:
    """Refuse a compressed-tensors configuration that rotates activations when the model runs."""
    transforms = (stored or {}).get("transform_config")
    for group in entries(transforms, "config_groups").values():
        for one in group.get("apply") or ():
            location = one.get("location") if isinstance(one, dict) else None
            if location not in FOLDED:
                raise UnsupportedError(
                    "modules outside the experts are behind a transform when the model runs",
                    id="transformers.scale",
                    expected="transforms that are folded into the weights",
                    found=f"transform_config with location {location!r}",
                    remedy="take a checkpoint without such transforms",
                )


def check_quark(stored: dict[str, Any] | None, linears: Linears) -> None:
    """Refuse modules that Quark wrote in another format than they are read in."""
    if stored is None or method_of(stored) != "quark":
        return
    for linear, own, module in linears:
        if linear.is_fp4() or linear.has_exponents():
            for blocks in _quark_blocks(stored, (linear.name, own), module):
                _check_blocks(linear, blocks)


def _check_blocks(linear: QuantizedLinear, blocks: dict[str, Any]) -> None:
    dtype = quark_dtype(blocks)
    if linear.is_fp4() and dtype not in QUARK_FP4:
        raise unread(linear.codes, f"dtype {dtype!r} in quantization_config")
    written = str(blocks.get("scale_format") or "")
    numbers = str(blocks.get("scale_type") or "float")
    formats = ("", "e8m0") if linear.has_exponents() else ("", "float32", "e4m3")
    if written not in formats or not (numbers == "float" or numbers.startswith("float32")):
        raise unread(linear.scales, f"scale_format {written!r}, scale_type {numbers!r}")


def _quark_blocks(
    stored: dict[str, Any], names: tuple[str, ...], module: nn.Linear
) -> list[dict[str, Any]]:
    """How Quark's configuration says a module's blocks are quantized; empty where it does not.

    The module's own name comes first, then the first pattern of a name, its type, the rest. More
    than one type may be the module's.
    """
    layers = entries(stored, "layer_quant_config")
    types = entries(stored, "layer_type_quant_config")
    whole = [layers[name] for name in names if name in layers]
    named = [scheme for pattern, scheme in layers.items() if _is_any_named(pattern, names)]
    typed = [scheme for kind, scheme in types.items() if _may_be(kind, module)]
    levels: list[list[Any]] = [[scheme] for scheme in (*whole, *named)]
    for schemes in (*levels, typed, [stored.get("global_quant_config")]):
        if found := [blocks for scheme in schemes if (blocks := quark_blocks(scheme))]:
            return found
    return []


def _may_be(kind: str, module: nn.Linear) -> bool:
    """Whether a type in Quark's words may be the module's: any class that is called Linear may."""
    name = kind.removesuffix("'>").rpartition(".")[2]
    return name.endswith("Linear") or name in {each.__name__ for each in type(module).__mro__}


def check_modelopt(documents: Iterable[Any], linears: Linears) -> None:
    """Refuse FP4 modules that ModelOpt's lists have as something else, or as an unknown FP4."""
    listed = [entries(document, "quantized_layers") for document in documents]
    for linear, own, _ in linears:
        for layers in listed if linear.is_fp4() else ():
            layer = _nearest(layers, (linear.name, own))
            algorithm = str((layer or {}).get("quant_algo") or "")
            if algorithm and algorithm.upper() not in MODELOPT_FP4:
                raise unread(linear.codes, f"quant_algo {algorithm!r} in quantized_layers")


def _nearest(layers: dict[str, dict[str, Any]], names: tuple[str, ...]) -> dict[str, Any] | None:
    """The entry of a module or of the nearest module around it."""
    patterns = [pattern for pattern in layers if pattern.startswith("re:") or "*" in pattern]
    for name in (outer for name in names for outer in _outwards(name)):
        if name in layers:
            return layers[name]
        for pattern in patterns:
            if _is_named(pattern, name):
                return layers[pattern]
    return None


def _outwards(name: str) -> Iterator[str]:
    while name:
        yield name
        name = name.rpartition(".")[0]


def _is_any_named(pattern: str, names: Iterable[str]) -> bool:
    return any(_is_named(pattern, name) for name in names)


def _is_named(pattern: str, module: str) -> bool:
    if not pattern.startswith("re:"):
        return fnmatch.fnmatchcase(module, pattern)
    try:
        return re.match(pattern[3:], module) is not None
    except re.error as error:
        raise UnsupportedError(
            "a pattern of quantized modules is not understood",
            id="transformers.scale",
            tensor=module,
            expected="a regular expression, or a name with * and ?",
            found=f"{pattern!r}: {error}",
        ) from error
