"""vLLM's MoE oracles: ``mxfp4`` and ``nvfp4``, with the configuration they share."""

from __future__ import annotations

from fp4moe.vllm.oracle.config import (
    Context,
    ExpertsClass,
    FusedMoEConfig,
    FusedMoEParallelConfig,
    Selected,
)
from fp4moe.vllm.oracle.kernels import FusedMoEQuantConfig, KernelWeights, MoEKernel

__all__ = [
    "Context",
    "ExpertsClass",
    "FusedMoEConfig",
    "FusedMoEParallelConfig",
    "FusedMoEQuantConfig",
    "KernelWeights",
    "MoEKernel",
    "Selected",
]
