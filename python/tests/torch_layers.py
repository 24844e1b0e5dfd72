"""Tiny MoE layers made and computed with torch alone: what the library is compared with."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

HIDDEN, INTERMEDIATE, EXPERTS, TOP_K = 128, 96, 5, 2
MAGNITUDES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=torch.float64)
E2M1 = torch.cat([MAGNITUDES, -MAGNITUDES])


def decoded(codes: torch.Tensor) -> torch.Tensor:
    """FP4 numbers of packed bytes, low half first: the last dimension doubles."""
    pairs = torch.stack([codes & 15, codes >> 4], dim=-1)
    return E2M1[pairs.long()].flatten(-2)


@dataclass
class Layer:
    """Tensors as a checkpoint names them, its configuration, and the weights they mean."""

    tensors: dict[str, torch.Tensor]
    config: dict[str, Any]
    quant_config: dict[str, Any] | None = None
    prefix: str = "model.layers.0.mlp."
    is_gpt_oss: bool = True
    router: tuple[torch.Tensor, torch.Tensor | None] = field(
        default_factory=lambda: (torch.empty(0), None)
    )

    def weights(self) -> list[dict[str, torch.Tensor]]:
        """Each expert's gate, up and down [rows, columns] in float64, with its biases."""
        return _gpt_oss_weights(self) if self.is_gpt_oss else _qwen3_weights(self)

    def save(self, folder: Path) -> Path:
        """Write it as files."""
        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        save_file(self.tensors, str(folder / "model.safetensors"))
        (folder / "config.json").write_text(json.dumps(self.config))
        if self.quant_config is not None:
            (folder / "hf_quant_config.json").write_text(json.dumps(self.quant_config))
        return folder

    def routed(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The experts of each token and their weights: softmax over the chosen ones."""
        top = logits.double().topk(TOP_K, dim=-1)
        return top.indices, torch.softmax(top.values, dim=-1)

    def apply(
        self,
        x: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor,
        experts: list[list[dict[str, torch.Tensor]]] | None = None,
        of_token: list[int] | None = None,
    ) -> torch.Tensor:
        """The exact result in float64; tokens may have experts of their own (adapters)."""
        sets = experts or [self.weights()]
        out = torch.zeros(x.shape, dtype=torch.float64)
        for t in range(x.shape[0]):
            mine = sets[of_token[t] if of_token else 0]
            for assignment in range(ids.shape[1]):
                expert = int(ids[t, assignment])
                if expert >= 0:
                    out[t] += float(weights[t, assignment]) * self._expert(mine[expert], x[t].double())
        return out

    def run(self, x: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """The same, routed by logits."""
        return self.apply(x, *self.routed(logits))

    def _expert(self, w: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        gate = w["gate"] @ x + w.get("gate_bias", 0.0)
        up = w["up"] @ x + w.get("up_bias", 0.0)
        if self.is_gpt_oss:
            gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
            middle = gate * torch.sigmoid(1.702 * gate) * (up + 1)
        else:
            middle = torch.nn.functional.silu(gate) * up
        return w["down"] @ middle + w.get("down_bias", 0.0)


def _bytes(random: torch.Generator, *shape: int, low: int = 0, high: int = 256) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=random, dtype=torch.uint8)


def gpt_oss(seed: int = 0) -> Layer:
    """MXFP4 as gpt-oss stores it: interleaved gate and up rows, biases, a router with bias."""
    random = torch.Generator().manual_seed(seed)
    prefix = "model.layers.0.mlp."
    tensors: dict[str, torch.Tensor] = {}
    for name, rows, columns in (
        ("gate_up_proj", 2 * INTERMEDIATE, HIDDEN),
        ("down_proj", HIDDEN, INTERMEDIATE),
    ):
        stem = f"{prefix}experts.{name}"
        tensors[stem + "_blocks"] = _bytes(random, EXPERTS, rows, columns // 32, 16)
        tensors[stem + "_scales"] = _bytes(
            random, EXPERTS, rows, columns // 32, low=119, high=124
        )
        tensors[stem + "_bias"] = torch.randn(EXPERTS, rows, generator=random).bfloat16() * 0.1
    weight = torch.randn(EXPERTS, HIDDEN, generator=random).bfloat16()
    bias = torch.randn(EXPERTS, generator=random).bfloat16()
    tensors[f"{prefix}router.weight"], tensors[f"{prefix}router.bias"] = weight, bias
    config = {
        "model_type": "gpt_oss",
        "num_hidden_layers": 1,
        "num_local_experts": EXPERTS,
        "num_experts_per_tok": TOP_K,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "swiglu_limit": 7.0,
        "quantization_config": {"quant_method": "mxfp4"},
    }
    return Layer(tensors, config, router=(weight, bias))


def _gpt_oss_weights(layer: Layer) -> list[dict[str, torch.Tensor]]:
    def matrix(name: str) -> torch.Tensor:
        stem = f"{layer.prefix}experts.{name}"
        values = decoded(layer.tensors[stem + "_blocks"])  # [experts, rows, blocks, 32]
        exponents = layer.tensors[stem + "_scales"].int() - 127
        return torch.ldexp(values, exponents[..., None].double()).flatten(-2)

    both, down = matrix("gate_up_proj"), matrix("down_proj")
    biases = {
        name: layer.tensors[f"{layer.prefix}experts.{name}_bias"].double()
        for name in ("gate_up_proj", "down_proj")
    }
    return [
        {
            "gate": both[e, 0::2],
            "up": both[e, 1::2],
            "down": down[e],
            "gate_bias": biases["gate_up_proj"][e, 0::2],
            "up_bias": biases["gate_up_proj"][e, 1::2],
            "down_bias": biases["down_proj"][e],
        }
        for e in range(EXPERTS)
    ]


def qwen3(dialect: str = "modelopt", seed: int = 0) -> Layer:
    """NVFP4, an expert at a time: ModelOpt's names or compressed-tensors'."""
    random = torch.Generator().manual_seed(seed)
    prefix = "model.layers.0.mlp."
    is_modelopt = dialect == "modelopt"
    tensors: dict[str, torch.Tensor] = {}
    for e in range(EXPERTS):
        for name, rows, columns in (
            ("gate_proj", INTERMEDIATE, HIDDEN),
            ("up_proj", INTERMEDIATE, HIDDEN),
            ("down_proj", HIDDEN, INTERMEDIATE),
        ):
            stem = f"{prefix}experts.{e}.{name}."
            codes = _bytes(random, rows, columns // 2)
            scales = torch.rand(rows, columns // 16, generator=random) * 400 + 20
            tensors[stem + ("weight" if is_modelopt else "weight_packed")] = codes
            tensors[stem + "weight_scale"] = scales.to(torch.float8_e4m3fn)
            scale = torch.tensor(2.0**-12)  # its reciprocal is exact
            if is_modelopt:
                tensors[stem + "weight_scale_2"] = scale
                tensors[stem + "input_scale"] = torch.tensor(0.01)
            else:
                tensors[stem + "weight_global_scale"] = scale.reciprocal().reshape(1)
    weight = torch.randn(EXPERTS, HIDDEN, generator=random).bfloat16()
    tensors[f"{prefix}gate.weight"] = weight
    config: dict[str, Any] = {
        "model_type": "qwen3_moe",
        "num_hidden_layers": 1,
        "num_experts": EXPERTS,
        "num_experts_per_tok": TOP_K,
        "hidden_size": HIDDEN,
        "moe_intermediate_size": INTERMEDIATE,
        "norm_topk_prob": True,
    }
    quant_config = None
    if is_modelopt:
        quant_config = {
            "producer": {"name": "modelopt"},
            "quantization": {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": []},
        }
    else:
        weights = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
        config["quantization_config"] = {
            "quant_method": "compressed-tensors",
            "format": "nvfp4-pack-quantized",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        }
    return Layer(tensors, config, quant_config, is_gpt_oss=False, router=(weight, None))


def _qwen3_weights(layer: Layer) -> list[dict[str, torch.Tensor]]:
    def matrix(e: int, name: str) -> torch.Tensor:
        stem = f"{layer.prefix}experts.{e}.{name}."
        codes = layer.tensors.get(stem + "weight", layer.tensors.get(stem + "weight_packed"))
        assert codes is not None
        scales = layer.tensors[stem + "weight_scale"].double()
        values = decoded(codes) * scales.repeat_interleave(16, dim=-1)
        if stem + "weight_scale_2" in layer.tensors:
            return values * layer.tensors[stem + "weight_scale_2"].double()
        return values / layer.tensors[stem + "weight_global_scale"].double()

    return [
        {part: matrix(e, f"{part}_proj") for part in ("gate", "up", "down")}
        for e in range(EXPERTS)
    ]


def tokens(count: int, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden states and logits."""
    random = torch.Generator().manual_seed(seed)
    return (
        torch.randn(count, HIDDEN, generator=random),
        torch.randn(count, EXPERTS, generator=random),
    )


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference over the largest magnitude."""
    scale = expected.double().abs().max()
    return float((found.double() - expected.double()).abs().max() / scale)
