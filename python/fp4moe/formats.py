"""The number formats of FP4 models, code by code: values of codes, and codes of values.

>>> import fp4moe.formats as formats
>>> formats.e2m1.decode([1, 7, 15]).tolist()
[0.5, 6.0, -6.0]
>>> formats.e8m0.encode([1.0, 1.5]).tolist()
[127, 128]
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt

from fp4moe import _core

Floats = npt.NDArray[np.float32]
Codes = npt.NDArray[Any]


class Format:
    """A number format of at most 16 bits; its codes are numpy integers."""

    def __init__(self, name: str, bits: int) -> None:
        self.name = name
        self.bits = bits
        self.code_type: np.dtype[Any] = np.dtype(np.uint8 if bits <= 8 else np.uint16)

    @functools.cached_property
    def values(self) -> Floats:
        """The value of every code, in their order; read-only."""
        return np.frombuffer(_core.format_values(self.name), np.float32)

    @functools.cached_property
    def roundings(self) -> list[str]:
        """The names that ``encode`` takes, the usual one first."""
        return _core.format_roundings(self.name)

    def decode(self, codes: npt.ArrayLike) -> Floats:
        """The values of codes, an array of any shape."""
        given = np.asarray(codes)
        if given.dtype.kind not in "ui" or given.dtype.names is not None:
            raise TypeError(f"codes: expected integers, found {given.dtype}")
        if given.size and (int(given.max()) >= self.values.size or int(given.min()) < 0):
            raise ValueError(
                f"codes: expected 0 to {self.values.size - 1}, "
                f"found {int(given.min())} to {int(given.max())}"
            )
        decoded: Floats = self.values[given]
        return decoded

    def encode(self, values: npt.ArrayLike, rounding: str | None = None) -> Codes:
        """The codes of values, which count as float32, an array of any shape."""
        given = np.ascontiguousarray(values, np.float32)
        codes = np.empty(given.size, self.code_type)
        _core.encode(self.name, rounding or self.roundings[0], given.reshape(-1), codes)
        return codes.reshape(np.shape(values))

    def __repr__(self) -> str:
        return f"<fp4moe.formats.{self.name}>"


e2m1 = Format("e2m1", 4)
e8m0 = Format("e8m0", 8)
e4m3fn = Format("e4m3fn", 8)
e5m2 = Format("e5m2", 8)
bf16 = Format("bf16", 16)
e4m3 = e4m3fn


def pack(codes: npt.ArrayLike) -> npt.NDArray[np.uint8]:
    """Two 4-bit codes in a byte, the even one in the low nibble: [..., K] to [..., K / 2]."""
    given = np.asarray(codes)
    if given.dtype.kind not in "ui":
        raise TypeError(f"codes: expected integers, found {given.dtype}")
    if given.ndim == 0 or given.shape[-1] % 2:
        raise ValueError(f"codes: expected an even number in a row, found shape {given.shape}")
    if given.size and not 0 <= int(given.min()) <= int(given.max()) < 16:
        raise ValueError(f"codes: expected 0 to 15, found {int(given.min())} to {int(given.max())}")
    narrow = given.astype(np.uint8)
    packed: npt.NDArray[np.uint8] = narrow[..., 0::2] | narrow[..., 1::2] << np.uint8(4)
    return packed


def unpack(packed: npt.ArrayLike) -> npt.NDArray[np.uint8]:
    """The 4-bit codes of bytes: [..., K / 2] to [..., K]."""
    given = np.asarray(packed)
    if given.dtype != np.uint8 or given.ndim == 0:
        raise TypeError(
            f"packed: expected an array of uint8, found {given.dtype} of shape {given.shape}"
        )
    codes = np.empty((*given.shape[:-1], given.shape[-1] * 2), np.uint8)
    codes[..., 0::2] = given & 15
    codes[..., 1::2] = given >> np.uint8(4)
    return codes
