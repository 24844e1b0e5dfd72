"""What fp4moe computes inside vLLM, and why not: one sentence each, with what to set."""

from __future__ import annotations

import functools
from typing import Any

import torch
from vllm.platforms import current_platform

import fp4moe
from fp4moe.vllm.plugin.weights import BLOCKS, CONSTANTS, PLACES

OTHERWISE = "set FP4MOE_VLLM=off"
DTYPES = (torch.bfloat16, torch.float16, torch.float32)  # of tokens


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
