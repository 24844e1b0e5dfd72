"""Arrays on a GPU, as far as a machine without one can tell: who gets them and what is refused."""

from __future__ import annotations

import ctypes
import itertools
from pathlib import Path

import numpy as np
import pytest
from conftest import EXPERTS, HIDDEN, TOP_K, synth

import fp4moe

CUDA = 2  # DLPack's number of the device


class _Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("number", ctypes.c_int32)]


class _DType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class OnGpu:
    """What says by DLPack that it lies on a GPU; nothing may look into it."""

    _addresses = itertools.count(0x100000, 0x100000)  # no memory of this process

    def __init__(self, rows: int, columns: int, code: int = 2, number: int = 0) -> None:
        self._shape = (ctypes.c_int64 * 2)(rows, columns)
        self._managed = _Managed()
        tensor = self._managed.tensor
        tensor.data = next(self._addresses)
        tensor.device = _Device(CUDA, number)
        tensor.ndim, tensor.dtype = 2, _DType(code, 32, 1)
        tensor.shape = self._shape

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self._managed.tensor.device.number

    def __dlpack__(self, **_: object) -> object:
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return make(ctypes.addressof(self._managed), b"dltensor", None)


@pytest.fixture(scope="module")
def layer(tmp_path_factory: pytest.TempPathFactory) -> fp4moe.Layer:
    path: Path = tmp_path_factory.mktemp("models") / "tiny"
    synth(path, "--model", "gpt-oss-20b", "--experts", EXPERTS, "--hidden", HIDDEN,
          "--intermediate", 96)
    return fp4moe.Layer.open(path, 0, engine="cpu")


def test_a_layer_on_the_processor_refuses_tokens_on_a_gpu(layer):
    x, out = OnGpu(3, HIDDEN), OnGpu(3, HIDDEN)
    with pytest.raises(fp4moe.UsageError) as why:
        layer.run(x, OnGpu(3, EXPERTS), out=out)
    assert why.value.id == "layer.device"
    assert why.value.found == "cpu"
    with pytest.raises(fp4moe.UsageError) as why:
        layer.apply(x, OnGpu(3, TOP_K, code=0), OnGpu(3, TOP_K), out=out)
    assert why.value.id == "layer.device"
    with pytest.raises(fp4moe.UsageError) as why:
        layer.reserve(8)
    assert why.value.id == "layer.device"


def test_arrays_in_different_places_are_refused(layer):
    x, out = OnGpu(3, HIDDEN), OnGpu(3, HIDDEN)
    host = np.zeros((3, EXPERTS), np.float32)
    for logits, to in ((host, out), (OnGpu(3, EXPERTS, number=1), out), (OnGpu(3, EXPERTS), host)):
        with pytest.raises(fp4moe.UsageError) as why:
            layer.run(x, logits, out=to)
        assert why.value.id == "rows.device"
    with pytest.raises(fp4moe.UsageError) as why:
        layer.run(np.zeros((3, HIDDEN), np.float32), OnGpu(3, EXPERTS))
    assert why.value.id == "rows.device"


def test_outputs_on_a_gpu_must_not_lie_in_what_is_read(layer):
    x = OnGpu(3, HIDDEN)
    with pytest.raises(fp4moe.UsageError) as why:
        layer.run(x, OnGpu(3, EXPERTS), out=x)
    assert why.value.id == "rows.overlap"
    with pytest.raises(fp4moe.UsageError) as why:
        layer.apply(x, OnGpu(3, TOP_K, code=0), OnGpu(3, TOP_K), out=x)
    assert why.value.id == "rows.overlap"


def test_routes_on_a_gpu_must_go_together(layer):
    x, out = OnGpu(3, HIDDEN), OnGpu(3, HIDDEN)
    with pytest.raises(fp4moe.UsageError) as why:
        layer.apply(x, OnGpu(3, TOP_K, code=0), OnGpu(2, TOP_K), out=out)
    assert why.value.id == "routes.weights"
    with pytest.raises(fp4moe.UsageError) as why:
        layer.apply(x, OnGpu(3, TOP_K), OnGpu(3, TOP_K), out=out)
    assert why.value.id == "routes.memory"
