"""What fp4moe computes inside vLLM, and why not: one sentence each, with what to set."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import vllm.envs as envs
from vllm.platforms import current_platform

import fp4moe
from fp4moe.vllm.plugin.weights import BLOCKS, CONSTANTS, NEEDED, PLACES

OTHERWISE = "set FP4MOE_VLLM=off"
DTYPES = (torch.bfloat16, torch.float16, torch.float32)  # of tokens
# Transforms that are in the codes already, and those of attention itself.
NOT_OF_EXPERTS = ("weight_input", "weight_output", "q_attn", "k_cache")
# Biases of experts in vLLM's loaders: left out; w2's on every tensor-parallel rank; w2's on the first alone.
NO_BIASES, ON_EVERY_RANK, ON_THE_FIRST_RANK = "none", "every", "first"


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
            f"start one server for each GPU, with CUDA_VISIBLE_DEVICES of that GPU alone, or {OTHERWISE}"
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
    activation = moe.activation.value
    places = [PLACES[name] for name in NEEDED.get(activation, ())]
    missing = [place for place in places if getattr(moe, place, None) is None]
    if missing:
        return f"the activation {activation} needs {', '.join(missing)}, and vLLM gives none; {OTHERWISE}"
    return None


def router_refusal(layer: Any) -> str | None:
    """Why vLLM's router for CPUs does not route for a layer; None where it does."""
    if not current_platform.is_cpu() or layer.use_grouped_topk or layer.custom_routing_function:
        return None
    if layer.scoring_func in ("softmax", "sqrtsoftplus"):
        return None
    return (
        f"vLLM's router for CPUs has no {layer.scoring_func} without groups of experts; "
        f"serve this model on a GPU"
    )


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


def refusal(layer: Any, format: str, is_padded: bool, biases: str) -> str | None:
    """Why a layer is left to vLLM; None where fp4moe computes it.

    `is_padded`: the loader fills a rank's last block with zeros. `biases`: who loads those of experts.
    """
    moe = layer.moe_config
    parallel = moe.moe_parallel_config
    block = BLOCKS[format]
    partition = moe.intermediate_size_per_partition
    checks = (
        (device_refusal(), True),
        (activation_refusal(moe.activation), True),
        (constant_refusal(moe), True),
        (router_refusal(layer), True),
        (
            f"results of fp4moe's CUDA kernels depend on the batch in their last bits; "
            f"unset VLLM_BATCH_INVARIANT, or {OTHERWISE}",
            envs.VLLM_BATCH_INVARIANT and not current_platform.is_cpu(),
        ),
        (
            f"vLLM loads no biases of experts in this format, and this model has them; "
            f"take a checkpoint in MXFP4, or {OTHERWISE}",
            moe.has_bias and biases == NO_BIASES,
        ),
        (
            f"vLLM loads the whole bias of w2 on every rank, and the sum of {parallel.tp_size} ranks would "
            f"have it as often; enable expert parallelism, or {OTHERWISE}",
            moe.has_bias and biases == ON_EVERY_RANK and parallel.tp_size > 1,
        ),
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
