"""Loaded tensors of small layers, as vLLM's loaders would leave them, and where files keep them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from conftest import synth

EXPERTS, HIDDEN, INTERMEDIATE = 4, 160, 96


def read_tensors(path: Path) -> dict[str, tuple[str, list[int], bytes]]:
    """Every tensor of a safetensors file: type, shape, bytes."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    return {
        name: (
            entry["dtype"],
            entry["shape"],
            data[8 + size + entry["data_offsets"][0] : 8 + size + entry["data_offsets"][1]],
        )
        for name, entry in header.items()
    }


def gpt_oss(folder: Path) -> dict[str, np.ndarray]:
    """A gpt-oss checkpoint, and its tensors by vLLM's names; biases as float32."""
    synth(
        folder, "--model", "gpt-oss-20b", "--layers", 1, "--experts", EXPERTS, "--hidden", HIDDEN,
        "--intermediate", INTERMEDIATE,
    )
    found = {
        name.split("experts.")[1]: value
        for name, value in read_tensors(folder / "model.safetensors").items()
        if "experts." in name
    }

    def bytes_of(name: str, *shape: int) -> np.ndarray:
        return np.frombuffer(found[name][2], np.uint8).reshape(EXPERTS, *shape).copy()

    def bias(name: str) -> np.ndarray:
        bits = np.frombuffer(found[name][2], np.uint16).astype(np.uint32) << 16
        return bits.view(np.float32).reshape(EXPERTS, -1)

    rows = 2 * INTERMEDIATE
    return {
        "w13_weight": bytes_of("gate_up_proj_blocks", rows, HIDDEN // 2),
        "w2_weight": bytes_of("down_proj_blocks", HIDDEN, INTERMEDIATE // 2),
        "w13_weight_scale": bytes_of("gate_up_proj_scales", rows, HIDDEN // 32),
        "w2_weight_scale": bytes_of("down_proj_scales", HIDDEN, INTERMEDIATE // 32),
        "w13_bias": bias("gate_up_proj_bias"),
        "w2_bias": bias("down_proj_bias"),
    }


def nvfp4_layer(experts: int = 3, hidden: int = 256, intermediate: int = 64, seed: int = 1) -> dict[str, np.ndarray]:
    """Random NVFP4 tensors by the names of vLLM's conversion."""
    rng = np.random.default_rng(seed)
    scale = lambda *shape: rng.integers(0x40, 0x60, shape, np.uint8)  # noqa: E731
    codes = lambda *shape: rng.integers(0, 256, shape, np.uint8)  # noqa: E731
    factor = lambda *shape: (1 + rng.random(shape, np.float32)) * np.float32(0.001)  # noqa: E731
    return {
        "w13": codes(experts, 2 * intermediate, hidden // 2),
        "w13_scale": scale(experts, 2 * intermediate, hidden // 16),
        "w13_scale_2": factor(experts),
        "a13_scale": factor(experts, 2),
        "w2": codes(experts, hidden, intermediate // 2),
        "w2_scale": scale(experts, hidden, intermediate // 16),
        "w2_scale_2": factor(experts),
        "a2_scale": factor(experts),
    }
