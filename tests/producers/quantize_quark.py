"""Checkpoints by AMD's Quark: quantize_quark.py OUT [NAME...]."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

# Quark compiles kernels when it is imported: once, beside its own files.
os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(Path(sys.prefix) / "extensions"))
os.environ.setdefault("QUARK_DISABLE_COMPILE", "1")

import quark.torch.kernel
import tiny
import torch
import transformers
from quark.torch import LLMTemplate, ModelQuantizer, export_safetensors
from quark.torch.utils.llm import preprocess_for_quantization
from quark.torch.utils.pack import create_pack_method
from tiny import Tensors

# A scheme of Quark's own, and what is different in some layers.
SCHEMES: dict[str, tuple[str, dict[str, str]]] = {
    "mxfp4": ("mxfp4", {}),
    "mxfp4_weight_only": ("mxfp4_weight_only", {}),
    "mxfp4_fp8": ("mxfp4_fp8", {}),
    "nvfp4": ("nvfp4", {}),
    "amdfp4_g32": ("amdfp4_g32", {}),
    "fp8attn": ("mxfp4", {"*self_attn*": "fp8"}),
    "ptpcattn": ("mxfp4", {"*self_attn*": "ptpc_fp8"}),
}


def fp4(codes: torch.Tensor, scale: torch.Tensor, factor: torch.Tensor | None) -> torch.Tensor:
    """By Quark's own packing and kernel."""
    values = create_pack_method("per_group", "fp4").unpack(codes, True)
    if factor is None:
        steps = 2.0 ** (scale.view(torch.uint8).to(torch.int16) - 127)
    else:
        steps = quark.torch.kernel.dequantize("fp8_e4m3", scale.float(), factor.float(), None, None,
                                              None, "per_tensor")
    size = values.shape[-1] // scale.shape[-1]
    return quark.torch.kernel.dequantize("fp4", values, steps.float(), None, -1, size, "per_group")


def fp8(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The same for FP8."""
    kind = "per_tensor" if scale.numel() == 1 else "per_channel" if scale.ndim == 1 else "per_block"
    return quark.torch.kernel.dequantize("fp8_e4m3", weight.float(), scale.float(), None, 0, None,
                                         kind)


def dequantize(found: Tensors, config: dict[str, Any]) -> Tensors:
    """Every weight as a number."""
    result = {}
    for name, value in found.items():
        stem = name.removesuffix(".weight")
        scale = found.get(f"{stem}.weight_scale")
        if name.rsplit(".", 1)[-1] in ("weight_scale", "weight_scale_2", "input_scale",
                                       "input_scale_2"):
            continue
        if value.dtype == torch.uint8 and scale is not None:
            value = fp4(value, scale, found.get(f"{stem}.weight_scale_2"))
        elif value.dtype == torch.float8_e4m3fn and scale is not None:
            value = fp8(value, scale)
        result[name] = value
    return result


def template(kind: str) -> LLMTemplate:
    """Quark's own for a family, or one like its others."""
    if kind in LLMTemplate.list_available():
        return LLMTemplate.get(kind)
    return LLMTemplate(model_type=kind, kv_layers_name=["*k_proj", "*v_proj"],
                       q_layer_name="*q_proj",
                       exclude_layers_name=["lm_head", "*.gate", "*router*", "*shared_expert_gate"])


def make(family: str, scheme: str, out: Path, scratch: Path) -> None:
    """One checkpoint; f2f_SCHEME is the way from file to file."""
    is_direct = scheme.startswith("f2f_")
    source = tiny.checkpoint(family, scratch)
    kind = transformers.AutoConfig.from_pretrained(source).model_type
    own, layers = SCHEMES[scheme.removeprefix("f2f_")]
    config = template(kind).get_config(scheme=own, layer_config=layers)
    quantizer = ModelQuantizer(config)
    if is_direct:
        quantizer.direct_quantize_checkpoint(str(source), str(out), device="cpu")
    else:
        model = tiny.load(source)
        preprocess_for_quantization(model)
        model = quantizer.quantize_model(model, [tiny.tokens()])
        model = ModelQuantizer.freeze(model)
        export_safetensors(model, out, pack_method="reorder")
    tiny.witness(out, dequantize)


if __name__ == "__main__":
    with torch.no_grad():
        tiny.each(make)
