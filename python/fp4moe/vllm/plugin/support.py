"""What fp4moe computes inside vLLM, and why not: one sentence each, with what to set."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from vllm.platforms import current_platform

import fp4moe
from fp4moe.vllm.plugin.weights import BLOCKS, CONSTANTS, PLACES

OTHERWISE = "set FP4MOE_VLLM=off"
DTYPES = (torch.bfloat16, torch.float16, torch.float32)  # of tokens
# Transforms that are in the codes already, and those of attention itself.
NOT_OF_EXPERTS = ("weight_input", "weight_output", "q_attn", "k_cache")


@functools.cache
def device_refusal() -> str | None:
    """Why this machine's device is none of fp4moe's; None where it is."""
    if current_platform.is_cpu():
        return None
    name = current_platform.device_name
    if not current_platform.is_cuda():
        return f"fp4moe has no engine for {name}; {OTHERWISE}"
    ordinal = torch.cuda.current_device()
    if ordinal != 0:
        return (
            "fp4moe computes on the first GPU that a process sees, and this rank has another; "
            f"give each rank its own CUDA_VISIBLE_DEVICES, or {OTHERWISE}"
        )
    why_not = kernels_refusal(fp4moe.doctor()["cuda_engine"], ordinal)
    return None if why_not is None else f"{why_not}; {OTHERWISE}"


def kernels_refusal(engine: dict[str, Any], ordinal: int) -> str | None:
    """Why no CUDA kernels of this build run on a device, as `fp4moe doctor` tells it."""
    if "why_not" in engine:
        why_not, remedy = engine["why_not"]["message"], engine["why_not"].get("remedy")
        return f"fp4moe's CUDA engine does not run: {why_not}" + (f" ({remedy})" if remedy else "")
    device = next((one for one in engine["devices"] if one["ordinal"] == ordinal), None)
    if device is None:
        return f"fp4moe's CUDA engine sees no device {ordinal}"
    if device["used"]:
        return None
    return f"fp4moe's CUDA kernels do not run on {device['name']}: {device['why_not']}"


def activation_refusal(activation: Any) -> str | None:
    """Why an activation is not computed; None where it is."""
    if activation.value in CONSTANTS:
        return None
    return f"fp4moe does not compute the activation {activation.value}; {OTHERWISE}"


def constant_refusal(moe: Any) -> str | None:
    """Why a layer's activation may be another than its name says; None where it is not."""
    for name, value in vars(moe).items():
        if name.startswith(("swiglu_", "activation_")) and name not in PLACES.values() and value:
            return f"vLLM gives this layer {name} = {value}, which fp4moe does not know; {OTHERWISE}"
    return None


def transform_refusal(transforms: Any, modules: Sequence[str]) -> str | None:
    """Why a compressed-tensors transform_config changes what these modules are given or give."""
    groups = transforms.get("config_groups") if isinstance(transforms, Mapping) else None
    for group in groups.values() if isinstance(groups, Mapping) else ():
        for one in group.get("apply") or ():
            location, targets, left_out = (one.get(key) for key in ("location", "targets", "ignore"))
            if location in NOT_OF_EXPERTS:
                continue
            if any(_names(targets, name) and not _names(left_out, name) for name in modules):
                return (
                    f"the checkpoint's transform_config rotates each {location} of these experts at "
                    f"run time, which fp4moe does not; take one with transforms folded into its "
                    f"weights, or {OTHERWISE}"
                )
    return None


def _names(targets: Any, module: str) -> bool:
    """Whether targets of compressed-tensors name a module: by name, by "re:...", or by class."""
    given = [targets] if isinstance(targets, str) else targets or ()
    return any(
        re.match(target[3:], module) is not None
        if target.startswith("re:")
        else target == module or target[:1].isupper()  # "Linear", which all of them are
        for target in given
    )


def refusal(moe: Any, format: str, is_padded: bool = False) -> str | None:
    """Why a layer is left to vLLM; None where fp4moe computes it.

    `is_padded`: the loader fills a rank's last block with zeros.
    """
    parallel = moe.moe_parallel_config
    block = BLOCKS[format]
    partition = moe.intermediate_size_per_partition
    checks = (
        (device_refusal(), True),
        (activation_refusal(moe.activation), True),
        (constant_refusal(moe), True),
        (f"fp4moe takes no LoRA adapters on experts inside vLLM; {OTHERWISE}", moe.is_lora_enabled),
        (
            f"fp4moe does not move experts between ranks while it serves (EPLB); "
            f"serve without --enable-eplb, or {OTHERWISE}",
            parallel.enable_eplb,
        ),
        (
            f"a hidden size of {moe.hidden_dim} is not whole blocks of {block}; {OTHERWISE}",
            moe.hidden_dim % block != 0,
        ),
        (
            f"an intermediate size of {partition} for each rank is not whole blocks of {block}; "
            f"take another tensor_parallel_size, or enable expert parallelism",
            partition % block != 0 and not is_padded,
        ),
        (
            f"fp4moe takes tokens in bfloat16, float16 or float32, not {moe.in_dtype}; {OTHERWISE}",
            moe.in_dtype not in DTYPES,
        ),
    )
    return next((sentence for sentence, holds in checks if holds and sentence), None)
