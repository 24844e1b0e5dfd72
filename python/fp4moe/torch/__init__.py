"""fp4moe for torch: operators that torch.compile understands, and a module."""

from __future__ import annotations

from fp4moe.torch.moe import MoE
from fp4moe.torch.ops import handle, name_layer

__all__ = ["MoE", "handle", "name_layer"]
