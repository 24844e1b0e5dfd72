"""vLLM's MXFP4 oracle by its own names, on tensors of torch or numpy.

    backend, experts_cls = select_mxfp4_moe_backend(config)
    weights = convert_gpt_oss_weight_to_mxfp4_moe_kernel_format(
        backend, None, w13_weight, w2_weight, w13_weight_scale, w2_weight_scale, w13_bias, w2_bias
    )
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

from fp4moe.vllm.oracle import kernels
from fp4moe.vllm.oracle.config import (
    Context,
    ExpertsClass,
    FusedMoEConfig,
    Selected,
    ask,
    kernel_classes,
    select,
)
from fp4moe.vllm.oracle.kernels import FusedMoEQuantConfig, KernelWeights, MoEKernel

FORMAT = "mxfp4"


class Mxfp4MoeBackend(Enum):
    """Every backend of every policy; the last one is ours."""

    NONE = "None"
    B12X_MXFP4_MXFP8 = "B12X_MXFP4_MXFP8"
    B12X_MXFP4_BF16 = "B12X_MXFP4_BF16"
    DEEPGEMM_MXFP4 = "DEEPGEMM_MXFP4"
    FLASHINFER_TRTLLM_MXFP4_MXFP8 = "FLASHINFER_TRTLLM_MXFP4_MXFP8"
    FLASHINFER_TRTLLM_MXFP4_BF16 = "FLASHINFER_TRTLLM_MXFP4_BF16"
    FLASHINFER_CUTLASS_MXFP4_MXFP8 = "FLASHINFER_CUTLASS_MXFP4_MXFP8"
    FLASHINFER_CUTLASS_MXFP4_BF16 = "FLASHINFER_CUTLASS_MXFP4_BF16"
    CUTLASS_MXFP4_MXFP4 = "CUTLASS_MXFP4_MXFP4"
    BATCHED_MARLIN = "BATCHED_MARLIN"
    MARLIN = "MARLIN"
    CK = "CK"
    AITER = "AITER"
    AITER_MXFP4_BF16 = "AITER_MXFP4_BF16"
    AITER_TRITON_MXFP4_BF16 = "AITER_TRITON_MXFP4_BF16"
    AITER_MXFP4_FP8 = "AITER_MXFP4_FP8"
    AITER_MXFP4_MXFP4 = "AITER_MXFP4_MXFP4"
    AITER_TRITON_MXFP4_MXFP4 = "AITER_TRITON_MXFP4_MXFP4"
    TRITON = "TRITON"
    TRITON_UNFUSED = "TRITON_UNFUSED"
    XPU = "XPU"
    CPU = "CPU"
    EMULATION = "EMULATION"
    HUMMING = "HUMMING"
    FLASHINFER_MOE_EP_CUTEDSL = "FLASHINFER_MOE_EP_CUTEDSL"
    FLASHINFER_MOE_EP_DEEP_GEMM = "FLASHINFER_MOE_EP_DEEP_GEMM"
    NATIVE_SM90 = "NATIVE_SM90"
    NATIVE_SM80 = "NATIVE_SM80"


TRTLLM_BACKENDS = (
    Mxfp4MoeBackend.FLASHINFER_TRTLLM_MXFP4_BF16,
    Mxfp4MoeBackend.FLASHINFER_TRTLLM_MXFP4_MXFP8,
)
TRITON_BACKENDS = (Mxfp4MoeBackend.TRITON, Mxfp4MoeBackend.TRITON_UNFUSED)


def select_mxfp4_moe_backend(
    config: FusedMoEConfig, activation_key: str | None = None
) -> Selected[Mxfp4MoeBackend]:
    """The backend and its class of experts.

    Where vLLM raises, UnsupportedError in its sentence, with the record as ``.record``.
    """
    if activation_key is not None:
        config = config.replace(activation_quant=activation_key)
    return select(FORMAT, Mxfp4MoeBackend, Mxfp4MoeBackend.NONE, config)


select_gpt_oss_mxfp4_moe_backend = select_mxfp4_moe_backend  # its name of April


def select_deepseek_v4_mxfp4_moe_backend(config: FusedMoEConfig) -> Selected[Mxfp4MoeBackend]:
    """The entry for DeepSeek-V4 and other MXFP4 checkpoints."""
    return select(FORMAT, Mxfp4MoeBackend, Mxfp4MoeBackend.NONE, config, "deepseek_v4")


def get_priority_backends(config: FusedMoEConfig | None = None) -> list[Mxfp4MoeBackend]:
    """The automatic list for a deployment, the first tried first."""
    answer = ask("priority", FORMAT, config or FusedMoEConfig())
    return [Mxfp4MoeBackend(name) for name in answer]


def backend_activation_key(
    backend: Mxfp4MoeBackend | str, *, context: Context | None = None
) -> str | None:
    """What the backend wants activations quantized to; None: they stay in 16 bits."""
    key: str | None = ask("activation_key", FORMAT, None, context, backend=backend)
    return key


def map_mxfp4_backend(
    runner_backend: str, *, context: Context | None = None
) -> list[Mxfp4MoeBackend]:
    """What a name of ``moe_backend`` stands for."""
    answer = ask("map", FORMAT, None, context, backend=runner_backend)
    return [Mxfp4MoeBackend(name) for name in answer]


def backend_to_kernel_cls(
    backend: Mxfp4MoeBackend | str, *, context: Context | None = None
) -> list[ExpertsClass]:
    """Its classes of experts in the order of trial."""
    return kernel_classes(FORMAT, backend, context)


def mxfp4_round_up_hidden_size_and_intermediate_size(
    backend: Mxfp4MoeBackend | str,
    hidden_size: int,
    intermediate_size: int,
    activation: str | None = None,
    *,
    context: Context | None = None,
) -> tuple[int, int]:
    """What the backend computes with."""
    sizes = FusedMoEConfig(
        hidden_dim=hidden_size, intermediate_size_per_partition=intermediate_size
    )
    more = {} if activation is None else {"activation": activation}
    hidden, intermediate = ask("round_up", FORMAT, sizes, context, backend=backend, **more)
    return int(hidden), int(intermediate)


def _convert(
    order: str,
    backend: Mxfp4MoeBackend | str,
    tensors: dict[str, Any],
    context: Context | None,
    options: dict[str, Any],
) -> KernelWeights:
    gated = bool(options.get("is_act_and_mul", True))
    options = {"w13_order": order if gated else None, **options}
    handle, storages, result = kernels.convert(FORMAT, backend, tensors, context, options)
    by_name = {
        name: kernels.seen(result, storages, name.replace("_weight", ""))
        for name in tensors  # w13_weight is w13, w13_weight_scale w13_scale
    }
    named = {name: storages.get(name.replace("_weight", "")) for name in tensors}
    return KernelWeights.of(handle, result, by_name, named)


def convert_gpt_oss_weight_to_mxfp4_moe_kernel_format(
    mxfp4_backend: Mxfp4MoeBackend | str,
    layer: object,
    w13_weight: Any,
    w2_weight: Any,
    w13_weight_scale: Any,
    w2_weight_scale: Any,
    w13_bias: Any = None,
    w2_bias: Any = None,
    *,
    context: Context | None = None,
    **options: Any,
) -> KernelWeights:
    """Loaded weights into the backend's layout, bit for bit as vLLM's function.

    Rows of w13 are interleaved, gate and up. ``layer`` is not looked at. ``options``: is_act_and_mul,
    activation, tp_size, generation, params_dtype, threads. Returns w13_weight, w2_weight,
    w13_weight_scale, w2_weight_scale, w13_bias, w2_bias.
    """
    tensors = {
        "w13_weight": w13_weight,
        "w2_weight": w2_weight,
        "w13_weight_scale": w13_weight_scale,
        "w2_weight_scale": w2_weight_scale,
        "w13_bias": w13_bias,
        "w2_bias": w2_bias,
    }
    return _convert("interleaved", mxfp4_backend, tensors, context, options)


convert_to_mxfp4_moe_kernel_format = convert_gpt_oss_weight_to_mxfp4_moe_kernel_format


def convert_weight_to_mxfp4_moe_kernel_format(
    mxfp4_backend: Mxfp4MoeBackend | str,
    layer: object,
    w13_weight: Any,
    w2_weight: Any,
    w13_weight_scale: Any,
    w2_weight_scale: Any,
    w13_bias: Any = None,
    w2_bias: Any = None,
    *,
    activation: str | None = None,
    context: Context | None = None,
    **options: Any,
) -> KernelWeights:
    """The same for other models: all rows of the gate, then all of the up."""
    tensors = {
        "w13_weight": w13_weight,
        "w2_weight": w2_weight,
        "w13_weight_scale": w13_weight_scale,
        "w2_weight_scale": w2_weight_scale,
        "w13_bias": w13_bias,
        "w2_bias": w2_bias,
    }
    if activation is not None:
        options["activation"] = activation
    return _convert("halves", mxfp4_backend, tensors, context, options)


def make_mxfp4_moe_quant_config(
    mxfp4_backend: Mxfp4MoeBackend | str,
    w1_scale: Any = None,
    w2_scale: Any = None,
    gemm1_alpha: float | None = None,
    gemm1_beta: float | None = None,
    swiglu_limit: float | None = None,
    w1_bias: Any = None,
    w2_bias: Any = None,
    a1_scale: Any = None,
    a2_scale: Any = None,
    *,
    config: FusedMoEConfig | None = None,
) -> FusedMoEQuantConfig:
    """What the kernel is given beside the weights; ``config`` says date, machine and activation."""
    result = kernels.describe_quant_config(
        FORMAT, mxfp4_backend, config or FusedMoEConfig(), gemm1_alpha, gemm1_beta, swiglu_limit
    )
    result.pop("family")
    return FusedMoEQuantConfig(
        **result,
        w1_scale=w1_scale,
        w2_scale=w2_scale,
        w1_bias=w1_bias,
        w2_bias=w2_bias,
        a1_scale=a1_scale,
        a2_scale=a2_scale,
    )


def make_mxfp4_moe_kernel(
    moe_quant_config: FusedMoEQuantConfig,
    moe_config: FusedMoEConfig,
    experts_cls: ExpertsClass | None,
    mxfp4_backend: Mxfp4MoeBackend | str,
    routing_tables: None = None,
    shared_experts: Callable[[Any], Any] | None = None,
    *,
    weights: KernelWeights,
    engine: str = "auto",
    threads: int = 0,
) -> MoEKernel:
    """A kernel that runs here, modular or monolithic as its class is. vLLM's takes w1 and w2 with
    every call; this one is made for ``weights``, the result of a conversion."""
    kernels.refuse_tables(routing_tables)
    return kernels.make_kernel(
        FORMAT, moe_quant_config, moe_config, experts_cls, mxfp4_backend, weights,
        shared_experts, engine, threads,
    )  # fmt: skip
