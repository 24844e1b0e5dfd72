"""Checkpoints by NVIDIA's ModelOpt: quantize_modelopt.py OUT [NAME...]."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import modelopt.torch.quantization as mtq
import tiny
import torch
from modelopt.torch.export import export_hf_checkpoint
from modelopt.torch.quantization.qtensor import FP8QTensor, MXFP4QTensor, NVFP4QTensor
from tiny import Tensors


def mixed(attention: dict[str, Any]) -> dict[str, Any]:
    """NVFP4 experts beside attention in another format."""
    result = copy.deepcopy(mtq.NVFP4_EXPERTS_ONLY_CFG)
    for rule in attention["quant_cfg"]:
        named = copy.deepcopy(rule)
        if str(named.get("quantizer_name")) in ("*weight_quantizer", "*input_quantizer"):
            named["quantizer_name"] = "*self_attn" + named["quantizer_name"]
            result["quant_cfg"].append(named)
    return result


SCHEMES = {
    "W4A16_NVFP4": lambda: mtq.W4A16_NVFP4_CFG,
    "NVFP4_DEFAULT": lambda: mtq.NVFP4_DEFAULT_CFG,
    "NVFP4_EXPERTS_ONLY": lambda: mtq.NVFP4_EXPERTS_ONLY_CFG,
    "MXFP4_DEFAULT": lambda: mtq.MXFP4_DEFAULT_CFG,
    "W4A8_MXFP4_FP8": lambda: mtq.W4A8_MXFP4_FP8_CFG,
    "W4A8_NVFP4_FP8": lambda: mtq.W4A8_NVFP4_FP8_CFG,
    "FP8ATTN": lambda: mixed(mtq.FP8_DEFAULT_CFG),
    "FP8PCATTN": lambda: mixed(mtq.FP8_PER_CHANNEL_PER_TOKEN_CFG),
    "FP8PBATTN": lambda: mixed(mtq.FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG),
    "MAMBA_MOE_AGGRESSIVE": lambda: mtq.MAMBA_MOE_NVFP4_AGGRESSIVE_CFG,
}


def fp4(codes: torch.Tensor, scale: torch.Tensor, factor: torch.Tensor | None) -> torch.Tensor:
    """By ModelOpt's own classes."""
    shape = (*codes.shape[:-1], codes.shape[-1] * 2)
    blocks = {-1: shape[-1] // scale.shape[-1]}
    if factor is None:
        result = MXFP4QTensor(shape, torch.float32, codes)
        return result.dequantize(dtype=torch.float32, scale=scale, block_sizes=blocks).reshape(shape)
    result = NVFP4QTensor(shape, torch.float32, codes)
    return result.dequantize(dtype=torch.float32, scale=scale, double_scale=factor,
                           block_sizes=blocks)


def fp8(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The same for FP8."""
    result = FP8QTensor(weight.shape, torch.float32, weight)
    if scale.numel() == 1:
        return result.dequantize(dtype=torch.float32, scale=scale)
    if scale.ndim == 1:
        return result.dequantize(dtype=torch.float32, scale=scale[:, None],
                               block_sizes={-1: weight.shape[-1], -2: 1})
    rows, columns = scale.shape[0], scale.shape[2]  # [rows, 1, columns, 1]
    blocks = {-1: weight.shape[1] // columns, -2: weight.shape[0] // rows}
    return result.dequantize(dtype=torch.float32, scale=scale.reshape(rows, columns),
                           block_sizes=blocks)


def dequantize(found: Tensors, config: dict[str, Any]) -> Tensors:
    """Every weight as a number."""
    result = {}
    for name, value in found.items():
        stem = name.removesuffix(".weight")
        end = "." if name.endswith(".weight") else "_"
        scale = found.get(f"{stem}{end}weight_scale")
        if "_scale" in name.rsplit(".", 1)[-1]:
            continue
        if value.dtype == torch.uint8 and scale is not None:
            factor = found.get(f"{stem}{end}weight_scale_2")
            if value.ndim == 3 and factor is not None:  # columns
                value, scale = value.transpose(1, 2), scale.transpose(1, 2)
                value = fp4(value.contiguous(), scale.contiguous(), factor).transpose(1, 2)
            else:
                value = fp4(value, scale, factor)
        elif value.dtype == torch.float8_e4m3fn:
            assert scale is not None
            value = fp8(value, scale)
        result[name] = value
    return result


def make(family: str, scheme: str, out: Path, scratch: Path) -> None:
    """One checkpoint."""
    model = mtq.quantize(tiny.plain(family, scratch), SCHEMES[scheme](), tiny.calibrate)
    export_hf_checkpoint(model, export_dir=out)
    tiny.witness(out, dequantize)


if __name__ == "__main__":
    with torch.no_grad():
        tiny.each(make)
