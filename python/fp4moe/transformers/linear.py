"""Linear modules outside the experts that are quantized, too: they are dequantized when loaded.

NVFP4 checkpoints often have attention in FP4, mixed ones in FP8. Such weights are a few per cent of
a MoE model, and transformers multiplies by them itself, so they become ordinary weights in the
model's type. What is saved is what was read.

    FP4    weight = e2m1(code) * block scale * global scale
    FP8    weight = code * scale, one for the tensor, a row, or a block
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightRenaming, rename_source_key

from fp4moe.errors import UnsupportedError
from fp4moe.transformers.source import Source

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)

CODES = ("U8", "I8", "F4")
BYTES = ("F8_E4M3", "F8_E5M2", "I8")  # a number each
EXPONENTS = ("U8", "F8_E8M0")
FLOATS = ("BF16", "F16", "F32")

# Words of tensors by which quantizers change what codes stand for: in a name's last part, or in
# any, where they are modules of their own.
CHANGING = ("scale", "zero_point", "zeros", "g_idx", "perm")
CHANGING_MODULES = ("lora", "hadamard", "rotation")
# Places of transforms that ask for nothing when the model runs: in the codes, and in attention,
# where that of queries undoes that of keys.
FOLDED = ("weight_input", "weight_output", "q_attn", "k_cache")

# Scales of activations and caches: weights are what they are without them.
ACTIVATIONS = (
    "input_scale",
    "input_scale_2",
    "input_global_scale",
    "output_scale",
    "q_scale",
    "k_scale",
    "v_scale",
)
# What a quantized module has beside its codes; none of it is a parameter of the model.
PARTS = (
    "weight_packed",
    "weight_scale",
    "weight_scale_inv",
    "scale",
    "weight_scale_2",
    "weight_global_scale",
    "weight_shape",
    *ACTIVATIONS,
)


@dataclass(frozen=True)
class QuantizedLinear:
    """One such module: its name in the checkpoint, and where its codes and scales are."""

    name: str
    codes: str
    scales: str
    source: Source

    def dequantize(self) -> torch.Tensor:
        """The weights in float32, [out, in]."""
        return self._fp4() if self.is_fp4() else self._bytes()

    def is_fp4(self) -> bool:
        """Whether its codes are FP4, and no bytes."""
        return self.source.dtype(self.codes) in CODES and not self._has_float_scales()

    def _has_float_scales(self) -> bool:
        return self.source.dtype(self.scales) in FLOATS

    def _factors(self) -> torch.Tensor:
        scales = self.source.tensor(self.scales)
        if self.source.dtype(self.scales) in EXPONENTS:
            return torch.exp2(scales.view(torch.uint8).float() - 127)
        return scales.float()

    def _fp4(self) -> torch.Tensor:
        codes = self.source.tensor(self.codes).view(torch.uint8)
        rows = codes.shape[0]
        table = torch.tensor(E2M1)
        values = torch.stack((table[(codes & 15).long()], table[(codes >> 4).long()]), -1)
        factors = self._factors()
        blocks = values.reshape(rows, factors.shape[1], -1) * factors[..., None]
        return blocks.reshape(rows, -1) * self._global()

    def _global(self) -> torch.Tensor:
        for name, divides in (("weight_scale_2", False), ("weight_global_scale", True)):
            whole = f"{self.name}.{name}"
            if whole in self.source:
                scale = self.source.tensor(whole).float().reshape(())
                return 1 / scale if divides else scale
        return torch.tensor(1.0)

    def _bytes(self) -> torch.Tensor:
        values = self.source.tensor(self.codes).float()
        factors = self._factors()
        if factors.numel() == 1:
            return values * factors.reshape(())
        rows, columns = values.shape
        if factors.ndim == 1:
            factors = factors[:, None]
        if factors.ndim == 4:  # ModelOpt keeps the blocks' own axes
            factors = factors[:, 0, :, 0]
        down, across = self._block(rows, factors.shape[0]), self._block(columns, factors.shape[1])
        spread = factors.repeat_interleave(down, 0)[:rows].repeat_interleave(across, 1)
        return values * spread[:, :columns]

    def _block(self, size: int, count: int) -> int:
        """How many of `size` numbers share one of `count` scales."""
        if count == 1:
            return size
        for block in (*_sizes(self.source.document("config.json")), 128, 32, 1):
            if -(-size // block) == count:
                return block
        raise UnsupportedError(
            "how a weight's blocks lie is not known",
            id="transformers.scale",
            tensor=self.scales,
            expected="a scale for the tensor, a row, or a block of 128 or of weight_block_size",
            found=f"{count} scales for {size}",
        )

    def tensors(self) -> dict[str, torch.Tensor]:
        """All tensors of the module as the checkpoint has them, its bias aside."""
        names = {self.codes, *(f"{self.name}.{part}" for part in PARTS)}
        return {name: self.source.tensor(name) for name in sorted(names) if name in self.source}


def _sizes(config: dict[str, Any]) -> Iterator[int]:
    """The sizes of blocks that a configuration names, wherever it does."""
    for key, value in config.items():
        if key in ("weight_block_size", "block_structure") and isinstance(value, list):
            yield from (size for size in value if isinstance(size, int) and size > 0)
        elif isinstance(value, dict):
            yield from _sizes(value)


def _scales_of(source: Source, name: str) -> str:
    """The scales of the codes in tensor `name`; empty when these are plain numbers."""
    module, _, part = name.rpartition(".")
    kind = source.dtype(name)
    fp4 = part in ("weight", "weight_packed") and kind in CODES
    numbers = part == "weight" and kind in BYTES
    for scale in ("weight_scale", "weight_scale_inv", "scale") if fp4 or numbers else ():
        found = source.dtype(f"{module}.{scale}")
        if found in ("F8_E4M3", *EXPONENTS) or (found in FLOATS and numbers):
            return f"{module}.{scale}"
    return ""


def find_linears(source: Source, expert_prefixes: list[str]) -> list[QuantizedLinear]:
    """Quantized modules that belong to none of these experts. All scales must be theirs."""
    inside = tuple(expert_prefixes)
    names = [name for name in source.names() if not name.startswith(inside)]
    linears = [
        QuantizedLinear(name.rpartition(".")[0], name, scales, source)
        for name in names
        if (scales := _scales_of(source, name))
    ]
    for name in names:
        if name.endswith((".weight", "weight_packed", "qweight")) and not _is_plain(source, name):
            if not any(linear.codes == name for linear in linears):
                raise _unread(name, source.dtype(name))
    return linears


def _is_plain(source: Source, name: str) -> bool:
    return source.dtype(name) in (*FLOATS, "F64")


def check_transforms(stored: dict[str, Any] | None) -> None:
    """Refuse a compressed-tensors configuration that rotates activations when the model runs."""
    transforms = (stored or {}).get("transform_config")
    groups = transforms.get("config_groups") if isinstance(transforms, dict) else None
    for group in groups.values() if isinstance(groups, dict) else ():
        for one in (group.get("apply") or ()) if isinstance(group, dict) else ():
            location = one.get("location") if isinstance(one, dict) else None
            if location not in FOLDED:
                raise UnsupportedError(
                    "modules outside the experts are behind a transform when the model runs",
                    id="transformers.scale",
                    expected="transforms that are folded into the weights",
                    found=f"transform_config with location {location!r}",
                    remedy="take a checkpoint without such transforms",
                )


def check_quark(stored: dict[str, Any] | None, linears: list[QuantizedLinear]) -> None:
    """Refuse FP4 modules whose block scales Quark wrote in another format than they are read in."""
    if not stored or stored.get("quant_method") != "quark":
        return
    for linear in linears:
        blocks = _quark_blocks(stored, linear.name)
        if not linear.is_fp4() or blocks is None:
            continue
        is_mx = linear.source.dtype(linear.scales) in EXPONENTS
        written = str(blocks.get("scale_format") or "")
        numbers = str(blocks.get("scale_type") or "float")
        formats = ("", "e8m0") if is_mx else ("", "float32", "e4m3")
        if written not in formats or not (numbers == "float" or numbers.startswith("float32")):
            found = f"scale_format {written!r}, scale_type {numbers!r}"
            raise _unread(linear.scales, found)


def _quark_blocks(stored: dict[str, Any], module: str) -> dict[str, Any] | None:
    """How Quark's configuration says a module's blocks are quantized; None where it does not."""
    layers = stored.get("layer_quant_config") or {}
    schemes = [scheme for pattern, scheme in layers.items() if _is_named(pattern, module)]
    weight = ((*schemes, stored.get("global_quant_config"))[0] or {}).get("weight")
    first = weight[0] if isinstance(weight, list) and weight else weight
    return first if isinstance(first, dict) else None


def _is_named(pattern: str, module: str) -> bool:
    if pattern.startswith("re:"):
        return re.match(pattern[3:], module) is not None
    return fnmatch.fnmatchcase(module, pattern)


def _unread(name: str, found: str) -> UnsupportedError:
    return UnsupportedError(
        "a quantized tensor outside the experts is of no kind that is dequantized here",
        id="transformers.scale",
        tensor=name,
        expected="FP4 or FP8 with scales, or full precision",
        found=found,
    )


class Names:
    """A checkpoint's names as the model has them: transformers renames some when it loads."""

    def __init__(self, model: Any) -> None:
        self._state = {name: None for name in model.state_dict()}
        self._prefix = model.base_model_prefix
        self._renamings = [
            entry
            for entry in get_model_conversion_mapping(model)
            if isinstance(entry, WeightRenaming)
        ]

    def has(self, name: str) -> bool:
        """Whether the model has a tensor for this one."""
        return self(name) in self._state

    def __call__(self, name: str) -> str:
        """The model's name for a tensor of the checkpoint."""
        if name in self._state:
            return name
        return str(rename_source_key(name, self._renamings, [], self._prefix, self._state)[0])


def check_scales(
    source: Source, linears: list[QuantizedLinear], expert_prefixes: list[str], names: Names
) -> None:
    """Refuse scales and other parts that no code applies: numbers would differ from the writer's."""
    taken = {name for linear in linears for name in linear.tensors()}
    inside = tuple(expert_prefixes)
    for name in source.names():
        part = name.rpartition(".")[2]
        changes = any(word in part for word in CHANGING)
        if not changes and not any(word in name for word in CHANGING_MODULES):
            continue
        if part in ACTIVATIONS or name in taken or name.startswith(inside) or names.has(name):
            continue
        raise _unread(name, f"{source.dtype(name)}, which nothing applies")


def take_weight(model: nn.Module, linear: QuantizedLinear, names: Names) -> tuple[str, nn.Linear]:
    """The module in the model and its name, without a weight until it is dequantized."""
    name = names(f"{linear.name}.weight").removesuffix(".weight")
    module = dict(model.named_modules()).get(name)
    if not isinstance(module, nn.Linear):
        raise UnsupportedError(
            "a quantized tensor outside the experts belongs to no linear module of the model",
            id="transformers.linear",
            tensor=linear.codes,
            expected="a module of type Linear",
            found="none" if module is None else type(module).__name__,
        )
    module.register_parameter("weight", None)
    module._is_hf_initialized = True  # type: ignore[assignment]
    return name, module


def ignored_keys(names: Iterable[str]) -> set[str]:
    """Patterns of the names that transformers is not to look for a place for."""
    parts = "|".join(("weight", *PARTS))
    return {rf"(^|\.){re.escape(name)}\.({parts})$" for name in names}
