"""A model's routed experts, computed by fp4moe from FP4 weights.

The model's own router says which experts a token goes to and with which weights; this module has
the same call as the experts that it stands for, and no parameters: the weights are fp4moe's. They
follow the model's tensors: `model.to("cuda")` opens the layer on the GPU, `.to("cpu")` back here.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import fp4moe
from fp4moe.errors import UnsupportedError, UsageError
from fp4moe.torch import ops


Tensors = Callable[[], dict[str, torch.Tensor]]
Open = Callable[[str], fp4moe.Layer]  # on "cpu" or "cuda"


def place_of(device: torch.device) -> str:
    """Where a layer for tensors of this device is: "cpu" or "cuda", the first GPU."""
    if device.type == "cpu" or (device.type == "cuda" and device.index in (None, 0)):
        return device.type
    raise UnsupportedError(
        "fp4moe's experts run on the CPU or on the first GPU inside transformers",
        id="transformers.device",
        expected="cpu or cuda:0",
        found=str(device),
    )


class Fp4MoeExperts(nn.Module):
    """The routed experts of one layer, in FP4: `forward(hidden_states, index, weights)`."""

    def __init__(self, facts: dict[str, Any], tensors: Tensors) -> None:
        super().__init__()
        self.num_experts = int(facts["experts"])
        self.hidden_dim = int(facts["hidden"])
        self.intermediate_dim = int(facts["intermediate"])
        self.format = str(facts["format"])
        self.layer: fp4moe.Layer | None = None
        self._number = 0
        self._tensors = tensors
        self._opens: Open | None = None
        self._place = "cpu"

    def attach(self, opens: Open, place: str = "cpu") -> None:
        """Compute with the layer that `opens` gives for a place, from now on."""
        self.layer = opens(place)
        self._number = ops.handle(self.layer)
        self._opens, self._place = opens, place

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """What `.to(...)` and the like do to tensors: the layer goes to where they go."""
        super()._apply(fn, recurse)
        if self._opens is not None:
            device = fn(torch.empty(0, device=self._place)).device
            if device.type not in (self._place, "meta"):
                self.attach(self._opens, place_of(device))
        return self

    def checkpoint_tensors(self) -> dict[str, torch.Tensor]:
        """The experts' tensors as the checkpoint has them, names and bits."""
        return self._tensors()

    def forward(
        self,
        hidden_states: torch.Tensor,
        top_k_index: torch.Tensor,
        top_k_weights: torch.Tensor,
    ) -> torch.Tensor:
        """The sum over each token's experts, in the type of `hidden_states`."""
        if torch.is_grad_enabled() and (hidden_states.requires_grad or top_k_weights.requires_grad):
            return _Forward.apply(hidden_states, top_k_index, top_k_weights, self)  # type: ignore
        return self.compute(hidden_states, top_k_index, top_k_weights)

    def compute(
        self, hidden_states: torch.Tensor, index: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """`forward` without a graph of gradients."""
        if self.layer is None:
            raise UsageError(
                "these experts have no weights yet",
                id="transformers.order",
                expected="a model made by from_pretrained",
                found="one whose loading did not end",
            )
        if hidden_states.device.type != self._place:
            raise UnsupportedError(
                "the tokens are not where the experts are",
                id="transformers.device",
                expected=self._place,
                found=str(hidden_states.device),
                remedy=f'move the whole model: model.to("{hidden_states.device.type}")',
            )
        shape = hidden_states.shape
        x = hidden_states.reshape(-1, shape[-1]).contiguous()
        rows = x.shape[0]
        if rows == 0:
            return torch.empty_like(hidden_states)
        index, weights = index.reshape(rows, -1), weights.reshape(rows, -1)
        out: torch.Tensor
        if torch.compiler.is_compiling():  # graphs need the operator
            out = ops.apply(x, index, weights, self._number)
        else:  # the layer itself is quicker
            out = self.layer.apply(x.detach(), index, weights.detach())
        return out.view(shape)

    def __deepcopy__(self, memo: dict[int, Any]) -> Fp4MoeExperts:
        result = Fp4MoeExperts.__new__(Fp4MoeExperts)
        for name, value in self.__dict__.items():  # weights do not change: copies share them
            result.__dict__[name] = copy.copy(value) if isinstance(value, dict) else value
        memo[id(self)] = result
        return result

    def __reduce__(self) -> Any:
        raise UsageError(
            "FP4 experts are not pickled",
            id="transformers.pickle",
            expected="save_pretrained and from_pretrained",
            found="pickle, torch.save of a whole model, or a move between processes",
        )

    def extra_repr(self) -> str:
        """Sizes and format, as other modules print them."""
        kernel = self.layer.info().get("kernel", "") if self.layer is not None else "not loaded"
        return (
            f"experts={self.num_experts}, hidden={self.hidden_dim}, "
            f"intermediate={self.intermediate_dim}, format={self.format}, kernel={kernel}"
        )


class _Forward(torch.autograd.Function):
    """Computes, and says so when a gradient is asked for: none is better than a wrong one."""

    @staticmethod
    def forward(ctx: Any, x: Any, index: Any, weights: Any, experts: Fp4MoeExperts) -> Any:
        return experts.compute(x, index, weights)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise UnsupportedError(
            "FP4 experts have no gradient",
            id="transformers.gradient",
            expected="inference",
            found="backward()",
            remedy="train the dequantized model: quantization_config=Mxfp4Config(dequantize=True)",
        )


def plain_experts_forward(module: nn.Module, *_: Any, **__: Any) -> torch.Tensor:
    """What `experts_implementation="fp4moe"` answers for experts that are not in FP4."""
    raise UnsupportedError(
        "experts_implementation=\"fp4moe\" runs FP4 experts, and does not quantize by itself",
        id="transformers.plain",
        expected="the experts of an FP4 checkpoint",
        found=f"{type(module).__name__} with full-precision weights",
        remedy="load the FP4 checkpoint, or call fp4moe.transformers.quantize_experts(model)",
    )
