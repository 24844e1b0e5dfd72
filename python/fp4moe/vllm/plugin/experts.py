"""The experts that stand in vLLM's modular kernel: calls of torch's operators, by the layer's name.

Dynamo traces into ``apply`` on a CPU, and compiled graphs are kept on disk: so the graph holds a
name that is the same in every process.
"""

from __future__ import annotations

from typing import Any

import torch
import vllm.model_executor.layers.fused_moe.modular_kernel as mk
from vllm.model_executor.layers.fused_moe.topk_weight_and_reduce import (
    TopKWeightAndReduceDelegate,
    TopKWeightAndReduceNoOP,
)
from vllm.platforms import current_platform

from fp4moe.torch import ops  # defines the operators
from fp4moe.vllm.plugin import support


class _Experts(mk.FusedMoEExpertsModular):
    """What both forms share. The layer is named by ``attach`` before the first call."""

    fp4moe_layer = ""
    fp4moe_first, fp4moe_step = 0, 1

    def attach(self, name: str, first: int = 0, step: int = 1) -> None:
        """Compute with the layer of this name, which numbers its experts `first + step * position`."""
        self.fp4moe_layer, self.fp4moe_first, self.fp4moe_step = name, first, step

    def numbered(self, ids: torch.Tensor) -> torch.Tensor:
        """Positions among this rank's experts as the layer numbers them; -1 stays."""
        if (self.fp4moe_first, self.fp4moe_step) == (0, 1):
            return ids
        return torch.where(ids < 0, ids, ids * self.fp4moe_step + self.fp4moe_first)

    def largest_call(self) -> tuple[int, int]:
        """Rows and choices of the largest call that a graph may hold."""
        raise NotImplementedError

    @property
    def post_gemm2_hook(self) -> None:
        """None: outputs are weighted and summed inside."""

    @post_gemm2_hook.setter
    def post_gemm2_hook(self, hook: Any) -> None:
        if hook is None:
            return
        raise NotImplementedError(
            f"fp4moe: {self.fp4moe_layer}: this model sums its experts' outputs itself, and fp4moe's "
            f"layers give the sum; {support.OTHERWISE}"
        )

    @staticmethod
    def _supports_current_device() -> bool:
        return support.device_refusal() is None

    @staticmethod
    def _supports_no_act_and_mul() -> bool:
        return True

    @staticmethod
    def _supports_quant_scheme(weight_key: Any, activation_key: Any) -> bool:
        return True  # methods that use this class have FP4 weights

    @staticmethod
    def _supports_activation(activation: Any) -> bool:
        return support.activation_refusal(activation) is None

    @staticmethod
    def _supports_parallel_config(moe_parallel_config: Any) -> bool:
        return True

    @staticmethod
    def _supports_batch_invariance() -> bool:
        return bool(current_platform.is_cpu())  # sizes choose kernels on a GPU

    def supports_expert_map(self) -> bool:
        """Experts of other ranks have the number -1."""
        return True

    def moe_problem_size(
        self, a1: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, topk_ids: torch.Tensor
    ) -> tuple[int, int, int, int, int]:
        """Of the call: packed weights have no shape of vLLM's."""
        experts, tokens = w1.shape[0], a1.shape[-2]
        return experts, tokens, 0, a1.shape[-1], topk_ids.shape[1]


class Fp4MoeExperts(_Experts):
    """Tokens [T, hidden] with their routes; weighted and summed here."""

    @property
    def expects_unquantized_inputs(self) -> bool:
        return True

    def largest_call(self) -> tuple[int, int]:
        moe = self.moe_config
        ranks = moe.moe_parallel_config.dp_size  # data-parallel ones, whose tokens are gathered
        return ranks * max(moe.max_num_tokens, moe.max_capture_size), moe.experts_per_token

    @staticmethod
    def activation_format() -> Any:
        return mk.FusedMoEActivationFormat.Standard

    def workspace_shapes(
        self,
        M: int,
        N: int,
        K: int,
        topk: int,
        global_num_experts: int,
        local_num_experts: int,
        expert_tokens_meta: Any,
        activation: Any,
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """The output alone: layers have memory of their own."""
        return (0,), (0,), (M, K)

    def finalize_weight_and_reduce_impl(self) -> Any:
        return TopKWeightAndReduceNoOP()

    def apply(
        self,
        output: torch.Tensor,
        hidden_states: torch.Tensor,
        w1: torch.Tensor,
        w2: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        activation: Any,
        global_num_experts: int,
        expert_map: torch.Tensor | None,
        a1q_scale: torch.Tensor | None,
        a2_scale: torch.Tensor | None,
        workspace13: torch.Tensor,
        workspace2: torch.Tensor,
        expert_tokens_meta: Any,
        apply_router_weight_on_input: bool,
    ) -> None:
        """Write the sum over each token's experts of this rank."""
        refuse_quantized(a1q_scale)
        weights = topk_weights.to(torch.float32)
        if apply_router_weight_on_input:  # prepare() has multiplied by them
            weights = torch.ones_like(weights)
        ids = self.numbered(local_ids(topk_ids, expert_map))
        ops.apply_named_out(hidden_states, ids, weights, self.fp4moe_layer, out=output)


class Fp4MoeBatchedExperts(_Experts):
    """Tokens [experts, capacity, hidden] with a count for each expert; not weighted, not summed."""

    @property
    def expects_unquantized_inputs(self) -> bool:
        """False, although they are: vLLM's batched transports refuse True, and quantize nothing here."""
        return False

    def capacity(self) -> int:
        """Rows of an expert: those of all dispatchers lie together."""
        return (self.max_num_tokens or 1) * (self.num_dispatchers or 1)

    def largest_call(self) -> tuple[int, int]:
        return self.moe_config.num_local_experts * self.capacity(), 1

    @staticmethod
    def activation_format() -> Any:
        return mk.FusedMoEActivationFormat.BatchedExperts

    def workspace_shapes(
        self,
        M: int,
        N: int,
        K: int,
        topk: int,
        global_num_experts: int,
        local_num_experts: int,
        expert_tokens_meta: Any,
        activation: Any,
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """The output alone."""
        return (0,), (0,), (local_num_experts, self.capacity(), K)

    def finalize_weight_and_reduce_impl(self) -> Any:
        return TopKWeightAndReduceDelegate()

    def apply(
        self,
        output: torch.Tensor,
        hidden_states: torch.Tensor,
        w1: torch.Tensor,
        w2: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        activation: Any,
        global_num_experts: int,
        expert_map: torch.Tensor | None,
        a1q_scale: torch.Tensor | None,
        a2_scale: torch.Tensor | None,
        workspace13: torch.Tensor,
        workspace2: torch.Tensor,
        expert_tokens_meta: Any,
        apply_router_weight_on_input: bool,
    ) -> None:
        """Write each row's output of its own expert; zero beyond an expert's count."""
        refuse_quantized(a1q_scale)
        experts, capacity, hidden = hidden_states.shape
        counts = expert_tokens_meta.expert_num_tokens
        ids = self.numbered(batched_ids(counts, experts, capacity))
        ones = torch.ones_like(ids, dtype=torch.float32)
        flat = hidden_states.reshape(experts * capacity, hidden)
        out = output.view(experts * capacity, hidden)
        ops.apply_named_out(flat, ids, ones, self.fp4moe_layer, out=out)


def refuse_quantized(scales: torch.Tensor | None) -> None:
    """Refuse tokens that a transport of vLLM's quantized although it was not asked to."""
    if scales is not None:
        raise NotImplementedError(
            f"fp4moe: vLLM's transport has quantized the tokens, and fp4moe's experts take them as "
            f"they are; take another --all2all-backend, or {support.OTHERWISE}"
        )


def local_ids(topk_ids: torch.Tensor, expert_map: torch.Tensor | None) -> torch.Tensor:
    """Positions among this rank's experts; -1 for none and for experts of other ranks."""
    if expert_map is None:
        return topk_ids.to(torch.int32)
    local = expert_map[topk_ids.clamp(min=0).to(torch.int64)]
    return torch.where(topk_ids < 0, -1, local).to(torch.int32)


def batched_ids(counts: torch.Tensor, experts: int, capacity: int) -> torch.Tensor:
    """[experts * capacity, 1]: the expert of each row, -1 beyond its count."""
    numbers = torch.arange(experts, dtype=torch.int32, device=counts.device)[:, None]
    rows = torch.arange(capacity, device=counts.device)[None, :]
    return torch.where(rows < counts[:, None], numbers, -1).reshape(-1, 1)
