"""Methods of RoutedExperts layers: vLLM's parameters and loading, fp4moe's layers.

A method is a subclass of vLLM's and has its class name, because vLLM's loaders decide by it. Only
the base's ``__init__`` runs: vLLM's own asks its oracle and raises where that refuses.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass, field
from typing import Any

import torch
import vllm.model_executor.layers.fused_moe.modular_kernel as mk
from vllm.model_executor.layers.fused_moe import FusedMoEMethodBase
from vllm.model_executor.layers.fused_moe.all2all_utils import maybe_make_prepare_finalize
from vllm.model_executor.layers.fused_moe.config import FUSED_MOE_UNQUANTIZED_CONFIG

import fp4moe
from fp4moe.torch import ops
from fp4moe.vllm.plugin import support, weights
from fp4moe.vllm.plugin.experts import Fp4MoeBatchedExperts, Fp4MoeExperts
from fp4moe.vllm.plugin.mode import PluginRequest

logger = logging.getLogger("vllm.fp4moe")


@dataclass(frozen=True)
class Target:
    """A method of vLLM's that fp4moe stands for: its class, and what its __init__ would have set."""

    parent: type
    format: str
    attributes: dict[str, Any] = field(default_factory=dict)
    is_padded: bool = False  # its loader fills up a rank's last block with zeros
    biases: str = support.NO_BIASES  # who loads those of experts
    refusal: str = ""  # why fp4moe does not compute it, by the checkpoint alone


class Fp4MoeMethod:
    """Before vLLM's class in the order of methods."""

    moe: Any
    moe_kernel: Any
    moe_quant_config: Any

    def __init__(self, moe: Any, target: Target, request: PluginRequest) -> None:
        FusedMoEMethodBase.__init__(self, moe)
        self.fp4moe_target = target
        self.fp4moe_request = request
        self.fp4moe_layer: fp4moe.Layer | None = None
        self.experts_cls = Fp4MoeExperts
        for name, value in target.attributes.items():
            setattr(self, name, value)

    @property
    def supports_eplb(self) -> bool:
        return False

    @property
    def skip_forward_padding(self) -> bool:
        return False

    @property
    def has_unpadded_output(self) -> bool:
        return False

    @property
    def is_monolithic(self) -> bool:
        return False

    def maybe_roundup_sizes(
        self,
        hidden_size: int,
        intermediate_size_per_partition: int,
        act_dtype: torch.dtype,
        moe_parallel_config: Any,
    ) -> tuple[int, int]:
        """As the transport wants it, and whole blocks where the loader fills them up."""
        hidden, intermediate = FusedMoEMethodBase.maybe_roundup_sizes(
            self,
            hidden_size,
            intermediate_size_per_partition,
            act_dtype,
            moe_parallel_config,
        )
        block = weights.BLOCKS[self.fp4moe_target.format] if self.fp4moe_target.is_padded else 1
        return hidden, -(-intermediate // block) * block

    def create_weights(self, layer: Any, *sizes: Any, **attributes: Any) -> None:
        """vLLM's parameters, with scales that `--load-format dummy` can give a model."""
        super().create_weights(layer, *sizes, **attributes)  # type: ignore[misc]
        if self.moe.hidden_dim != self.moe.hidden_dim_unpadded:  # a transport wants another size
            weights.zero(layer)
        weights.name_dummy_scales(layer)

    def process_weights_after_loading(self, layer: Any) -> None:
        """Pack the weights, again after a reload, and make the kernel; vLLM's copies go."""
        if self.fp4moe_layer is None:
            target = self.fp4moe_target
            self.fp4moe_layer = weights.make_layer(layer, self.moe, target.format, self.fp4moe_request)
            ops.name_layer(self.fp4moe_layer, layer.layer_name)
        else:
            self.fp4moe_layer.load_weights(weights.tensors_of(layer))
        weights.drop(layer)
        self._finish(layer, layer.w13_weight_scale.device)

    def _finish(self, layer: Any, device: torch.device, first: int = 0, step: int = 1) -> None:
        """The kernel of a loaded layer, which numbers its experts `first + step * position`."""
        assert self.fp4moe_layer is not None
        self.moe_quant_config = FUSED_MOE_UNQUANTIZED_CONFIG
        self.moe_kernel = self._kernel(layer)
        self.moe_kernel.fused_experts.attach(layer.layer_name, first, step)
        shape = (self.moe.num_local_experts, 0, 0)
        self._fp4moe_shape = torch.empty(shape, dtype=torch.uint8, device=device)
        if self._fp4moe_shape.is_cuda:  # graphs are captured later, and allocate nothing
            self.fp4moe_layer.reserve(*self.moe_kernel.fused_experts.largest_call())

    def _kernel(self, layer: Any) -> Any:
        prepare = maybe_make_prepare_finalize(
            moe=self.moe,
            quant_config=FUSED_MOE_UNQUANTIZED_CONFIG,
            routing_tables=layer._expert_routing_tables(),
            allow_new_interface=True,
        )
        experts: Any
        form = getattr(prepare, "activation_format", None)
        if form == mk.FusedMoEActivationFormat.BatchedExperts:
            experts = Fp4MoeBatchedExperts(
                moe_config=self.moe,
                quant_config=FUSED_MOE_UNQUANTIZED_CONFIG,
                max_num_tokens=prepare.max_num_tokens_per_rank(),
                num_dispatchers=prepare.num_dispatchers(),
            )
        elif form == mk.FusedMoEActivationFormat.Standard:
            experts = Fp4MoeExperts(
                moe_config=self.moe, quant_config=FUSED_MOE_UNQUANTIZED_CONFIG
            )
        else:
            raise NotImplementedError(
                f"fp4moe: {layer.layer_name}: vLLM's transport ({type(prepare).__name__}) gives tokens "
                f"in the format {getattr(form, 'value', form)}, and fp4moe's experts take standard and "
                f"batched ones; take another --all2all-backend, or {support.OTHERWISE}"
            )
        return mk.FusedMoEKernel(prepare, experts)

    def get_fused_moe_quant_config(self, layer: Any) -> Any:
        """Tokens come as they are."""
        return FUSED_MOE_UNQUANTIZED_CONFIG

    def apply(
        self,
        layer: Any,
        x: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        shared_experts: Any,
        shared_experts_input: torch.Tensor | None,
    ) -> Any:
        """Through vLLM's prepare and finalize, with fp4moe's experts between them."""
        return self.moe_kernel.apply(
            hidden_states=x,
            w1=self._fp4moe_shape,
            w2=self._fp4moe_shape,
            topk_weights=topk_weights,
            topk_ids=topk_ids,
            activation=layer.activation,
            global_num_experts=layer.global_num_experts,
            apply_router_weight_on_input=layer.apply_router_weight_on_input,
            expert_map=layer.expert_map,
            shared_experts=shared_experts,
            shared_experts_input=shared_experts_input,
        )


@functools.cache
def method_class(parent: type) -> type:
    """A subclass of vLLM's method, with its name."""
    return type(parent.__name__, (Fp4MoeMethod, parent), {"__module__": __name__})


def make_method(moe: Any, target: Target, request: PluginRequest) -> Any:
    """fp4moe's method in the place of vLLM's."""
    return method_class(target.parent)(moe, target, request)
