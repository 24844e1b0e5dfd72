"""Checkpoints by llm-compressor, in compressed-tensors' form: quantize_llmcompressor.py OUT [NAME...]."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tiny
import tokenizers
import torch
import transformers
from compressed_tensors.compressors.mx_utils import decompress_mx_scale
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization.lifecycle.forward import dequantize as decompress
from compressed_tensors.quantization.quant_scheme import preset_name_to_scheme
from llmcompressor import oneshot
from llmcompressor.modeling.moe.linearize import load_quantizable_moe
from llmcompressor.modifiers.quantization import QuantizationModifier
from tiny import Tensors

ROUTERS = ["lm_head", "re:.*gate$", "re:.*router$", "re:.*shared_expert_gate$"]
EXPERTS = "re:.*experts\\.[0-9]+\\..*"
ATTENTION = "re:.*self_attn\\.(q|k|v|o)_proj$"


def recipe(scheme: str) -> QuantizationModifier:
    """A preset for all linear modules, EXPERTS_x: for the experts; MIXED_x: NVFP4 and x."""
    if scheme.startswith("MIXED_"):
        attention = preset_name_to_scheme(scheme.removeprefix("MIXED_"), [ATTENTION])
        experts = preset_name_to_scheme("NVFP4", [EXPERTS])
        groups = {"group_0": experts, "group_1": attention}
        return QuantizationModifier(config_groups=groups, ignore=ROUTERS)
    targets = [EXPERTS] if scheme.startswith("EXPERTS_") else "Linear"
    return QuantizationModifier(scheme=scheme.removeprefix("EXPERTS_"), targets=targets,
                                ignore=ROUTERS)


def number(parts: Tensors) -> torch.Tensor:
    """A module's weight, by compressed-tensors' own code, in float32."""
    scale, packed = parts["weight_scale"], parts.get("weight_packed")
    if packed is None:
        weight = parts["weight"]
        preset = "FP8" if scale.numel() == 1 else "FP8_BLOCK"
        preset = "FP8_DYNAMIC" if tuple(scale.shape) == (weight.shape[0], 1) else preset
        args = preset_name_to_scheme(preset, ["Linear"]).weights
        return decompress(weight, scale.float(), args=args, dtype=torch.float32)
    values = unpack_fp4_from_uint8(packed, packed.shape[0], packed.shape[1] * 2, torch.float32)
    is_nv = scale.dtype == torch.float8_e4m3fn
    args = preset_name_to_scheme("NVFP4A16" if is_nv else "MXFP4A16", ["Linear"]).weights
    steps = scale.float() if is_nv else decompress_mx_scale(scale).float()
    return decompress(values, steps, args=args, global_scale=parts.get("weight_global_scale"),
                      dtype=torch.float32)


def dequantize(found: Tensors, config: dict[str, Any]) -> Tensors:
    """Every weight as a number."""
    modules: dict[str, Tensors] = {}
    for name, value in found.items():
        module, _, part = name.rpartition(".")
        modules.setdefault(module, {})[part] = value
    result = {}
    for module, parts in modules.items():
        if "weight_scale" in parts:
            parts = {"weight": number(parts), **{k: v for k, v in parts.items() if k == "bias"}}
        result |= {f"{module}.{part}": value for part, value in parts.items()}
    return result


def words() -> Any:
    """A tokenizer, which oneshot asks for although the data are tokens."""
    vocabulary = {str(number): number for number in range(128)}
    model = tokenizers.models.WordLevel(vocabulary, unk_token="0")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(model))


def make(family: str, scheme: str, out: Path, scratch: Path) -> None:
    """One checkpoint."""
    source = tiny.checkpoint(family, scratch)
    with load_quantizable_moe():
        model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
    batch = {"input_ids": tiny.tokens(), "attention_mask": torch.ones_like(tiny.tokens())}
    data = torch.utils.data.DataLoader([batch], batch_size=None)
    oneshot(model=model, recipe=recipe(scheme), dataset=data, processor=words())
    model.save_pretrained(out, save_compressed=True)
    tiny.witness(out, dequantize)


if __name__ == "__main__":
    with torch.no_grad():
        tiny.each(make)
