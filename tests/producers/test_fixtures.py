"""Checkpoints that other people's tools wrote, through every command.

testdata/producers/manifest.json says which tool made a checkpoint and what must come of it. Values
are compared with numpy's: codes and scales are decoded here by the formats' definitions, in the
places where the tool's own code puts them. FP4MOE_PROGRAM is the program.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import checks
import cut
import numpy as np
import pytest
from numbers_of_fp4 import bf16, decode, gated, mixed

DATA = Path(__file__).resolve().parents[2] / "testdata" / "producers"
ROWS = json.loads((DATA / "manifest.json").read_text())["checkpoints"]
READ = [row for row in ROWS if "refused" not in row]

Tensors = dict[str, tuple[str, list[int], bytes]]


def number(row: dict[str, Any]) -> str:
    """A test's name."""
    return str(row["path"])


@pytest.mark.parametrize("row", ROWS, ids=number)
def test_inspect_and_lint(row: dict[str, Any]) -> None:
    (checks.refuse if "refused" in row else checks.inspect_and_lint)(DATA / row["path"], row)


@pytest.mark.parametrize("row", READ, ids=number)
def test_transcode_there_and_back(row: dict[str, Any], tmp_path: Path) -> None:
    checks.there_and_back(DATA / row["path"], row, tmp_path)


@pytest.mark.parametrize("row", READ, ids=number)
def test_convert_and_unconvert(row: dict[str, Any], tmp_path: Path) -> None:
    checks.convert_and_unconvert(DATA / row["path"], row, tmp_path)


def array(tensor: tuple[str, list[int], bytes]) -> np.ndarray:
    """A tensor's numbers in float64, its codes where they are bytes."""
    dtype, shape, data = tensor
    if dtype in ("U8", "I8", "F8_E4M3"):
        return np.frombuffer(data, np.uint8).reshape(shape)
    if dtype == "BF16":
        return (
            (np.frombuffer(data, np.uint16).astype(np.uint32) << 16)
            .view(np.float32)
            .astype(np.float64)
            .reshape(shape)
        )
    return np.frombuffer(data, np.float32).astype(np.float64).reshape(shape)


def matrix(tensors: Tensors, stem: str, expert: int) -> tuple[np.ndarray, np.ndarray]:
    """One weight and its bias, wherever the tool put them."""
    if stem in tensors:  # ModelOpt's columns
        codes, scales = array(tensors[stem])[expert].T, array(tensors[f"{stem}_weight_scale"])
        factor = array(tensors[f"{stem}_weight_scale_2"]).item()
        values = decode(codes, scales[expert].T, True, factor)
        biases = tensors.get(f"{stem}_bias")
        return values, array(biases)[expert] if biases else np.zeros(len(values))
    codes = array(tensors.get(f"{stem}.weight_packed") or tensors[f"{stem}.weight"])
    kind, _, _ = tensors[f"{stem}.weight_scale"]
    factor = 1.0
    if f"{stem}.weight_scale_2" in tensors:
        factor = array(tensors[f"{stem}.weight_scale_2"]).item()
    if f"{stem}.weight_global_scale" in tensors:
        factor = 1 / np.float32(array(tensors[f"{stem}.weight_global_scale"]).item())
    values = decode(codes, array(tensors[f"{stem}.weight_scale"]), kind == "F8_E4M3", factor)
    bias = tensors.get(f"{stem}.bias")
    return values, array(bias) if bias else np.zeros(len(values))


def expert_output(
    tensors: Tensors, prefix: str, expert: int, x: np.ndarray, model: str
) -> np.ndarray:
    """What an expert makes of tokens, by its model's formulas."""
    own = f"{prefix}experts.{expert}."
    stem = own if any(name.startswith(own) for name in tensors) else f"{prefix}experts."
    names = {name[len(stem) :].split(".")[0].split("_proj")[0] for name in tensors}

    def product(part: str, by: np.ndarray) -> np.ndarray:
        weight, bias = matrix(tensors, f"{stem}{part}_proj", expert)
        return np.asarray(by @ weight.T + bias)

    if "gate_up" not in names and "gate" not in names:
        return product("down", np.maximum(product("up", x), 0) ** 2)
    if "gate_up" in names:
        both = product("gate_up", x)
        half = both.shape[1] // 2
        turns = model == "gpt_oss"
        gate, up = (both[:, ::2], both[:, 1::2]) if turns else (both[:, :half], both[:, half:])
    else:
        gate, up = product("gate", x), product("up", x)
    return product("down", gated(gate, up, model))


@pytest.mark.parametrize("row", [row for row in READ if row["dialect"] != "gguf"], ids=number)
def test_run_gives_numpys_numbers(row: dict[str, Any], tmp_path: Path) -> None:
    path = DATA / row["path"]
    tensors = cut.read(path / "model.safetensors")
    prefix = next(name for name in sorted(tensors) if ".experts." in name).split("experts.")[0]
    hidden = int(row["hidden"])
    x = bf16(np.random.default_rng(3).standard_normal((5, hidden)))
    ids = np.array([[0, 1], [1, 0], [0, 1], [1, 0], [0, 1]], np.int32)
    weights = np.array([[0.75, 0.25]] * 5, np.float32)
    exact = x.astype(np.float64)
    if row["model"] == "llama4_text":  # one expert, its weight on the input
        ids, weights = ids[:, :1].copy(), np.full((5, 1), 0.5, np.float32)
    cut.write(
        tmp_path / "x.safetensors",
        {
            "hidden_states": ("F32", [5, hidden], x.tobytes()),
            "topk_ids": ("I32", [*ids.shape], ids.tobytes()),
            "topk_weights": ("F32", [*ids.shape], weights.tobytes()),
        },
    )
    out = tmp_path / "out.safetensors"
    words = ("--numerics", "exact", "--engine", "reference", "--input", tmp_path / "x.safetensors")
    checks.report("run", path, *words, "-o", out)
    (found,) = (array(tensor) for name, tensor in cut.read(out).items() if "topk" not in name)
    if row["model"] == "llama4_text":
        exact, weights = exact * weights, np.ones_like(weights)
    outputs = [expert_output(tensors, prefix, expert, exact, row["model"]) for expert in (0, 1)]
    wanted = mixed(outputs, ids, weights)
    assert np.linalg.norm(found - wanted) / np.linalg.norm(wanted) < 2e-6
