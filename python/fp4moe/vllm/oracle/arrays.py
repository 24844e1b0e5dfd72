"""Arrays of torch and numpy: as bytes, new ones, and as a kernel sees its storage."""

from __future__ import annotations

import sys
from typing import Any, Mapping, Sequence

import numpy as np

from fp4moe.errors import UsageError

TORCH = {
    "U8": "uint8", "I32": "int32", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn", "F8_E8M0": "float8_e8m0fnu",
}  # fmt: skip
# numpy has no name for BF16 and FP8: their bits.
NUMPY = {
    "U8": "uint8", "I32": "int32", "F32": "float32", "F16": "float16", "BF16": "uint16",
    "F8_E4M3": "uint8", "F8_E8M0": "uint8",
}  # fmt: skip


def is_torch(array: object) -> bool:
    """Whether it is a tensor of torch, which is not imported for that."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def torch_type(torch: Any, name: str) -> Any:
    """The type, its bytes where this torch has none of that name."""
    return getattr(torch, TORCH[name], torch.uint8)


def plain(array: Any) -> Any:
    """Without gaps and gradients; types of one byte as bytes."""
    if array is None:
        return None
    if is_torch(array):
        result = array.detach().contiguous()
        if result.element_size() == 1 and result.dtype.is_floating_point:
            result = result.view(sys.modules["torch"].uint8)
        return result
    if not isinstance(array, np.ndarray):
        raise TypeError(f"expected a tensor of torch or numpy, found {type(array).__name__}")
    result = np.ascontiguousarray(array)
    is_small = result.dtype.itemsize == 1 and result.dtype.kind not in "uib"
    return result.view(np.uint8) if is_small else result


def bias_type(bias: Any) -> str:
    """The type of a bias; none counts as BF16."""
    name = "" if bias is None else str(bias.dtype).removeprefix("torch.")
    return {"float32": "F32", "float16": "F16"}.get(name, "BF16")


def new_bytes(like: Any, count: int) -> Any:
    """Memory of the kind that `like` is."""
    if is_torch(like):
        return sys.modules["torch"].empty(count, dtype=sys.modules["torch"].uint8)
    return np.empty(count, np.uint8)


def seen(storage: Any, tensor: Mapping[str, Any]) -> Any:
    """Bytes as the tensor that a kernel sees there, without copying."""
    extents, strides = tuple(tensor["extents"]), tuple(tensor["strides"])
    if is_torch(storage):
        typed = storage.view(torch_type(sys.modules["torch"], tensor["dtype"]))
        return typed.as_strided(extents, strides)
    typed = storage.view(NUMPY[tensor["dtype"]])
    return np.lib.stride_tricks.as_strided(
        typed, extents, tuple(stride * typed.itemsize for stride in strides)
    )


def floats(like: Any, values: Sequence[float], is_scalar: bool = False) -> Any:
    """Numbers as float32."""
    result = np.array(values, np.float32)
    result = result.reshape(()) if is_scalar else result
    return sys.modules["torch"].from_numpy(result) if is_torch(like) else result


def routes(array: Any, dtype: str) -> Any:
    """Ids or weights without gaps, of the one type that kernels take."""
    if is_torch(array):
        is_whole = not array.dtype.is_floating_point
    else:
        is_whole = np.asarray(array).dtype.kind in "iu"
    if dtype == "int32" and not is_whole:
        raise UsageError(
            "topk_ids are no whole numbers", id="vllm.routes",
            expected="an array of integers", found=str(array.dtype),
        )  # fmt: skip
    if is_torch(array):
        return array.detach().to(getattr(sys.modules["torch"], dtype)).contiguous()
    return np.ascontiguousarray(array, dtype)
