"""A MoE layer of an FP4 checkpoint as a module of torch."""

from __future__ import annotations

import os
from typing import Any

import torch

import fp4moe
from fp4moe.errors import UsageError
from fp4moe.torch import ops

Options = dict[str, Any]


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """All dimensions but the last one as one."""
    if type(tensor) is not torch.Tensor and not isinstance(tensor, torch.Tensor):
        raise TypeError(f"MoE: expected a tensor of torch, found {type(tensor).__name__}")
    return tensor if tensor.ndim == 2 else tensor.reshape(-1, tensor.shape[-1])


class MoE(torch.nn.Module):
    """One MoE layer: experts in FP4, and where it is asked for, the checkpoint's router.

        moe = fp4moe.torch.MoE.open("gpt-oss-20b", 0, router=True)
        y = moe(x)                    # x [..., hidden]; the router is the checkpoint's
        y = moe(x, logits)            # logits [..., experts]
        y = moe(x, ids, weights)      # ids and weights [..., top_k]

    The experts are not parameters: ``state_dict()`` holds where they come from (path, number and
    options), a pickle opens them again there, a copy shares them. ``.to(...)`` moves and casts the
    router only; tokens must lie where the layer computes.
    """

    router_weight: torch.Tensor | None
    router_bias: torch.Tensor | None

    def __init__(self, layer: fp4moe.Layer) -> None:
        """Around a layer that is open already, without a router."""
        super().__init__()
        self._source: Options | None = None
        self._take(layer)
        self.register_buffer("router_weight", None, persistent=False)
        self.register_buffer("router_bias", None, persistent=False)

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], number: int = 0, *, router: bool = False, **options: Any
    ) -> MoE:
        """Open layer ``number`` of a checkpoint; ``options`` are those of ``Model.layer``."""
        source = {"path": os.fspath(path), "number": number, "router": router, "options": options}
        moe = cls.of(fp4moe.Model.open(path), number, router=router, **options)
        moe._source = source
        return moe

    @classmethod
    def of(
        cls, model: fp4moe.Model, number: int = 0, *, router: bool = False, **options: Any
    ) -> MoE:
        """The same from a model that is open, or whose tensors are in memory."""
        moe = cls(model.layer(number, **options))
        if router:
            weight, bias = model.router(number)
            moe.router_weight = torch.from_numpy(weight)
            moe.router_bias = None if bias is None else torch.from_numpy(bias)
        return moe

    def forward(self, hidden_states: torch.Tensor, *routes: torch.Tensor) -> torch.Tensor:
        """Tokens through their experts: given logits, or ids and weights, or by the own router."""
        if len(routes) > 2:
            raise TypeError(
                "MoE: expected (x), (x, logits) or (x, ids, weights), "
                f"found {1 + len(routes)} tensors"
            )
        given = routes or (self.logits(hidden_states),)
        # Who traces needs the operator; calling the layer itself is quicker.
        is_traced = torch.compiler.is_compiling() or type(hidden_states) is not torch.Tensor
        x = _rows(hidden_states)
        if len(given) == 2:
            ids, weights = _rows(given[0]), _rows(given[1])
            out: torch.Tensor = (
                ops.apply(x, ids, weights, self._number)
                if is_traced
                else self._layer.apply(x, ids, weights)
            )
        else:
            logits = _rows(given[0])
            out = ops.run(x, logits, self._number) if is_traced else self._layer.run(x, logits)
        return out if x is hidden_states else out.reshape(hidden_states.shape)

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """The router's scores [..., experts], computed in the type of its weights."""
        if self.router_weight is None:
            raise UsageError(
                "the module has no router",
                id="facts.router",
                expected="logits, or ids and weights, beside the tokens",
                found="tokens alone",
                remedy="open it with router=True",
            )
        return torch.nn.functional.linear(
            x.to(self.router_weight.dtype), self.router_weight, self.router_bias
        )

    @property
    def layer(self) -> fp4moe.Layer:
        """The layer that computes."""
        return self._layer

    def extra_repr(self) -> str:
        """What print() shows."""
        return f"{self._layer!r}, router={self.router_weight is not None}"

    def get_extra_state(self) -> Options:
        """Where the experts come from, for state_dict()."""
        return dict(self._source or {})

    def set_extra_state(self, state: Options) -> None:
        """Open the layer that a state_dict() names, unless it is this one."""
        if state == (self._source or {}):
            return
        self._adopt(MoE._opened(state))

    def __getstate__(self) -> Options:
        """Where the experts come from; a module around an open layer cannot be pickled."""
        state = {**self.__dict__}
        del state["_layer"], state["_number"]
        return state

    def __setstate__(self, state: Options) -> None:
        """Open the experts again."""
        self.__dict__.update(state)
        self._take(MoE._opened(state["_source"] or {})._layer)

    def __deepcopy__(self, memo: dict[int, Any]) -> MoE:
        """A copy with a router of its own and the same experts, which are read-only."""
        result = MoE(self._layer)
        result._source = self._source
        for name in ("router_weight", "router_bias"):
            buffer = getattr(self, name)
            setattr(result, name, None if buffer is None else buffer.clone())
        memo[id(self)] = result
        return result.train(self.training)

    @staticmethod
    def _opened(source: Options) -> MoE:
        if not source.get("path"):
            raise UsageError(
                "the module does not know where its experts come from",
                id="moe.source",
                expected="a module that MoE.open made",
                found="one around a layer or a model that was open already",
                remedy="open it by its path: MoE.open(path, number)",
            )
        return MoE.open(
            source["path"], source["number"], router=source["router"], **source["options"]
        )

    def _adopt(self, other: MoE) -> None:
        self._take(other._layer)
        self._source = other._source
        self.router_weight, self.router_bias = other.router_weight, other.router_bias

    def _take(self, layer: fp4moe.Layer) -> None:
        self._layer = layer
        self._number = ops.handle(layer)
