"""FP4 weights outside the experts, on a CPU, for which vLLM has no kernels.

Attention and dense layers are a few per cent of a MoE model. They become BF16 when they are loaded
(four times their bytes), and run as vLLM's own unquantized layers do. Activations stay as they are.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.kernels.linear import (
    MxFp4LinearKernel,
    NvFp4LinearKernel,
    register_linear_kernel,
)
from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
from vllm.platforms import PlatformEnum, current_platform

import fp4moe
from fp4moe.vllm.plugin import mode


class Dequantized:
    """Before vLLM's class in the order of methods."""

    FORMAT = ""

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]:
        if not current_platform.is_cpu():
            return False, "fp4moe's FP4 linear layers are for CPUs"
        if mode.current().mode == mode.OFF:
            return False, "fp4moe's mode is off"
        return True, None

    @classmethod
    def can_implement(cls, config: Any) -> tuple[bool, str | None]:
        return True, None

    def process_weights_after_loading(self, layer: Any) -> None:
        """Dequantize the weight, and prepare it as vLLM does without quantization."""
        values = fp4moe.dequantize(
            layer.weight.detach().view(torch.uint8).contiguous(),
            layer.weight_scale.detach().view(torch.uint8).contiguous(),
            self.FORMAT,
        )
        factor = getattr(layer, "weight_global_scale", None)
        if factor is not None:  # vLLM has made it one that multiplies, whatever the checkpoint has
            values = values * float(factor.max())
        dtype = getattr(layer, "params_dtype", torch.bfloat16)
        result = torch.as_tensor(values).to(dtype)
        layer.weight = torch.nn.Parameter(result, requires_grad=False)
        layer.weight_scale = None
        dispatch_cpu_unquantized_gemm(layer, remove_weight=True)

    def apply_weights(
        self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """x times the weight, as vLLM multiplies on this CPU."""
        result: torch.Tensor = layer.cpu_linear(x, layer.weight, bias)
        return result


class Fp4MoeNvFp4LinearKernel(Dequantized, NvFp4LinearKernel):
    FORMAT = "nvfp4"


class Fp4MoeMxFp4LinearKernel(Dequantized, MxFp4LinearKernel):
    FORMAT = "mxfp4"


_registered: list[str] = []


def register() -> None:
    """Offer them after vLLM's own; once."""
    if _registered or not current_platform.is_cpu():
        return
    _registered.append("cpu")
    register_linear_kernel(Fp4MoeNvFp4LinearKernel, PlatformEnum.CPU, "nvfp4")
    register_linear_kernel(Fp4MoeMxFp4LinearKernel, PlatformEnum.CPU, "mxfp4")
