"""Layers as operators of torch: ``fp4moe::run``, ``fp4moe::apply`` and their ``_out`` variants.

    number = fp4moe.torch.handle(layer)
    y = torch.ops.fp4moe.run(x, logits, number)
    y = torch.ops.fp4moe.apply(x, ids, weights, number)
    torch.ops.fp4moe.apply_out(x, ids, weights, number, out=y)

    fp4moe.torch.name_layer(layer, "model.layers.0.mlp.experts")
    y = torch.ops.fp4moe.apply_named(x, ids, weights, "model.layers.0.mlp.experts")

An operator takes numbers, text and tensors only, so a layer goes by a number of its own, or by a
name where graphs outlive the process: numbers depend on the order of loading. The operators
have fake implementations: ``torch.compile(fullgraph=True)`` sees shapes and never computes. They
are defined through ``torch.library.Library``, which calls them with a few microseconds less than
``torch.library.custom_op`` does.
"""

from __future__ import annotations

import functools
import gc
import itertools
import threading
import weakref
from typing import Any, Callable, cast

import torch

from fp4moe import Layer
from fp4moe.errors import UsageError

SCHEMAS = {
    "run": "(Tensor x, Tensor logits, int layer) -> Tensor",
    "apply": "(Tensor x, Tensor ids, Tensor weights, int layer) -> Tensor",
    "run_out": "(Tensor x, Tensor logits, int layer, *, Tensor(a!) out) -> ()",
    "apply_out": "(Tensor x, Tensor ids, Tensor weights, int layer, *, Tensor(a!) out) -> ()",
    "apply_named": "(Tensor x, Tensor ids, Tensor weights, str layer) -> Tensor",
    "apply_named_out": (
        "(Tensor x, Tensor ids, Tensor weights, str layer, *, Tensor(a!) out) -> ()"
    ),
}


class Registry:
    """Layers by number, which are never used twice; a layer that is gone leaves none behind."""

    def __init__(self) -> None:
        self._next = itertools.count(1)
        self._layers: dict[int, weakref.ref[Layer]] = {}
        self._numbers: weakref.WeakKeyDictionary[Layer, int] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def add(self, layer: Layer) -> int:
        """The layer's number, the same one every time."""
        with self._lock:
            number = self._numbers.get(layer)
            if number is None:
                self._numbers[layer] = number = next(self._next)
                forget = functools.partial(_forget, self._layers, number)
                self._layers[number] = weakref.ref(layer, forget)
            return number

    def find(self, number: int) -> Layer:
        """The layer, or a UsageError when it is gone or never was."""
        place = self._layers.get(number)
        layer = None if place is None else place()
        if layer is None:
            raise UsageError(
                "no layer has this number",
                id="handle.freed",
                expected="the number of a layer that is still there: fp4moe.torch.handle(layer)",
                found=str(number),
            )
        return layer


def _forget(layers: dict[int, weakref.ref[Layer]], number: int, _: object) -> None:
    layers.pop(number, None)


class Names:
    """Layers by a name of the caller's; one layer to a name at a time."""

    def __init__(self) -> None:
        self._layers: weakref.WeakValueDictionary[str, Layer] = weakref.WeakValueDictionary()

    def add(self, layer: Layer, name: str) -> None:
        """Name a layer; a UsageError where another one that is alive has the name."""
        found = self._layers.get(name)
        if found is not None and found is not layer:
            gc.collect()  # its owner may be gone, in a cycle
            del found
        if self._layers.get(name, layer) is not layer:
            raise UsageError(
                "another layer has this name",
                id="handle.name",
                expected="one layer to a name in a process",
                found=name,
                remedy="close the model that has it, or load the second one in another process",
            )
        self._layers[name] = layer

    def find(self, name: str) -> Layer:
        """The layer, or a UsageError when it is gone or never was."""
        layer = self._layers.get(name)
        if layer is None:
            raise UsageError(
                "no layer has this name",
                id="handle.freed",
                expected="the name of a layer that is still there: fp4moe.torch.name_layer",
                found=name,
            )
        return layer


_registry = Registry()
_names = Names()


def handle(layer: Layer) -> int:
    """The number that stands for a layer in ``torch.ops.fp4moe``; the layer must be kept alive."""
    if not isinstance(layer, Layer):
        raise TypeError(f"layer: expected fp4moe.Layer, found {type(layer).__name__}")
    return _registry.add(layer)


def name_layer(layer: Layer, name: str) -> None:
    """Name a layer for ``torch.ops.fp4moe.apply_named``; the layer must be kept alive."""
    if not isinstance(layer, Layer):
        raise TypeError(f"layer: expected fp4moe.Layer, found {type(layer).__name__}")
    _names.add(layer, name)


def _run(x: torch.Tensor, logits: torch.Tensor, layer: int) -> torch.Tensor:
    return cast(torch.Tensor, _registry.find(layer).run(x, logits))


def _apply(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, layer: int) -> torch.Tensor:
    return cast(torch.Tensor, _registry.find(layer).apply(x, ids, weights))


def _run_out(x: torch.Tensor, logits: torch.Tensor, layer: int, *, out: torch.Tensor) -> None:
    _registry.find(layer).run(x, logits, out)


def _apply_out(
    x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, layer: int, *, out: torch.Tensor
) -> None:
    _registry.find(layer).apply(x, ids, weights, out)


def _apply_named(
    x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, layer: str
) -> torch.Tensor:
    return cast(torch.Tensor, _names.find(layer).apply(x, ids, weights))


def _apply_named_out(
    x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, layer: str, *, out: torch.Tensor
) -> None:
    _names.find(layer).apply(x, ids, weights, out)


def _refuse_gradients(*tensors: torch.Tensor) -> None:
    """While tracing: a graph with these operators has no backward."""
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        raise UsageError(
            "tensors ask for a gradient, which a layer has not",
            id="rows.gradient",
            expected="tensors without requires_grad, or torch.no_grad()",
            found="requires_grad=True",
            remedy="compile and call it under torch.no_grad()",
        )


def _fake_run(x: torch.Tensor, logits: torch.Tensor, layer: int) -> torch.Tensor:
    _refuse_gradients(x, logits)
    return x.new_empty(x.shape)


def _fake_apply(
    x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, layer: int | str
) -> torch.Tensor:
    _refuse_gradients(x, weights)
    return x.new_empty(x.shape)


def _fake_run_out(x: torch.Tensor, logits: torch.Tensor, layer: int, *, out: torch.Tensor) -> None:
    _refuse_gradients(x, logits, out)


def _fake_apply_out(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    layer: int | str,
    *,
    out: torch.Tensor,
) -> None:
    _refuse_gradients(x, weights, out)


_IMPLEMENTATIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "run": (_run, _fake_run),
    "apply": (_apply, _fake_apply),
    "run_out": (_run_out, _fake_run_out),
    "apply_out": (_apply_out, _fake_apply_out),
    "apply_named": (_apply_named, _fake_apply),
    "apply_named_out": (_apply_named_out, _fake_apply_out),
}


def _define() -> torch.library.Library:
    library = torch.library.Library("fp4moe", "FRAGMENT")  # type: ignore[no-untyped-call]
    for name, schema in SCHEMAS.items():
        real, fake = _IMPLEMENTATIONS[name]
        tags = (torch.Tag.pt2_compliant_tag,)
        library.define(name + schema, tags=tags)  # type: ignore[no-untyped-call]
        for key in ("CPU", "CUDA"):
            library.impl(name, real, key)  # type: ignore[no-untyped-call]
        # Nothing to record: the layer itself refuses tensors that ask for a gradient.
        skip = torch.library.fallthrough_kernel
        library.impl(name, skip, "Autograd")  # type: ignore[no-untyped-call]
        torch.library.register_fake(f"fp4moe::{name}", fake, lib=library)
    return library


_library = _define()  # operators live as long as it does

run = torch.ops.fp4moe.run.default
apply = torch.ops.fp4moe.apply.default
apply_named = torch.ops.fp4moe.apply_named.default
apply_named_out = torch.ops.fp4moe.apply_named_out.default
