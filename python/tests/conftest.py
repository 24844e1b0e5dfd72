"""Tiny checkpoints, and what their layers compute by the formats' definitions, in numpy."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from fp4moe import cli

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
HIDDEN, INTERMEDIATE, EXPERTS, TOP_K = 64, 96, 8, 4


def synth(folder: Path, *words: object) -> Path:
    """Make a checkpoint; `words` are options of `fp4moe synth`."""
    outcome = cli.call(["synth", *map(str, words), "-o", str(folder)])
    assert outcome.status == 0, outcome.err
    return folder


def tokens(count: int, hidden: int = HIDDEN, seed: int = 0) -> np.ndarray:
    """Random tokens that bf16 holds exactly."""
    values = np.random.default_rng(seed).standard_normal((count, hidden), np.float32)
    return (values.view(np.uint32) & 0xFFFF0000).view(np.float32)


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """Tensors of one file; bf16 as uint16."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    types = {"U8": np.uint8, "BF16": np.uint16, "F32": np.float32, "F8_E4M3": np.uint8}
    result = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = (8 + size + at for at in entry["data_offsets"])
            result[name] = np.frombuffer(data[begin:end], types[entry["dtype"]]).reshape(
                entry["shape"]
            )
    return result


def from_bf16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def mxfp4(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """[..., blocks, 16] bytes and [..., blocks] scales as numbers [..., blocks * 32]."""
    codes = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*blocks.shape[:-1], 32)
    values = E2M1[codes & 7] * np.where(codes >= 8, -1.0, 1.0)
    values = values * np.exp2(scales.astype(np.float64) - 127)[..., None]
    return values.reshape(*blocks.shape[:-2], -1)


@dataclass
class GptOss:
    """A gpt-oss layer in float64, from its checkpoint's bytes."""

    path: Path
    gate_up: np.ndarray
    gate_up_bias: np.ndarray
    down: np.ndarray
    down_bias: np.ndarray

    @classmethod
    def read(cls, path: Path) -> GptOss:
        tensors = read_safetensors(path / "model.safetensors")
        part = {name.split("experts.")[1]: t for name, t in tensors.items() if "experts." in name}
        return cls(
            path,
            mxfp4(part["gate_up_proj_blocks"], part["gate_up_proj_scales"]),
            from_bf16(part["gate_up_proj_bias"]),
            mxfp4(part["down_proj_blocks"], part["down_proj_scales"]),
            from_bf16(part["down_proj_bias"]),
        )

    def apply(self, x: np.ndarray, ids: np.ndarray, weights: np.ndarray) -> np.ndarray:
        out = np.zeros((len(x), self.down.shape[1]))
        for token, row in enumerate(np.asarray(x, np.float64)):
            for expert, weight in zip(ids[token], weights[token]):
                if expert < 0:
                    continue
                both = self.gate_up[expert] @ row + self.gate_up_bias[expert]
                gate, up = np.minimum(both[0::2], 7), np.clip(both[1::2], -7, 7)
                middle = (up + 1) * gate / (1 + np.exp(-1.702 * gate))
                out[token] += float(weight) * (self.down[expert] @ middle + self.down_bias[expert])
        return out

    def run(self, x: np.ndarray, logits: np.ndarray) -> np.ndarray:
        return self.apply(x, *route(logits))


def route(logits: np.ndarray, top_k: int = TOP_K) -> tuple[np.ndarray, np.ndarray]:
    ids = np.argsort(-np.asarray(logits, np.float64), axis=1, kind="stable")[:, :top_k]
    chosen = np.take_along_axis(np.asarray(logits, np.float64), ids, 1)
    weights = np.exp(chosen - chosen.max(1, keepdims=True))
    return ids.astype(np.int32), (weights / weights.sum(1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synth(
        tmp_path_factory.mktemp("models") / "gpt-oss", "--model", "gpt-oss-20b", "--layers", 2,
        "--experts", EXPERTS, "--hidden", HIDDEN, "--intermediate", INTERMEDIATE,
    )


@pytest.fixture(scope="session")
def witness(tmp_path_factory: pytest.TempPathFactory) -> GptOss:
    """A one-layer checkpoint and the same in float64."""
    return GptOss.read(
        synth(
            tmp_path_factory.mktemp("models") / "witness", "--model", "gpt-oss-20b", "--experts",
            EXPERTS, "--hidden", HIDDEN, "--intermediate", INTERMEDIATE,
        )
    )
