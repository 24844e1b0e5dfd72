"""Linear modules outside the experts that are FP4, too: they are dequantised when loaded.

NVFP4 checkpoints often have attention in FP4. Such weights are a few per cent of a MoE model, and
transformers multiplies by them itself, so they become ordinary weights in the model's type. What
is saved is what was read.

    weight = e2m1(code) * block scale * global scale
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from fp4moe.errors import UnsupportedError
from fp4moe.transformers.source import Source

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)

# What a quantised module has beside its codes; none of it is a parameter of the model.
PARTS = (
    "weight_packed",
    "weight_scale",
    "weight_scale_2",
    "weight_global_scale",
    "input_scale",
    "input_global_scale",
    "weight_shape",
    "k_scale",
    "v_scale",
    "output_scale",
)


@dataclass(frozen=True)
class Fp4Linear:
    """One such module: its name, and where its codes are."""

    name: str
    codes: str
    source: Source

    def dequantise(self) -> torch.Tensor:
        """The weights in float32, [out, in]."""
        codes = self.source.tensor(self.codes).view(torch.uint8)
        rows = codes.shape[0]
        table = torch.tensor(E2M1)
        values = torch.stack((table[(codes & 15).long()], table[(codes >> 4).long()]), -1)
        name = f"{self.name}.weight_scale"
        scales = self.source.tensor(name)
        if self.source.dtype(name) == "F8_E4M3":
            factors = scales.float()
        else:
            factors = torch.exp2(scales.view(torch.uint8).float() - 127)
        blocks = values.reshape(rows, factors.shape[1], -1) * factors[..., None]
        return blocks.reshape(rows, -1) * self._global()

    def _global(self) -> torch.Tensor:
        for name, divides in (("weight_scale_2", False), ("weight_global_scale", True)):
            whole = f"{self.name}.{name}"
            if whole in self.source:
                scale = self.source.tensor(whole).float().reshape(())
                return 1 / scale if divides else scale
        return torch.tensor(1.0)

    def tensors(self) -> dict[str, torch.Tensor]:
        """All tensors of the module as the checkpoint has them, its bias aside."""
        names = [self.codes, *(f"{self.name}.{part}" for part in PARTS)]
        return {name: self.source.tensor(name) for name in names if name in self.source}


def find_linears(source: Source, expert_prefixes: list[str]) -> Iterator[Fp4Linear]:
    """FP4 modules that belong to none of these experts."""
    inside = tuple(expert_prefixes)
    for name in source.names():
        if name.startswith(inside):
            continue
        module, _, part = name.rpartition(".")
        if part == "weight_packed":
            yield Fp4Linear(module, name, source)
        elif part == "weight" and source.dtype(name) in ("U8", "I8", "F4"):
            if f"{module}.weight_scale" in source:
                yield Fp4Linear(module, name, source)


def take_weight(model: nn.Module, linear: Fp4Linear) -> nn.Linear:
    """The module in the model, without a weight until it is dequantised."""
    module = dict(model.named_modules()).get(linear.name)
    if not isinstance(module, nn.Linear):
        raise UnsupportedError(
            "an FP4 tensor outside the experts belongs to no linear module of the model",
            id="transformers.linear",
            tensor=linear.codes,
            expected="a module of type Linear",
            found="none" if module is None else type(module).__name__,
        )
    module.register_parameter("weight", None)
    module._is_hf_initialized = True  # type: ignore[assignment]
    return module


def ignored_keys(linears: list[Fp4Linear]) -> set[str]:
    """Patterns of the names that transformers is not to look for a place for."""
    parts = "|".join(("weight", *PARTS))
    return {rf"(^|\.){re.escape(linear.name)}\.({parts})$" for linear in linears}
