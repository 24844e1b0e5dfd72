"""vLLM's NVFP4 oracle by its own names, on tensors of torch or numpy. See ``mxfp4``."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

from fp4moe.errors import UsageError
from fp4moe.vllm.oracle import arrays, kernels
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

FORMAT = "nvfp4"


class NvFp4MoeBackend(Enum):
    """Every backend of every policy; the last two are ours."""

    B12X = "B12X"
    FLASHINFER_TRTLLM = "FLASHINFER_TRTLLM"
    FLASHINFER_CUTLASS = "FLASHINFER_CUTLASS"
    FLASHINFER_CUTEDSL = "FLASHINFER_CUTEDSL"
    FLASHINFER_CUTEDSL_BATCHED = "FLASHINFER_CUTEDSL_BATCHED"
    FLASHINFER_MOE_EP_CUTEDSL = "FLASHINFER_MOE_EP_CUTEDSL"
    FLASHINFER_B12X = "FLASHINFER_B12X"
    VLLM_CUTLASS = "VLLM_CUTLASS"
    MARLIN = "MARLIN"
    HUMMING = "HUMMING"
    EMULATION = "EMULATION"
    CPU = "CPU"
    NATIVE_SM90 = "NATIVE_SM90"
    NATIVE_SM80 = "NATIVE_SM80"


def select_nvfp4_moe_backend(
    config: FusedMoEConfig, weight_key: str = "nvfp4", activation_key: str | None = "nvfp4"
) -> Selected[NvFp4MoeBackend]:
    """The backend and its class of experts; ``activation_key`` None: activations stay in 16 bits.

    Where vLLM raises, UnsupportedError in its sentence, with the record as ``.record``.
    """
    if weight_key != FORMAT:
        raise UsageError(
            "the weights are of another format", id="vllm.key", expected=FORMAT, found=weight_key
        )
    config = config.replace(activation_quant=activation_key or "none")
    return select(FORMAT, NvFp4MoeBackend, None, config)


def get_available_nvfp4_backends(config: FusedMoEConfig | None = None) -> list[NvFp4MoeBackend]:
    """AVAILABLE_BACKENDS: the automatic list, the first tried first."""
    return [NvFp4MoeBackend(name) for name in ask("priority", FORMAT, config or FusedMoEConfig())]


def flashinfer_nvfp4_moe_backends(*, context: Context | None = None) -> list[NvFp4MoeBackend]:
    """FLASHINFER_NVFP4_MOE_BACKENDS of the context's policy."""
    return [NvFp4MoeBackend(name) for name in ask("flashinfer", FORMAT, None, context)]


FLASHINFER_NVFP4_MOE_BACKENDS = flashinfer_nvfp4_moe_backends(context=Context(device="cpu"))


def is_global_sf_supported_for_nvfp4_backend(
    backend: NvFp4MoeBackend | str, *, context: Context | None = None
) -> bool:
    """Whether one activation scale serves the experts of all ranks."""
    return bool(ask("is_global_sf", FORMAT, None, context, backend=backend))


def map_nvfp4_backend(runner_backend: str, *, context: Context | None = None) -> NvFp4MoeBackend:
    """What a name of ``moe_backend`` stands for."""
    return NvFp4MoeBackend(ask("map", FORMAT, None, context, backend=runner_backend)[0])


def backend_to_kernel_cls(
    backend: NvFp4MoeBackend | str, *, context: Context | None = None
) -> list[ExpertsClass]:
    """Its classes of experts in the order of trial."""
    return kernel_classes(FORMAT, backend, context)


def backend_2_kernel_cls(
    backend: NvFp4MoeBackend | str, *, context: Context | None = None
) -> ExpertsClass:
    """The same by its name of January, when there was one class."""
    return kernel_classes(FORMAT, backend, context)[0]


def convert_to_nvfp4_moe_kernel_format(
    nvfp4_backend: NvFp4MoeBackend | str,
    layer: object,
    w13: Any,
    w13_scale: Any,
    w13_scale_2: Any,
    a13_scale: Any,
    w2: Any,
    w2_scale: Any,
    w2_scale_2: Any,
    a2_scale: Any,
    is_act_and_mul: bool = True,
    *,
    context: Context | None = None,
    **options: Any,
) -> KernelWeights:
    """Loaded weights into the backend's layout, bit for bit as vLLM's function.

    ``layer`` is not looked at. ``options``: w13_order, tp_size, generation, params_dtype, threads.
    Returns w13, w13_scale, w13_scale_2, a13_scale, w2, w2_scale, w2_scale_2, a2_scale.
    """
    tensors = {
        "w13": w13,
        "w13_scale": w13_scale,
        "w13_scale_2": w13_scale_2,
        "a13_scale": a13_scale,
        "w2": w2,
        "w2_scale": w2_scale,
        "w2_scale_2": w2_scale_2,
        "a2_scale": a2_scale,
    }
    options["is_act_and_mul"] = bool(is_act_and_mul)
    handle, storages, result = kernels.convert(FORMAT, nvfp4_backend, tensors, context, options)
    is_loaded = str(result["layout"]).startswith("as_loaded")  # emulation: one number for all
    by_name: dict[str, Any] = {}
    for name in tensors:
        if name in ("w13", "w13_scale", "w2", "w2_scale"):
            by_name[name] = kernels.seen(result, storages, name)
        else:
            numbers = handle.numbers(name)
            is_scalar = is_loaded and name.startswith("a")
            by_name[name] = arrays.floats(w13, numbers, is_scalar) if numbers else None
    return KernelWeights.of(handle, result, by_name, storages)


def make_nvfp4_moe_quant_config(
    backend: NvFp4MoeBackend | str,
    w13_scale: Any,
    w2_scale: Any,
    w13_scale_2: Any,
    w2_scale_2: Any,
    a13_scale: Any = None,
    a2_scale: Any = None,
    swiglu_limit: float | None = None,
    swiglu_alpha: float | None = None,
    swiglu_beta: float | None = None,
    *,
    config: FusedMoEConfig | None = None,
) -> FusedMoEQuantConfig:
    """What the kernel is given beside the weights.

    g1_alphas and g2_alphas are what accumulators are multiplied by in the end; vLLM since April
    multiplies the activation scales in later.
    """
    config = config or FusedMoEConfig()
    result = kernels.describe_quant_config(
        FORMAT, backend, config, swiglu_alpha, swiglu_beta, swiglu_limit
    )
    family, scheme = result.pop("family"), result["scheme"]
    more: dict[str, Any] = {"g1_alphas": w13_scale_2, "g2_alphas": w2_scale_2}
    if scheme in ("nvfp4", "none") and family == "emulation":
        more |= {"a1_gscale": a13_scale, "a2_gscale": a2_scale}
    elif scheme in ("nvfp4", "none"):
        if a13_scale is None or a2_scale is None:
            raise UsageError(
                "another number of scales is given", id="vllm.scales", tensor="a13_scale",
                expected="scales of activations", found="none",
            )  # fmt: skip
        more = {
            "g1_alphas": a13_scale * w13_scale_2,
            "g2_alphas": a2_scale * w2_scale_2,
            "a1_gscale": 1.0 / a13_scale,
            "a2_gscale": 1.0 / a2_scale,
        }
        if family == "flashinfer_trtllm":
            is_gated = config.is_act_and_mul
            product = more["g1_alphas"] * more["a2_gscale"] if is_gated else more["a2_gscale"]
            more["g1_scale_c"] = more["g1_alphas"] / a2_scale if scheme == "none" else product
    return FusedMoEQuantConfig(**result, **more, w1_scale=w13_scale, w2_scale=w2_scale)


def make_nvfp4_moe_kernel(
    moe_quant_config: FusedMoEQuantConfig,
    moe_config: FusedMoEConfig,
    experts_cls: ExpertsClass | None,
    backend: NvFp4MoeBackend | str,
    routing_tables: None = None,
    shared_experts: Callable[[Any], Any] | None = None,
    *,
    weights: KernelWeights,
    engine: str = "auto",
    threads: int = 0,
) -> MoEKernel:
    """See ``make_mxfp4_moe_kernel``."""
    kernels.refuse_tables(routing_tables)
    return kernels.make_kernel(
        FORMAT, moe_quant_config, moe_config, experts_cls, backend, weights,
        shared_experts, engine, threads,
    )  # fmt: skip
