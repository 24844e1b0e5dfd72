"""Tiny FP4 models whose numbers are known, and the ways in which dialects spell them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import cut
import numpy as np
from numbers_of_fp4 import Rule, bf16_bytes, decode

Tensor = tuple[str, list[int], bytes]
Tensors = dict[str, Tensor]
Config = dict[str, Any]

HIDDEN, INTERMEDIATE, EXPERTS = 128, 64, 4
BLOCK = {"mxfp4": 32, "nvfp4": 16}
PARTS = ("gate", "up", "down")
PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
NUMBERED = ("w1", "w3", "w2")
MLP = "model.layers.{}.mlp."


@dataclass
class Matrix:
    """FP4 weights: codes [rows, k / 2], scales [rows, k / block], and one factor."""

    codes: np.ndarray
    scales: np.ndarray
    factor: float
    is_e4m3: bool

    def values(self) -> np.ndarray:
        """What they stand for."""
        return decode(self.codes, self.scales, self.is_e4m3, self.factor)


Expert = dict[str, Matrix]


def matrix(dice: np.random.Generator, format_: str, rows: int, k: int, factor: float) -> Matrix:
    """Random weights."""
    is_e4m3 = format_ == "nvfp4"
    codes = dice.integers(0, 256, (rows, k // 2), np.uint8)
    low, high = (0x20, 0x40) if is_e4m3 else (118, 125)
    scales = dice.integers(low, high, (rows, k // BLOCK[format_]), np.uint8)
    return Matrix(codes, scales, factor if is_e4m3 else 1.0, is_e4m3)


@dataclass
class Tiny:
    """The numbers of a model."""

    format: str
    layers: tuple[int, ...] = (0,)
    one_factor: bool = False  # for all experts of a layer
    experts: dict[int, list[Expert]] = field(default_factory=dict)
    routers: dict[int, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        dice = np.random.default_rng(7)
        for layer in self.layers:
            self.experts[layer] = [self.expert(dice) for _ in range(EXPERTS)]
            self.routers[layer] = dice.standard_normal((EXPERTS, HIDDEN)) * 0.1

    def expert(self, dice: np.random.Generator) -> Expert:
        """Powers of two have exact reciprocals; gate and up share theirs."""
        first, last = (2.0 ** -int(n) for n in dice.integers(3, 7, 2))
        if self.one_factor:
            first, last = 0.125, 0.0625
        sizes = {"gate": (INTERMEDIATE, HIDDEN, first), "up": (INTERMEDIATE, HIDDEN, first), "down": (HIDDEN, INTERMEDIATE, last)}
        return {part: matrix(dice, self.format, *size) for part, size in sizes.items()}


def f32(value: Any, shape: list[int]) -> Tensor:
    """A tensor of equal or given numbers."""
    return "F32", shape, np.broadcast_to(np.asarray(value, np.float32), shape).tobytes()


def bf16(values: np.ndarray) -> Tensor:
    """A tensor in BF16."""
    return "BF16", list(values.shape), bf16_bytes(values)


def ones(*shape: int) -> Tensor:
    """Weights that no test looks at."""
    return bf16(np.ones(shape))


def raw(dtype: str, values: np.ndarray) -> Tensor:
    """A tensor of codes."""
    return dtype, list(values.shape), np.ascontiguousarray(values).tobytes()


@dataclass
class Style:
    """How experts are spelled one by one."""

    codes: str = ".weight"
    factor: str = ""
    divides: bool = False
    inputs: str = ""
    shape: tuple[int, ...] = ()  # of scalars
    scales: str = ".weight_scale"
    names: tuple[str, str, str] = PROJECTIONS
    prefix: str = MLP
    codes_dtype: str = "U8"
    scales_dtype: str = ""

    def but(self, **changes: Any) -> Style:
        """The same with some changes."""
        return replace(self, **changes)


COMPRESSED = {"nvfp4": Style(".weight_packed", ".weight_global_scale", True, "", (1,)), "mxfp4": Style(".weight_packed")}
MODELOPT = Style(factor=".weight_scale_2", inputs=".input_scale")
QUARK = {"nvfp4": Style(factor=".weight_scale_2"), "mxfp4": Style()}


def matrices(tiny: Tiny, style: Style) -> Iterator[tuple[str, Matrix]]:
    """Every matrix with the beginning of its tensors' names."""
    for layer in tiny.layers:
        for number, expert in enumerate(tiny.experts[layer]):
            for part, name in zip(PARTS, style.names):
                yield f"{style.prefix.format(layer)}experts.{number}.{name}", expert[part]


def single(tiny: Tiny, style: Style) -> Tensors:
    """A matrix per expert and projection, routers, and attention in BF16."""
    tensors: Tensors = {}
    scales_dtype = style.scales_dtype or {"nvfp4": "F8_E4M3", "mxfp4": "U8"}[tiny.format]
    shape = list(style.shape)
    for stem, each in matrices(tiny, style):
        tensors[stem + style.codes] = raw(style.codes_dtype, each.codes)
        tensors[stem + style.scales] = raw(scales_dtype, each.scales)
        if style.factor:
            tensors[stem + style.factor] = f32(1 / each.factor if style.divides else each.factor, shape)
        if style.inputs:
            tensors[stem + style.inputs] = f32(0.01, shape)
    for layer in tiny.layers:
        prefix = style.prefix.format(layer)
        tensors[f"{prefix}gate.weight"] = bf16(tiny.routers[layer])
        tensors[f"{prefix.rsplit('.', 2)[0]}.self_attn.q_proj.weight"] = ones(HIDDEN, HIDDEN)
    return tensors


def stacked(tiny: Tiny, part: str, turns: bool, down: bool) -> np.ndarray:
    """Codes or scales of all experts; gate and up interleaved, or one after the other."""
    found = []
    for expert in tiny.experts[tiny.layers[0]]:
        rows = [getattr(expert[name], part) for name in (("down",) if down else ("gate", "up"))]
        found.append(np.stack(rows, 1).reshape(-1, rows[0].shape[1]) if turns else np.concatenate(rows))
    return np.stack(found)


def blocks(tiny: Tiny, prefix: str = MLP, flat: bool = False) -> Tensors:
    """gpt-oss: [experts, rows, blocks, 16]; `flat`: [experts, rows, k / 2]."""
    before = prefix.format(0)
    tensors = {f"{before}router.weight": bf16(tiny.routers[0]), f"{before}router.bias": bf16(np.zeros(EXPERTS))}
    for name, down in (("gate_up_proj", False), ("down_proj", True)):
        codes = stacked(tiny, "codes", True, down)
        tensors[f"{before}experts.{name}_blocks"] = raw("U8", codes if flat else codes.reshape(*codes.shape[:2], -1, 16))
        tensors[f"{before}experts.{name}_scales"] = raw("U8", stacked(tiny, "scales", True, down))
        tensors[f"{before}experts.{name}_bias"] = bf16(np.zeros(codes.shape[:2]))
    return tensors


def columns(tiny: Tiny, shape: tuple[int, ...] = ()) -> Tensors:
    """ModelOpt's fused experts, columns packed, gate rows before up rows."""
    before = MLP.format(0)
    tensors = {f"{before}gate.weight": bf16(tiny.routers[0])}
    for name, down in (("gate_up_proj", False), ("down_proj", True)):
        stem = f"{before}experts.{name}"
        tensors[stem] = raw("U8", stacked(tiny, "codes", False, down).swapaxes(1, 2))
        tensors[f"{stem}_weight_scale"] = raw("F8_E4M3", stacked(tiny, "scales", False, down).swapaxes(1, 2))
        tensors[f"{stem}_weight_scale_2"] = f32(tiny.experts[0][0]["down" if down else "up"].factor, list(shape))
    return tensors


ABSENT = "absent"


def config_of(quantization: Any, **more: Any) -> Config:
    """A Qwen3 model's configuration."""
    config = {
        "model_type": "qwen3_moe", "hidden_size": HIDDEN, "moe_intermediate_size": INTERMEDIATE, "intermediate_size": 256,
        "num_experts": EXPERTS, "num_experts_per_tok": 2, "norm_topk_prob": True, "num_hidden_layers": 1, "hidden_act": "silu",
        "quantization_config": quantization, **more,
    }
    return {key: value for key, value in config.items() if value is not ABSENT}


def compressed(format_: str, weights: Config | None = None, group: Config | None = None, **more: Any) -> Config:
    """compressed-tensors' quantization_config."""
    strategy = {"nvfp4": "tensor_group", "mxfp4": "group"}[format_]
    arguments = {"num_bits": 4, "type": "float", "symmetric": True, "group_size": BLOCK[format_], "strategy": strategy, "dynamic": False}
    arguments = {key: value for key, value in {**arguments, **(weights or {})}.items() if value is not ABSENT}
    one = {"targets": ["Linear"], "input_activations": None, "output_activations": None, "weights": arguments, **(group or {})}
    config = {"quant_method": "compressed-tensors", "format": f"{format_}-pack-quantized", "config_groups": {"group_0": one},
              "ignore": ["lm_head"], "quantization_status": "compressed", **more}
    return {key: value for key, value in config.items() if value is not ABSENT}


def modelopt(algorithm: str = "NVFP4", **more: Any) -> Config:
    """ModelOpt's."""
    producer = {"name": "modelopt", "version": "0.39.0"}
    config = {"quant_method": "modelopt", "quant_algo": algorithm, "producer": producer, **more}
    return {key: value for key, value in config.items() if value is not ABSENT}


def quark(weight: Any, **more: Any) -> Config:
    """Quark's."""
    export = {"kv_cache_group": [], "pack_method": "reorder"}
    return {"quant_method": "quark", "export": export, "global_quant_config": {"weight": weight, "input_tensors": None}, **more}


@dataclass
class Variant:
    """A checkpoint and what must come of it."""

    name: str
    tiny: Tiny
    tensors: Tensors
    config: Config
    dialect: str = ""
    refused: str = ""  # the error's id
    word: str = ""  # of the reason
    files: dict[str, list[str] | None] = field(default_factory=lambda: {"model.safetensors": None})
    index: bool = False
    beside: Config = field(default_factory=dict)  # other documents
    rule: Rule | None = field(default_factory=Rule)  # of the model's own router; None: not known here
    bias: np.ndarray | None = None  # of the router
    activation: str = "silu"
    no_rule: str = ""  # a word of why the router is refused
    back: bool = True  # transcoded and back, the bytes are the same

    def write(self, folder: Path) -> Path:
        """All its files. A file without a list has the tensors that no other has."""
        folder.mkdir()
        weight_map = {}
        listed = {name for names in self.files.values() for name in names or ()}
        for file, names in self.files.items():
            own = names or [name for name in self.tensors if name not in listed]
            cut.write(folder / file, {name: self.tensors[name] for name in own})
            weight_map |= {name: file for name in own}
        documents = {"config.json": self.config, **self.beside}
        if self.index:
            size = sum(len(data) for _, _, data in self.tensors.values())
            documents["model.safetensors.index.json"] = {"metadata": {"total_size": size}, "weight_map": weight_map}
        for name, document in documents.items():
            (folder / name).write_text(json.dumps(document))
        return folder
