"""Tiny random checkpoints made by transformers, and models that know their values independently.

`make` has transformers write a BF16 model and fp4moe quantize its experts. `witness` is
transformers' own model of the same checkpoint with the experts' values decoded by ml_dtypes:
nothing of it is fp4moe's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    GptOssConfig,
    MixtralConfig,
    Mxfp4Config,
    Qwen3MoeConfig,
)

import fp4moe

ATTENTION = {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 128,
    "num_hidden_layers": 2,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "eos_token_id": None,
    "bos_token_id": None,
}


class Kind(NamedTuple):
    """A model and the dialect that its experts are written in."""

    model: str
    dialect: str
    format: str


KINDS = {
    "gpt-oss": Kind("gpt_oss", "gpt-oss", "mxfp4"),
    "qwen3-modelopt": Kind("qwen3_moe", "modelopt", "nvfp4"),
    "qwen3-nvfp4": Kind("qwen3_moe", "compressed-tensors", "nvfp4"),
    "qwen3-mxfp4": Kind("qwen3_moe", "compressed-tensors", "mxfp4"),
    "mixtral-modelopt": Kind("mixtral", "modelopt", "nvfp4"),
    "deepseek-nvfp4": Kind("deepseek_v3", "compressed-tensors", "nvfp4"),
}


def config(model: str, **changes: Any) -> Any:
    """A small configuration of this family."""
    if model == "gpt_oss":
        types = ["sliding_attention", "full_attention"]
        sizes = {"hidden_size": 64, "intermediate_size": 96, "num_local_experts": 4}
        return GptOssConfig(
            **{**ATTENTION, **sizes, "num_experts_per_tok": 2, "layer_types": types, **changes}
        )
    if model == "qwen3_moe":
        sizes = {"hidden_size": 64, "moe_intermediate_size": 64, "num_experts": 8}
        return Qwen3MoeConfig(
            **{**ATTENTION, **sizes, "num_experts_per_tok": 2, "norm_topk_prob": True, **changes}
        )
    if model == "deepseek_v3":  # a dense layer first, shared experts, groups, no heads to share
        heads = {"num_key_value_heads": 4, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16}
        ranks = {"v_head_dim": 16, "q_lora_rank": 32, "kv_lora_rank": 32}
        sizes = {"hidden_size": 64, "moe_intermediate_size": 64, "n_routed_experts": 8}
        layers = {"num_hidden_layers": 3, "first_k_dense_replace": 1, "intermediate_size": 96}
        groups = {"n_group": 2, "topk_group": 1, "num_experts_per_tok": 2}
        everything = {**ATTENTION, **heads, **ranks, **sizes, **layers, **groups, **changes}
        del everything["head_dim"]
        return DeepseekV3Config(**everything)
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_local_experts": 4}
    return MixtralConfig(**{**ATTENTION, **sizes, "num_experts_per_tok": 2, **changes})


def plain(result: Any, seed: int = 1) -> Any:
    """transformers' own random BF16 model, biases included."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(result, dtype=torch.bfloat16)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.2)
    return model


def make(folder: Path, kind: Kind, *, shard: str = "1GB", **changes: Any) -> Path:
    """A checkpoint with FP4 experts in `folder`/fp4; the BF16 one is in `folder`/bf16."""
    plain(config(kind.model, **changes)).save_pretrained(folder / "bf16")
    result = folder / "fp4"
    quantize(folder / "bf16", result, kind, shard)
    return result


def quantize(source: Path, to: Path, kind: Kind, shard: str = "1GB") -> None:
    """The experts of a BF16 checkpoint in FP4, by fp4moe's command."""
    fp4moe.quantize_checkpoint(
        source, to, format=kind.format, to=kind.dialect, max_shard_size=shard
    )


def _array(tensor: torch.Tensor) -> np.ndarray:
    import ml_dtypes  # of witnesses alone

    types = {
        torch.bfloat16: ml_dtypes.bfloat16,
        torch.float8_e4m3fn: ml_dtypes.float8_e4m3fn,
        torch.float8_e8m0fnu: ml_dtypes.float8_e8m0fnu,
        torch.uint8: np.uint8,
        torch.float32: np.float32,
    }
    flat = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    return flat.view(types[tensor.dtype]).reshape(tuple(tensor.shape))


def tensors(folder: Path) -> dict[str, np.ndarray]:
    """All tensors of a checkpoint, as NumPy arrays."""
    files = sorted(folder.glob("*.safetensors"))
    return {name: _array(tensor) for file in files for name, tensor in load_file(file).items()}


def _codes(packed: np.ndarray) -> np.ndarray:
    import ml_dtypes

    pairs = np.stack((packed & 15, packed >> 4), -1).reshape(*packed.shape[:-1], -1)
    return pairs.view(ml_dtypes.float4_e2m1fn).astype(np.float64)


def decode(found: dict[str, Any], name: str) -> np.ndarray:
    """A matrix of a ModelOpt or compressed-tensors checkpoint in float64."""
    import ml_dtypes

    packed = found.get(f"{name}.weight_packed", found.get(f"{name}.weight"))
    scales = found[f"{name}.weight_scale"]
    if scales.dtype == np.uint8:
        scales = scales.view(ml_dtypes.float8_e8m0fnu)
    values = _codes(packed)
    blocks = values.reshape(values.shape[0], scales.shape[1], -1)
    matrix = (blocks * scales.astype(np.float64)[..., None]).reshape(values.shape)
    if f"{name}.weight_scale_2" in found:
        return matrix * np.float64(found[f"{name}.weight_scale_2"])
    if f"{name}.weight_global_scale" in found:
        return matrix * np.float64(np.float32(1) / found[f"{name}.weight_global_scale"].item())
    return matrix


def witness(folder: Path, kind: Kind, dtype: torch.dtype = torch.float32) -> Any:
    """transformers' own model of the checkpoint, experts dequantized, computed eagerly."""
    if kind.model == "gpt_oss":
        options = Mxfp4Config(dequantize=True)
        model = AutoModelForCausalLM.from_pretrained(folder, quantization_config=options)
        model = model.to(dtype)
    else:
        model = AutoModelForCausalLM.from_pretrained(folder.parent / "bf16", dtype=dtype)
        _fill(model, tensors(folder), kind)
    model.set_experts_implementation("eager")
    return model


def _fill(model: Any, found: dict[str, Any], kind: Kind) -> None:
    mixtral = kind.model == "mixtral"
    block = "block_sparse_moe" if mixtral else "mlp"
    gate, up, down = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    for number, layer in enumerate(model.model.layers):
        experts = getattr(layer.mlp, "experts", None)
        for expert in range(experts.num_experts if experts is not None else 0):
            prefix = f"model.layers.{number}.{block}.experts.{expert}."
            rows = [decode(found, prefix + gate), decode(found, prefix + up)]
            with torch.no_grad():
                experts.gate_up_proj[expert] = torch.from_numpy(np.concatenate(rows))
                experts.down_proj[expert] = torch.from_numpy(decode(found, prefix + down))
