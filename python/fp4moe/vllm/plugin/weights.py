"""From the parameters that vLLM loaded to an fp4moe layer, one layer at a time.

vLLM's names: w13_weight or w13_weight_packed, w13_weight_scale, w13_bias; NVFP4 has a global scale
besides, w13_weight_scale_2 (a factor) or w13_weight_global_scale (its reciprocal). The same with w2.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from typing import Any

import torch

import fp4moe
from fp4moe.vllm.plugin.mode import PluginRequest

BLOCKS = {"mxfp4": 32, "nvfp4": 16}

E8M0_OF_DUMMIES = 127 - 8  # 2^-8

# Activations that fp4moe computes, by vLLM's names, and the constants that each of them reads.
CONSTANTS: dict[str, tuple[str, ...]] = {
    "silu": ("limit",),
    "gelu": (),
    "gelu_tanh": (),
    "swigluoai": ("alpha", "beta", "limit"),
    "swigluoai_uninterleave": ("alpha", "beta", "limit"),
    "swiglustep": ("limit",),
    "situ": ("situ_beta", "situ_linear_beta"),
    "silu_no_mul": (),
    "gelu_no_mul": (),
    "gelu_tanh_no_mul": (),
    "relu2_no_mul": (),
}
# Constants without which vLLM's activation is another than ours, or none at all.
NEEDED = {
    "swigluoai_uninterleave": ("alpha", "beta", "limit"),
    "situ": ("situ_beta",),
}
# A constant's names on a RoutedExperts layer and in its FusedMoEConfig.
PLACES = {
    "alpha": "swiglu_alpha",
    "beta": "swiglu_beta",
    "limit": "swiglu_limit",
    "situ_beta": "activation_situ_beta",
    "situ_linear_beta": "activation_situ_linear_beta",
}
PARTS = (
    "weight", "weight_packed", "weight_scale", "weight_scale_2", "weight_global_scale", "bias",
    "input_scale", "input_scale_2", "input_global_scale",
)  # fmt: skip


def row_order(activation: Any) -> str:
    """How gate and up lie in w13: vLLM's enumeration of activations defines it."""
    if not activation.is_gated:
        return "single"
    return "interleaved" if activation.value == "swigluoai" else "halves"


def constants(activation: str, layer: Any, moe: Any) -> dict[str, float]:
    """The activation's constants where the model sets them."""
    result = {}
    for name in CONSTANTS[activation]:
        place = PLACES[name]
        found = getattr(layer, place, None)
        found = getattr(moe, place, None) if found is None else found
        if found is not None:
            result[name] = float(found)
    return result


def tensors_of(layer: Any) -> dict[str, torch.Tensor]:
    """What ``fp4moe.Layer.from_weights`` takes, in the memory of this machine."""
    result: dict[str, torch.Tensor] = {}
    for matrix in ("w13", "w2"):
        packed = getattr(layer, f"{matrix}_weight_packed", None)
        codes = packed if packed is not None else getattr(layer, f"{matrix}_weight")
        result[matrix] = _host(codes).view(torch.uint8)
        result[f"{matrix}_scale"] = _host(getattr(layer, f"{matrix}_weight_scale")).view(torch.uint8)
        factor = getattr(layer, f"{matrix}_weight_scale_2", None)
        divisor = getattr(layer, f"{matrix}_weight_global_scale", None)
        if factor is not None:
            result[f"{matrix}_global_scale"] = _host(factor).float()
        elif divisor is not None:
            result[f"{matrix}_global_scale"] = 1.0 / _host(divisor).float()
        bias = getattr(layer, f"{matrix}_bias", None)
        if bias is not None:
            result[f"{matrix}_bias"] = _host(bias)
    return result


def make_layer(layer: Any, moe: Any, format: str, request: PluginRequest) -> fp4moe.Layer:
    """Pack the parameters of a RoutedExperts layer; ids of calls are local, -1 is unassigned."""
    tensors = tensors_of(layer)
    activation = moe.activation
    local, top_k = int(tensors["w13"].shape[0]), int(moe.experts_per_token)
    # A token may have more experts than this rank: the others are of ranks beyond it.
    ranks = -(-top_k // local)
    description = {
        "format": format,
        "row_order": row_order(activation),
        "activation": activation.value,
        "top_k": top_k,
        "experts": local * ranks,
        **constants(activation.value, layer, moe),
    }
    on_gpu = getattr(layer, "w2_weight_scale").is_cuda
    options: dict[str, Any] = {"numerics": request.numerics, "ep": (0, ranks)}
    if on_gpu:
        return fp4moe.Layer.from_weights(tensors, description, engine="cuda", **options)
    threads = request.threads or torch.get_num_threads()
    with own_cpus():
        return fp4moe.Layer.from_weights(
            tensors, description, engine="cpu", threads=threads, **options
        )


def name_dummy_scales(layer: Any) -> None:
    """Values of scales for vLLM's dummy weights, which would be random: negative, not a number."""
    for name, parameter in layer.named_parameters(recurse=False):
        if "_scale" in name and getattr(parameter, "dummy_weight_value", None) is None:
            parameter.dummy_weight_value = 1.0 if parameter.is_floating_point() else E8M0_OF_DUMMIES


def zero(layer: Any) -> None:
    """Zeros in codes and block scales, for the columns and rows that no checkpoint fills."""
    for matrix in ("w13", "w2"):
        for part in ("weight", "weight_packed", "weight_scale"):
            parameter = getattr(layer, f"{matrix}_{part}", None)
            if parameter is not None:
                parameter.data.view(torch.uint8).zero_()


def drop(layer: Any) -> None:
    """Give vLLM's copies of the weights back; their parameters stay, without elements."""
    for matrix in ("w13", "w2"):
        for part in PARTS:
            parameter = getattr(layer, f"{matrix}_{part}", None)
            if isinstance(parameter, torch.nn.Parameter):
                parameter.data = parameter.data.new_empty(0)


@contextlib.contextmanager
def own_cpus() -> Iterator[None]:
    """Start threads that may run wherever torch's do.

    vLLM has OpenMP bind each of torch's threads to one CPU, this one too, and a new thread
    would inherit that one.
    """
    before = os.sched_getaffinity(0)
    gnu, intel = os.environ.get("GOMP_CPU_AFFINITY", ""), os.environ.get("KMP_AFFINITY", "")
    with contextlib.suppress(OSError):  # CPUs that this process may not use
        os.sched_setaffinity(0, before | cpus(gnu or intel.partition("proclist=")[2]))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def cpus(text: str) -> set[int]:
    """The CPUs of a list such as "0-3,8 10-14:2"; none of what is not understood."""
    result: set[int] = set()
    for first, last, step in re.findall(r"(\d+)(?:-(\d+))?(?::(\d+))?", text):
        result.update(range(int(first), int(last or first) + 1, max(1, int(step or 1))))
    return result


def _host(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().contiguous()
