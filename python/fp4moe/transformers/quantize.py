"""A full-precision model's experts into FP4, in place, one layer after the other.

gpt-oss models become the MXFP4 that they are published in, others compressed-tensors; gate and up
of an expert share NVFP4's global scale. `save_pretrained` then writes that dialect.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

import fp4moe
from fp4moe import errors
from fp4moe.errors import UnsupportedError, UsageError
from fp4moe.quantize import quantize
from fp4moe.transformers.activation import check_activation, configured_limit
from fp4moe.transformers.config import Fp4MoeConfig
from fp4moe.transformers.experts import Fp4MoeExperts
from fp4moe.transformers.quantizer import Fp4MoeQuantizer, experts_modules, opener

Tensors = dict[str, torch.Tensor]

WEIGHTS = {
    "mxfp4": {"group_size": 32, "strategy": "group"},
    "nvfp4": {"group_size": 16, "strategy": "tensor_group"},
}


@torch.no_grad()
def quantize_experts(model: Any, format: str = "mxfp4", **options: Any) -> Any:
    """Quantize the routed experts of a model to "mxfp4" or "nvfp4" and run them by fp4moe.

    The model itself is changed and returned; its full-precision experts are freed layer by layer.
    `options` are those of `Fp4MoeConfig`.
    """
    if format not in WEIGHTS:
        raise UsageError(
            "experts are quantized to one of two formats",
            id="transformers.format",
            expected=", ".join(WEIGHTS),
            found=str(format),
        )
    found = list(experts_modules(model))
    if not found:
        raise UnsupportedError(
            "the model has no experts that fp4moe can stand for",
            id="transformers.model",
            expected="modules that transformers' experts_implementation applies to",
            found=type(model).__name__,
        )
    for name, module in found:
        _check(name, module, format)
    request = Fp4MoeConfig(**options).adopting(_document(model, found, format))
    config = {**model.config.to_dict(), "quantization_config": request.to_dict()}
    for name, module in found:
        tensors = _gpt_oss(name, module) if module.has_bias else _matrices(name, module, format)
        opened = fp4moe.Model.from_tensors(tensors, config=config)
        facts = opened.info()["layers"][0]
        if "error" in facts:
            raise errors.from_json(facts["error"])
        check_activation(module, str(facts["activation"]), configured_limit(config), name)
        experts = Fp4MoeExperts(facts, functools.partial(dict, tensors))
        experts.attach(opener(opened, 0, request))
        model.set_submodule(name, experts)
    model.config.quantization_config = request
    model.hf_quantizer = Fp4MoeQuantizer(request)
    model.is_quantized = True
    model.quantization_method = request.quant_method
    return model


def _check(name: str, module: Any, format: str) -> None:
    parameters = list(module.parameters())
    if any(parameter.device.type != "cpu" for parameter in parameters):
        raise UnsupportedError(
            "experts are quantized on the CPU",
            id="transformers.device",
            tensor=name,
            expected="cpu",
            found=str(parameters[0].device),
        )
    if not module.has_gate or (module.has_bias and (format != "mxfp4" or module.is_concatenated)):
        raise UnsupportedError(
            "no dialect holds such experts in this format",
            id="transformers.experts",
            tensor=name,
            expected="experts with a gate and no bias, or gpt-oss's in mxfp4",
            found=f"{type(module).__name__}, {format}",
        )


def _rows(module: Any, parameter: str, expert: int) -> torch.Tensor:
    """One expert's matrix [out, in], as the module has its rows."""
    matrix: torch.Tensor = getattr(module, parameter)[expert]
    return (matrix.T if module.is_transposed else matrix).contiguous()


def _gpt_oss(name: str, module: Any) -> Tensors:
    result: Tensors = {}
    for parameter in ("gate_up_proj", "down_proj"):
        every = [
            quantize(_rows(module, parameter, expert), "mxfp4")
            for expert in range(module.num_experts)
        ]
        scales = torch.stack([each.scales for each in every])
        codes = torch.stack([each.codes for each in every])
        result[f"{name}.{parameter}_blocks"] = codes.view(*scales.shape, 16)
        result[f"{name}.{parameter}_scales"] = scales
        bias = getattr(module, f"{parameter}_bias")
        result[f"{name}.{parameter}_bias"] = bias.detach().to(torch.bfloat16).clone()
    return result


def _matrices(name: str, module: Any, format: str) -> Tensors:
    result: Tensors = {}
    for expert in range(module.num_experts):
        both = _rows(module, "gate_up_proj", expert)
        if not module.is_concatenated:
            both = torch.cat([both[0::2], both[1::2]])
        pair = quantize(both, format)
        half = both.shape[0] // 2
        down = quantize(_rows(module, "down_proj", expert), format)
        for projection, quantized, rows in (
            ("gate_proj", pair, slice(0, half)),
            ("up_proj", pair, slice(half, None)),
            ("down_proj", down, slice(None)),
        ):
            where = f"{name}.{expert}.{projection}"
            result[f"{where}.weight_packed"] = quantized.codes[rows].clone()
            scales = quantized.scales[rows].clone()
            result[f"{where}.weight_scale"] = scales
            if format == "nvfp4":
                result[f"{where}.weight_scale"] = scales.view(torch.float8_e4m3fn)
                scale = torch.tensor([quantized.global_scale], dtype=torch.float32)
                result[f"{where}.weight_global_scale"] = scale
    return result


def _document(model: Any, found: list[tuple[str, Any]], format: str) -> dict[str, Any]:
    """`quantization_config` as the dialect has it."""
    plain = sorted(_plain_modules(model, tuple(name for name, _ in found)))
    if found[0][1].has_bias:
        return {"quant_method": "mxfp4", "modules_to_not_convert": plain}
    weights = {"num_bits": 4, "type": "float", "symmetric": True, "dynamic": False}
    name = f"{format}-pack-quantized"
    group = {"format": name, "targets": ["Linear"], "weights": {**weights, **WEIGHTS[format]}}
    return {
        "quant_method": "compressed-tensors",
        "format": name,
        "config_groups": {"group_0": {**group, "input_activations": None}},
        "ignore": plain,
        "quantization_status": "compressed",
    }


def _plain_modules(model: nn.Module, experts: tuple[str, ...]) -> Iterator[str]:
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if isinstance(weight, torch.Tensor) and weight.ndim == 2 and not name.startswith(experts):
            yield name
