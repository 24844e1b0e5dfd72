"""Whether a model's code computes between its two GEMMs what fp4moe computes there.

The model's own function is asked with a few numbers and compared with the formula of the name that
fp4moe has for the checkpoint's family; g and u are gate and up, g' = min(g, limit),
u' = clamp(u, -limit, limit).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from fp4moe.errors import UnsupportedError


Formula = Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]


def _swigluoai(gate: torch.Tensor, up: torch.Tensor, limit: float) -> torch.Tensor:
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * torch.sigmoid(1.702 * gate) * (up + 1)


def _silu(gate: torch.Tensor, up: torch.Tensor, limit: float) -> torch.Tensor:
    return functional.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)


# name -> formula, the limit where nothing is configured
FORMULAS: dict[str, tuple[Formula, float]] = {
    "swigluoai": (_swigluoai, 7.0),
    "silu": (_silu, math.inf),
    "gelu": (lambda g, u, _: functional.gelu(g) * u, math.inf),
    "gelu_tanh": (lambda g, u, _: functional.gelu(g, approximate="tanh") * u, math.inf),
    "relu2_no_mul": (lambda g, _u, _: functional.relu(g).square(), math.inf),
    "silu_no_mul": (lambda g, _u, _: functional.silu(g), math.inf),
    "gelu_no_mul": (lambda g, _u, _: functional.gelu(g), math.inf),
    "gelu_tanh_no_mul": (lambda g, _u, _: functional.gelu(g, approximate="tanh"), math.inf),
}


def _ask(module: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """What the module's own code makes of these values."""
    if not module.has_gate:
        return module.act_fn(gate)  # type: ignore[no-any-return]
    pair = [gate, up]
    joined = torch.cat(pair) if module.is_concatenated else torch.stack(pair, -1).flatten()
    return module._apply_gate(joined[None])[0]  # type: ignore[no-any-return]


def configured_limit(document: dict[str, Any]) -> float | None:
    """swiglu_limit of a config.json: of the text part first, as the experts are read with it."""
    parts = [document.get(key) for key in ("text_config", "llm_config", "language_config")]
    thinker = document.get("thinker_config")
    speaks = thinker.get("text_config") if isinstance(thinker, dict) else None
    inner = next((part for part in parts if part is not None), speaks)
    limits = (part.get("swiglu_limit") for part in (inner, document) if isinstance(part, dict))
    return next((float(limit) for limit in limits if limit is not None), None)


def check_activation(module: Any, name: str, limit: float | None, where: str) -> None:
    """Refuse a module that computes something else than `name`, `limit` as configured."""
    if name not in FORMULAS:
        raise UnsupportedError(
            "this activation cannot be compared with the model's",
            id="transformers.activation",
            tensor=where,
            expected=", ".join(FORMULAS),
            found=name,
        )
    formula, default = FORMULAS[name]
    values = torch.linspace(-11.0, 11.0, 23, dtype=torch.float64, device="cpu")
    gate, up = values.repeat_interleave(23), values.repeat(23)
    wanted = formula(gate, up, default if limit is None else limit)
    found = _ask(module, gate, up).double()
    if not torch.allclose(wanted, found, rtol=1e-5, atol=1e-7):
        apart = (wanted - found).abs().max().item()
        raise UnsupportedError(
            "the model's code computes another activation than the checkpoint's family has",
            id="transformers.activation",
            tensor=where,
            expected=f"{name}, limit {default if limit is None else limit}",
            found=f"values that are {apart:.3g} apart",
            remedy="check hidden_act, swiglu_limit and swiglu_alpha in config.json",
        )
