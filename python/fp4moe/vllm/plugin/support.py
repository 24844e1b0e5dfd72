"""What fp4moe computes inside vLLM, and why not: one sentence each, with what to set."""

from __future__ import annotations

import functools
from typing import Any

import torch
from vllm.platforms import current_platform

from fp4moe.vllm.plugin.weights import BLOCKS, CONSTANTS

OTHERWISE = "set FP4MOE_VLLM=off"
DTYPES = (torch.bfloat16, torch.float16, torch.float32)  # of tokens
OLDEST_GPU = (8, 0)  # compute capability since which the CUDA engine has kernels


@functools.cache
def device_refusal() -> str | None:
    """Why this machine's device is none of fp4moe's; None where it is."""
    if current_platform.is_cpu():
        return None
    name = current_platform.device_name
    if not current_platform.is_cuda():
        return f"fp4moe has no engine for {name}; {OTHERWISE}"
    found = tuple(torch.cuda.get_device_capability())
    if found < OLDEST_GPU:
        return (
            f"fp4moe's GPU kernels need compute capability {_dotted(OLDEST_GPU)} or newer, "
            f"not {_dotted(found)}; {OTHERWISE}"
        )
    if torch.cuda.current_device() != 0:
        return (
            "fp4moe computes on the first GPU that a process sees, and this rank has another; "
            f"give each rank its own CUDA_VISIBLE_DEVICES, or {OTHERWISE}"
        )
    return None


def activation_refusal(activation: Any) -> str | None:
    """Why an activation is not computed; None where it is."""
    if activation.value in CONSTANTS:
        return None
    return f"fp4moe does not compute the activation {activation.value}; {OTHERWISE}"


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
        (f"fp4moe takes no LoRA adapters on experts inside vLLM; {OTHERWISE}", moe.is_lora_enabled),
        (
            f"fp4moe does not move experts between ranks while it serves (EPLB); "
            f"serve without --enable-eplb, or {OTHERWISE}",
            getattr(parallel, "enable_eplb", False),
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


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(str(number) for number in numbers)
