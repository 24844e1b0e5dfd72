"""GGUF files with FP4 experts, as llama.cpp's converter and quantizer write them, without its package."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numbers_of_fp4 import Rule
from spellings import EXPERTS, HIDDEN, INTERMEDIATE, PARTS, Matrix, Tiny

F32, BF16, MXFP4, NVFP4 = 0, 30, 39, 40  # ggml's numbers of types
U32, FLOAT, BOOL, STRING = 4, 6, 7, 8  # of metadata
ALIGNMENT = 32

GgufTensor = tuple[int, list[int], bytes]  # type, extents with the row's first, bytes
Fields = dict[str, Any]


def nibbles(codes: np.ndarray, block: int) -> np.ndarray:
    """[rows, blocks, block / 2]: the first half of a block's codes in the low bits, the second above."""
    pairs = np.stack((codes & 15, codes >> 4), -1).reshape(codes.shape[0], -1, 2, block // 2)
    return np.asarray(pairs[:, :, 0] | pairs[:, :, 1] << 4)


def rows(matrix: Matrix) -> np.ndarray:
    """A matrix as ggml's blocks: MXFP4 has a scale and 32 codes, NVFP4 four scales and 64 codes."""
    count = matrix.codes.shape[0]
    if matrix.is_e4m3:
        packed = nibbles(matrix.codes, 16).reshape(count, -1, 32)
        whole = np.concatenate((matrix.scales.reshape(count, -1, 4), packed), 2)
    else:
        whole = np.concatenate((matrix.scales[:, :, None], nibbles(matrix.codes, 32)), 2)
    return whole.reshape(count, -1)


def value(item: Any) -> bytes:
    """A metadata value with its type in front."""
    if isinstance(item, bool):
        return struct.pack("<I?", BOOL, item)
    if isinstance(item, int):
        return struct.pack("<II", U32, item)
    if isinstance(item, float):
        return struct.pack("<If", FLOAT, item)
    return struct.pack("<I", STRING) + text(item)


def text(words: str) -> bytes:
    """A string."""
    return struct.pack("<Q", len(words)) + words.encode()


def write(path: Path, fields: Fields, tensors: dict[str, GgufTensor]) -> None:
    """One file of version 3."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(fields))
    head += b"".join(text(key) + value(item) for key, item in fields.items())
    body = b""
    for name, (kind, extents, data) in tensors.items():
        head += text(name) + struct.pack("<I", len(extents)) + struct.pack(f"<{len(extents)}Q", *extents)
        head += struct.pack("<IQ", kind, len(body))
        body += data + b"\0" * (-len(data) % ALIGNMENT)
    path.write_bytes(head + b"\0" * (-len(head) % ALIGNMENT) + body)


def experts(tiny: Tiny, layer: int, parts: tuple[str, ...]) -> tuple[int, list[int], bytes]:
    """The matrices of all experts, one above the other."""
    stacked = np.stack([np.concatenate([rows(expert[part]) for part in parts]) for expert in tiny.experts[layer]])
    sizes = tiny.experts[layer][0][parts[0]].codes
    extents = [sizes.shape[1] * 2, sizes.shape[0] * len(parts), EXPERTS]
    return NVFP4 if tiny.format == "nvfp4" else MXFP4, extents, stacked.tobytes()


def f32(numbers: np.ndarray) -> GgufTensor:
    """Floats."""
    numbers = np.asarray(numbers, np.float32)
    return F32, list(numbers.shape[::-1]), numbers.tobytes()


def tensors(tiny: Tiny, parts: tuple[str, ...] = PARTS, joined: bool = False, bias: np.ndarray | None = None) -> dict[str, GgufTensor]:
    """Experts and routers; `joined`: gate's rows and up's in one tensor."""
    result = {}
    for layer in tiny.layers:
        groups = {"gate_up": ("gate", "up"), "down": ("down",)} if joined else {part: (part,) for part in parts}
        for name, group in groups.items():
            stem = f"blk.{layer}.ffn_{name}_exps"
            result[f"{stem}.weight"] = experts(tiny, layer, group)
            if tiny.format == "nvfp4":
                result[f"{stem}.scale"] = f32(np.array([each[group[0]].factor for each in tiny.experts[layer]]))
        result[f"blk.{layer}.ffn_gate_inp.weight"] = f32(tiny.routers[layer])
        if bias is not None:
            result[f"blk.{layer}.exp_probs_b.bias"] = f32(bias)
    return result


def fields(architecture: str, **more: Any) -> Fields:
    """What every converter writes of such a model."""
    own = {"block_count": 1, "embedding_length": HIDDEN, "feed_forward_length": 256, "expert_feed_forward_length": INTERMEDIATE,
           "expert_count": EXPERTS, "expert_used_count": 2, **more}
    keys = {f"{architecture}.{key}": item for key, item in own.items() if item is not None}
    return {"general.architecture": architecture, "general.type": "model", "general.quantization_version": 2, **keys}


@dataclass
class GgufVariant:
    """A file and what must come of it."""

    name: str
    tiny: Tiny
    rule: Rule | None  # how its router chooses; None: not known here
    architecture: str
    more: Fields = field(default_factory=dict)
    parts: tuple[str, ...] = PARTS
    joined: bool = False
    bias: np.ndarray | None = None
    activation: str = "silu"
    no_rule: str = ""
    dialect: str = "gguf"
    refused: str = ""
    word: str = ""
    back: bool = False  # norms and metadata get other types

    def write(self, folder: Path) -> Path:
        """The file."""
        path = folder.with_suffix(".gguf")
        write(path, fields(self.architecture, **self.more), tensors(self.tiny, self.parts, self.joined, self.bias))
        return path

