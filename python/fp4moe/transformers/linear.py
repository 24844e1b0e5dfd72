"""Linear modules outside the experts that are quantized, too: they are dequantized when loaded.

NVFP4 checkpoints often have attention in FP4, mixed ones in FP8. Such weights are a few per cent of
a MoE model, and transformers multiplies by them itself, so they become ordinary weights in the
model's type. What is saved is what was read.

    FP4    weight = e2m1(code) * block scale * global scale (NVFP4's alone)
    FP8    weight = code * scale, one for the tensor, a row, a column, or a block
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightRenaming, rename_source_key

from fp4moe.errors import InvalidInputError, UnsupportedError
from fp4moe.transformers.source import Source

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)

CODES = ("U8", "I8", "F4")
BYTES = ("F8_E4M3", "F8_E5M2", "I8")  # a number each
EXPONENTS = ("U8", "F8_E8M0")
FLOATS = ("BF16", "F16", "F32")
BLOCKS = {"F8_E4M3": 16, "U8": 32, "F8_E8M0": 32}  # scales of FP4: how many numbers share one
# NVFP4's global scales, by the codes that they stand beside; some tools divide by them.
GLOBALS = {"weight": "weight_scale_2", "weight_packed": "weight_global_scale"}
DIVIDING = ("weight_packed",)

# Words of tensors by which quantizers change what codes stand for: in a name's last part, or in
# any, where they are modules of their own.
CHANGING = ("scale", "zero_point", "zeros", "g_idx", "perm")
CHANGING_MODULES = ("lora", "hadamard", "rotation")

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

    def has_exponents(self) -> bool:
        """Whether its scales are powers of two (E8M0), and no numbers."""
        return self.source.dtype(self.scales) in EXPONENTS

    def applied(self) -> set[str]:
        """The tensors that its weights are made of; others of its parts change nothing."""
        return {self.codes, self.scales, self._global_name()}

    def check(self, module: nn.Linear) -> None:
        """Refuse tensors of other shapes than the weights of this module of the model ask for."""
        if module.weight is None:
            raise unread(self.codes, "a second weight of its module")
        rows, columns = module.weight.shape
        shape = self.source.shape(self.codes)
        packed = 2 if self.is_fp4() and self.source.dtype(self.codes) != "F4" else 1
        if shape != (rows, columns // packed) or columns % packed:
            raise InvalidInputError(
                "model and checkpoint do not agree on the shape of a weight",
                id="transformers.shape",
                tensor=self.codes,
                expected=f"[{rows}, {columns}], as the model's code has it",
                found=f"{self.source.dtype(self.codes)} {list(shape)}"
                f"{', two FP4 numbers a byte' if packed == 2 else ''}",
            )
        if self.is_fp4():
            self._check_fp4(rows, columns)
        else:
            self._block()

    def _check_fp4(self, rows: int, columns: int) -> None:
        block = BLOCKS[self.source.dtype(self.scales)]
        if columns % block or self.source.shape(self.scales) != (rows, columns // block):
            expected = f"[{rows}, {columns // block}], a scale for {block} numbers of a row"
            raise self._unknown_blocks(expected)
        if name := self._global_name():
            dtype, shape = self.source.dtype(name), self.source.shape(name)
            if dtype not in FLOATS or math.prod(shape) != 1:
                raise unread(name, f"{dtype} {list(shape)}, which is no global scale")

    def _has_float_scales(self) -> bool:
        return self.source.dtype(self.scales) in FLOATS

    def _factors(self) -> torch.Tensor:
        scales = self.source.tensor(self.scales)
        if self.has_exponents():
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

    def _global_name(self) -> str:
        """The tensor of NVFP4's global scale, which must be there; empty where there is none."""
        if not self.is_fp4() or self.has_exponents():
            return ""
        part = GLOBALS[self._part()]
        if f"{self.name}.{part}" not in self.source:
            raise unread(self.scales, f"{self.source.dtype(self.scales)} without {part}")
        return f"{self.name}.{part}"

    def _global(self) -> torch.Tensor:
        name = self._global_name()
        if not name:
            return torch.tensor(1.0)
        scale = self.source.tensor(name).float().reshape(())
        return 1 / scale if self._part() in DIVIDING else scale

    def _part(self) -> str:
        return self.codes.rpartition(".")[2]

    def _bytes(self) -> torch.Tensor:
        values = self.source.tensor(self.codes).float()
        factors = self._factors()
        if factors.numel() == 1:
            return values * factors.reshape(())
        rows, columns = values.shape
        down, across = self._block()
        spread = factors.reshape(self._grid()).repeat_interleave(down, 0)[:rows]
        return values * spread.repeat_interleave(across, 1)[:, :columns]

    def _grid(self) -> tuple[int, int]:
        """How many scales of bytes lie down the rows, and how many across the columns."""
        rows = self.source.shape(self.codes)[0]
        shape = self.source.shape(self.scales)
        if math.prod(shape) == 1:
            return 1, 1
        if shape == (rows,):
            return rows, 1
        if len(shape) == 4 and shape[1] == shape[3] == 1:  # ModelOpt keeps the blocks' own axes
            return shape[0], shape[2]
        if len(shape) == 2:
            return shape[0], shape[1]
        raise self._unknown_blocks()

    def _block(self) -> tuple[int, int]:
        """How many rows and columns of bytes share a scale."""
        rows, columns = self.source.shape(self.codes)
        grid = self._grid()
        if grid in ((1, 1), (rows, 1), (1, columns)):
            return rows // grid[0], columns // grid[1]
        return self._side(rows, grid[0]), self._side(columns, grid[1])

    def _side(self, size: int, count: int) -> int:
        """How many of `size` numbers share one of `count` scales of blocks."""
        for block in (*_sizes(self.source.document("config.json")), 128, 32, 1):
            if -(-size // block) == count:
                return min(block, size)
        raise self._unknown_blocks()

    def _unknown_blocks(self, expected: str = "") -> UnsupportedError:
        shapes = (list(self.source.shape(name)) for name in (self.scales, self.codes))
        return UnsupportedError(
            "how a weight's blocks lie is not known",
            id="transformers.scale",
            tensor=self.scales,
            expected=expected
            or "a scale for the tensor, a row, or a block of 128 or of weight_block_size",
            found="scales {} for {}".format(*shapes),
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
    codes = {linear.name: linear.codes for linear in linears}
    for name in names:
        if not name.endswith((".weight", "weight_packed", "qweight")):
            continue
        own = codes.get(name.rpartition(".")[0])
        if own is None and not _is_plain(source, name):
            raise unread(name, source.dtype(name))
        if own is not None and own != name:
            raise unread(name, f"{source.dtype(name)} beside {own}")
    return linears


def _is_plain(source: Source, name: str) -> bool:
    return source.dtype(name) in (*FLOATS, "F64")


def unread(name: str, found: str) -> UnsupportedError:
    """A tensor, or what a configuration says of it, that is dequantized nowhere."""
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
    taken = {name for linear in linears for name in linear.applied()}
    inside = tuple(expert_prefixes)
    for name in source.names():
        part = name.rpartition(".")[2]
        changes = any(word in part for word in CHANGING)
        if not changes and not any(word in name for word in CHANGING_MODULES):
            continue
        if part in ACTIVATIONS or name in taken or name.startswith(inside) or names.has(name):
            continue
        raise unread(name, f"{source.dtype(name)}, which nothing applies")


def module_of(model: nn.Module, linear: QuantizedLinear, names: Names) -> tuple[str, nn.Linear]:
    """The name of the module in the model, and the module."""
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
    return name, module


def take_weight(module: nn.Linear) -> None:
    """Leave a module without a weight until it is dequantized."""
    module.register_parameter("weight", None)
    module._is_hf_initialized = True  # type: ignore[assignment]


def ignored_keys(names: Iterable[str]) -> set[str]:
    """Patterns of the names that transformers is not to look for a place for."""
    parts = "|".join(("weight", *PARTS))
    return {rf"(^|\.){re.escape(name)}\.({parts})$" for name in names}
