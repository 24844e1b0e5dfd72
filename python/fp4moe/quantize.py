"""Arrays to MXFP4 and NVFP4 blocks and back, bit for bit as the checkpoints of the formats' users.

>>> import numpy, fp4moe
>>> q = fp4moe.quantize(numpy.ones((2, 64), numpy.float32), "mxfp4")
>>> q.codes.shape, q.scales.shape, float(q.dequantize()[0, 0])
((2, 32), (2, 2), 1.0)
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from fp4moe import _core

BLOCKS = {"mxfp4": 32, "nvfp4": 16}


def _is_torch(array: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def _rows(array: Any, what: str) -> Any:
    """The array as rows, without a copy where it lies so."""
    if not hasattr(array, "shape") or not hasattr(array, "reshape"):
        raise TypeError(f"{what}: expected an array (numpy or torch), found {type(array).__name__}")
    if len(array.shape) == 0:
        raise TypeError(f"{what}: expected an array of at least 1 dimension, found a number")
    columns = int(array.shape[-1])
    rows = 1
    for size in array.shape[:-1]:
        rows *= int(size)
    return array.reshape((rows, columns))


def _empty(like: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    if _is_torch(like):
        return like.new_empty(
            shape, dtype=getattr(sys.modules["torch"], dtype) if isinstance(dtype, str) else dtype
        )
    return np.empty(shape, dtype)


@dataclass(frozen=True, eq=False)
class Quantized:
    """An array in FP4: codes [..., K / 2], two to a byte, and a scale byte for each block.

    ``global_scale`` is what NVFP4's values were multiplied by: value = e2m1 * e4m3 / global_scale.
    It is what compressed-tensors stores as weight_global_scale; ModelOpt's weight_scale_2 is its
    reciprocal.
    """

    codes: Any  # uint8 [..., K / 2], two codes to a byte, the even one low
    scales: Any  # uint8 [..., K / block]: E8M0 (mxfp4) or E4M3 (nvfp4)
    global_scale: float  # 1 for mxfp4
    format: str  # "mxfp4" or "nvfp4"
    shape: tuple[int, ...]  # of the values

    @property
    def block(self) -> int:
        """How many values share a scale."""
        return BLOCKS[self.format]

    @property
    def nbytes(self) -> int:
        """The bytes of codes and scales."""
        return int(np.prod(self.shape)) // 2 + int(np.prod(self.shape)) // self.block

    def dequantize(self, dtype: Any = None, out: Any = None) -> Any:
        """The values as float32 or another type of 16 or 32 bits, of the kind of the codes."""
        return dequantize(
            self.codes,
            self.scales,
            self.format,
            global_scale=self.global_scale,
            dtype=dtype,
            out=out,
        )


def quantize(
    array: Any, format: str = "mxfp4", *, rule: str = "", global_scale: float | None = None
) -> Quantized:
    """Quantize the rows (the last dimension) of an array of float32, float16 or bfloat16.

    ``rule`` is one of ``fp4moe.quantize_rules(format)``, by default the one that checkpoints are
    written with. NVFP4's global scale is that of the array unless it is given. NaN and infinity
    are refused.
    """
    rows = _rows(array, "array")
    block = BLOCKS.get(format, 1)
    lead = tuple(int(size) for size in array.shape[:-1])
    count, columns = int(rows.shape[0]), int(rows.shape[1])
    codes = _empty(array, (count, columns // 2), "uint8")
    scales = _empty(array, (count, columns // block), "uint8")
    found = _core.quantize(rows, codes, scales, format, rule, global_scale)
    return Quantized(
        codes.reshape((*lead, columns // 2)),
        scales.reshape((*lead, columns // block)),
        found,
        format,
        (*lead, columns),
    )


def dequantize(
    codes: Any,
    scales: Any,
    format: str = "mxfp4",
    *,
    global_scale: float = 1.0,
    dtype: Any = None,
    out: Any = None,
) -> Any:
    """The values of codes and scales; a NaN scale gives NaN. ``out`` is filled and returned."""
    code_rows, scale_rows = _rows(codes, "codes"), _rows(scales, "scales")
    shape = (*(int(size) for size in codes.shape[:-1]), int(codes.shape[-1]) * 2)
    result = _empty(codes, shape, dtype or "float32") if out is None else out
    if tuple(result.shape) != shape:
        raise ValueError(f"out: expected shape {shape}, found {tuple(result.shape)}")
    flat = _rows(result, "out")
    if out is not None and len(shape) != 2 and not _same_memory(flat, result):
        raise ValueError("out: expected an array without gaps")
    _core.dequantize(code_rows, scale_rows, float(global_scale), format, flat)
    return result


def _same_memory(a: Any, b: Any) -> bool:
    if _is_torch(a):
        return bool(a.data_ptr() == b.data_ptr())
    return bool(np.shares_memory(a, b))


def quantize_rules(format: str) -> list[str]:
    """The names of a format's rounding rules."""
    return _core.quantize_rules(format)
