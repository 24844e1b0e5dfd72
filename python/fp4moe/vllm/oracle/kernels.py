"""Converted weights, what scales become, and kernels: what the two oracles share."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fp4moe import _core
from fp4moe.errors import UsageError
from fp4moe.vllm.oracle import arrays
from fp4moe.vllm.oracle.config import Context, ExpertsClass, FusedMoEConfig, ask, request


# What a conversion takes beside the tensors.
OPTIONS = (
    "is_act_and_mul", "w13_order", "activation", "tp_size", "generation", "params_dtype", "threads",
    "takes_external", "hidden",
)  # fmt: skip


class KernelWeights(tuple[Any, ...]):
    """The tensors that vLLM's conversion returns, in its order; kernels are made from this."""

    handle: _core.ConvertedWeights
    names: tuple[str, ...]  # of the tensors
    layout: str  # its id, and generation where it has some
    generation: str
    storages: dict[str, Any]  # the bytes of each tensor, as they lie
    warnings: list[str]  # what is odd about the weights

    @classmethod
    def of(
        cls, handle: _core.ConvertedWeights, result: dict[str, Any], tensors: dict[str, Any],
        storages: dict[str, Any],
    ) -> KernelWeights:  # fmt: skip
        """The tensors by vLLM's names."""
        weights = cls(tensors.values())
        weights.handle, weights.names = handle, tuple(tensors)
        weights.layout, weights.generation = result["layout"], result["generation"]
        weights.storages, weights.warnings = storages, handle.warnings()
        return weights

    def __getitem__(self, key: Any) -> Any:
        """A tensor by position or by name."""
        return super().__getitem__(self.names.index(key) if isinstance(key, str) else key)


def convert(
    format: str,
    backend: object,
    tensors: dict[str, Any],
    context: Context | None,
    options: dict[str, Any],
) -> tuple[_core.ConvertedWeights, dict[str, Any], dict[str, Any]]:
    """Convert; the handle, the bytes of every tensor, and what the format is."""
    for name in options:
        if name not in OPTIONS:
            raise TypeError(f"unexpected keyword argument '{name}', expected {', '.join(OPTIONS)}")
    given = {name: arrays.plain(array) for name, array in tensors.items() if array is not None}
    w13 = given.get("w13_weight", given.get("w13"))
    w2 = given.get("w2_weight", given.get("w2"))
    if w13 is None or w2 is None or len(w2.shape) != 3:
        found = "none" if w13 is None or w2 is None else str(list(w2.shape))
        raise UsageError(
            "a tensor has another shape", id="vllm.tensor", tensor="w13, w2", found=found,
            expected="[experts, rows, hidden / 2] and [experts, hidden, intermediate / 2]",
        )  # fmt: skip
    sizes = FusedMoEConfig(
        num_experts=int(w2.shape[0]),
        num_local_experts=int(w2.shape[0]),
        hidden_dim=int(w2.shape[1]),
        intermediate_size_per_partition=2 * int(w2.shape[2]),
        has_bias=given.get("w13_bias") is not None or given.get("w2_bias") is not None,
    )
    bias = given.get("w13_bias", given.get("w2_bias"))
    asked = request(
        "kernel_format", format, sizes, context, backend=backend,
        options=options, bias_dtype=arrays.bias_type(bias),
    )  # fmt: skip
    result = json.loads(_core.vllm_ask(asked))
    storages = [arrays.new_bytes(w13, tensor["bytes"]) for tensor in result["tensors"]]
    handle = _core.ConvertedWeights.convert(asked, given, storages)
    result["by_name"] = {tensor["name"]: tensor for tensor in result["tensors"]}
    return handle, dict(zip(result["by_name"], storages)), result


def seen(result: dict[str, Any], storages: dict[str, Any], name: str) -> Any:
    """A tensor as its kernel sees it; None where the layout has none of this name."""
    return arrays.seen(storages[name], result["by_name"][name]) if name in storages else None


@dataclass(frozen=True, eq=False)
class FusedMoEQuantConfig:
    """What a kernel is given beside the weights, as vLLM's of this name."""

    scheme: str  # "mxfp4_w4a16", "mxfp4_mxfp8", "nvfp4", ...; "none": vLLM makes none
    quant_dtype: str | None  # of activations
    weight_quant_dtype: str
    w1_scale: Any = None
    w2_scale: Any = None
    w1_bias: Any = None
    w2_bias: Any = None
    a1_scale: Any = None
    a2_scale: Any = None
    g1_alphas: Any = None  # what accumulators are multiplied by
    g2_alphas: Any = None
    a1_gscale: Any = None  # what activations are multiplied by
    a2_gscale: Any = None
    g1_scale_c: Any = None  # TRT-LLM
    gemm1_alpha: float | None = None
    gemm1_beta: float | None = None
    gemm1_clamp_limit: float | None = None
    is_scale_swizzled: bool = False
    mx_alignment: int = 0
    has_precision_configs: bool = False  # triton_kernels wraps the scales in objects of its own
    notes: list[str] = field(default_factory=list)


def describe_quant_config(
    format: str,
    backend: object,
    config: FusedMoEConfig,
    gemm1_alpha: float | None,
    gemm1_beta: float | None,
    swiglu_limit: float | None,
) -> dict[str, Any]:
    """What backend, date and layer decide, before the scales themselves."""
    words = {"gemm1_alpha": gemm1_alpha, "gemm1_beta": gemm1_beta, "swiglu_limit": swiglu_limit}
    more = {name: value for name, value in words.items() if value is not None}
    result: dict[str, Any] = ask("quant_config", format, config, backend=backend, **more)
    return result


class MoEKernel:
    """A kernel that runs here: this machine's engines with the backend's numbers."""

    def __init__(
        self,
        kernel: _core.MoeKernel,
        shared_experts: Callable[[Any], Any] | None = None,
    ) -> None:
        """Around a compiled one."""
        self._kernel = kernel
        self._shared = shared_experts

    @property
    def is_monolithic(self) -> bool:
        """It is given logits and routes by itself."""
        return self._kernel.is_monolithic

    def apply(self, hidden_states: Any, topk_weights: Any, topk_ids: Any, out: Any = None) -> Any:
        """Tokens [T, H] through the experts that they were routed to, [T, top_k]."""
        result = self._kernel.apply(
            hidden_states,
            arrays.routes(topk_weights, "float32"),
            arrays.routes(topk_ids, "int32"),
            out,
        )
        return self._add_shared(hidden_states, result)

    def apply_monolithic(self, hidden_states: Any, router_logits: Any, out: Any = None) -> Any:
        """Tokens [T, H] through the experts that their logits [T, experts] choose."""
        result = self._kernel.apply_monolithic(hidden_states, router_logits, out)
        return self._add_shared(hidden_states, result)

    def _add_shared(self, hidden_states: Any, result: Any) -> Any:
        if self._shared is not None:
            result += self._shared(hidden_states)
        return result


def make_kernel(
    format: str,
    quant: FusedMoEQuantConfig,
    config: FusedMoEConfig,
    experts_cls: ExpertsClass | None,
    backend: object,
    weights: KernelWeights,
    shared_experts: Callable[[Any], Any] | None,
    engine: str,
    threads: int,
) -> MoEKernel:
    """Make a kernel of what was converted."""
    more: dict[str, Any] = {
        "backend": backend,
        "experts_cls": experts_cls.name if experts_cls is not None else "",
        "engine": engine,
        "threads": int(threads),
    }
    for name in ("gemm1_alpha", "gemm1_beta", "gemm1_clamp_limit"):
        if getattr(quant, name) is not None:
            more[name] = getattr(quant, name)
    text = request("kernel", format, config, **more)
    return MoEKernel(_core.MoeKernel.make(weights.handle, text), shared_experts)


def refuse_tables(routing_tables: object) -> None:
    """Kernels here make these by themselves."""
    if routing_tables is not None:
        raise UsageError(
            "routing tables are made by the kernel itself", id="vllm.routing",
            expected="None, and expert_placement in the configuration", found="tables",
        )  # fmt: skip
