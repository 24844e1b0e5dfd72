"""vLLM's own conversions beside fp4moe's, where vLLM is installed: the same bytes.

Only conversions that run on tensors in the host's memory can be compared; the others say why not.
"""

from __future__ import annotations

import types

import numpy as np
import pytest

# What a conversion of vLLM's ends with where it needs a device or a library that is not here.
CANNOT = (AttributeError, ImportError, NotImplementedError, RuntimeError, AssertionError)
# vLLM's experts class clears the sign of zeros after the conversion; fp4moe's layout has it done.
LATER = {"B12X_MXFP4_MXFP8", "B12X_MXFP4_BF16"}
E, H, I = 2, 256, 128  # noqa: E741


@pytest.fixture(autouse=True)
def tensors_stay(monkeypatch):
    """Some conversions move what they made to a GPU."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        monkeypatch.setattr(torch.Tensor, "cuda", lambda self, *_, **__: self)


@pytest.fixture(scope="module")
def theirs():
    pytest.importorskip("torch")
    pytest.importorskip("vllm")
    pytest.importorskip("fp4moe")
    oracle = "vllm.model_executor.layers.fused_moe.oracle."
    return types.SimpleNamespace(
        mxfp4=pytest.importorskip(oracle + "mxfp4"), nvfp4=pytest.importorskip(oracle + "nvfp4")
    )


def context():
    import vllm

    from fp4moe.vllm.oracle import Context

    return Context(policy=f"vllm:{vllm.__version__.split('+')[0]}", device="b200")


def as_bytes(tensor) -> bytes:
    import torch

    if tensor is None:
        return b""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def mxfp4_tensors(rng):
    import torch

    def codes(*shape):
        return torch.from_numpy(rng.integers(0, 256, shape, np.uint8))

    def scales(*shape):
        return torch.from_numpy(rng.integers(100, 140, shape, np.uint8))

    return {
        "w13_weight": codes(E, 2 * I, H // 2),
        "w2_weight": codes(E, H, I // 2),
        "w13_weight_scale": scales(E, 2 * I, H // 32),
        "w2_weight_scale": scales(E, H, I // 32),
        "w13_bias": torch.from_numpy(rng.standard_normal((E, 2 * I), np.float32)).bfloat16(),
        "w2_bias": torch.from_numpy(rng.standard_normal((E, H), np.float32)).bfloat16(),
    }


def stand_in(**fields):
    """What conversions look at of a layer."""
    import torch

    parallel = types.SimpleNamespace(enable_eplb=False, tp_size=1, ep_size=1)
    config = types.SimpleNamespace(
        is_act_and_mul=True, has_bias=True, hidden_dim=H, hidden_dim_unpadded=H,
        intermediate_size_per_partition=I, moe_parallel_config=parallel, num_local_experts=E,
    )  # fmt: skip
    return types.SimpleNamespace(
        params_dtype=torch.bfloat16, num_experts=E, local_num_experts=E, hidden_size=H,
        intermediate_size_per_partition=I, moe_config=config, moe_parallel_config=parallel,
        activation=types.SimpleNamespace(is_gated=True, value="silu"), **fields,
    )  # fmt: skip


def clones(tensors):
    return {name: None if tensor is None else tensor.clone() for name, tensor in tensors.items()}


def test_members_are_vllms(theirs):
    from fp4moe.vllm.oracle.mxfp4 import Mxfp4MoeBackend
    from fp4moe.vllm.oracle.nvfp4 import NvFp4MoeBackend

    assert {m.value for m in theirs.mxfp4.Mxfp4MoeBackend} <= {m.value for m in Mxfp4MoeBackend}
    assert {m.value for m in theirs.nvfp4.NvFp4MoeBackend} <= {m.value for m in NvFp4MoeBackend}


@pytest.mark.parametrize(
    ("name", "at_least"),
    [
        ("convert_gpt_oss_weight_to_mxfp4_moe_kernel_format", {"EMULATION", "XPU"}),
        ("convert_weight_to_mxfp4_moe_kernel_format", set()),
    ],
)
def test_mxfp4_conversions_give_vllms_bytes(theirs, name, at_least):
    from fp4moe import Error
    from fp4moe.vllm.oracle import mxfp4

    if not hasattr(theirs.mxfp4, name):
        pytest.skip(f"this vLLM has no {name}")
    compared, left = set(), {}
    for member in theirs.mxfp4.Mxfp4MoeBackend:
        if member.value in LATER:
            left[member.value] = "differs until the experts class is made"
            continue
        tensors = mxfp4_tensors(np.random.default_rng(7))
        try:
            expected = getattr(theirs.mxfp4, name)(member, stand_in(**tensors), **clones(tensors))
            wanted = [as_bytes(tensor) for tensor in expected]
        except (*CANNOT, ValueError) as why:
            left[member.value] = f"vLLM: {why}"
            continue
        try:
            found = getattr(mxfp4, name)(
                mxfp4.Mxfp4MoeBackend(member.value), None, **tensors, context=context()
            )
        except Error as why:
            left[member.value] = f"fp4moe: {why}"
            continue
        for part, one, other in zip(found.names, found, wanted):
            assert as_bytes(one) == other, f"{member.value} {part}"
        compared.add(member.value)
    print(f"\n{name}: compared {sorted(compared)}, left out {sorted(left)}")
    assert compared >= at_least, left


def test_nvfp4_conversions_give_vllms_bytes(theirs):
    import torch

    from fp4moe import Error
    from fp4moe.vllm.oracle import nvfp4

    rng = np.random.default_rng(11)

    def scale(*shape):
        return torch.from_numpy(rng.integers(0x40, 0x60, shape, np.uint8)).view(torch.float8_e4m3fn)

    def factor(*shape):
        return torch.from_numpy((1 + rng.random(shape, np.float32)) * np.float32(0.001))

    tensors = {
        "w13": torch.from_numpy(rng.integers(0, 256, (E, 2 * I, H // 2), np.uint8)),
        "w13_scale": scale(E, 2 * I, H // 16),
        "w13_scale_2": factor(E),
        "a13_scale": factor(E, 2),
        "w2": torch.from_numpy(rng.integers(0, 256, (E, H, I // 2), np.uint8)),
        "w2_scale": scale(E, H, I // 16),
        "w2_scale_2": factor(E),
        "a2_scale": factor(E),
    }
    compared, left = set(), {}
    for member in theirs.nvfp4.NvFp4MoeBackend:
        try:
            expected = theirs.nvfp4.convert_to_nvfp4_moe_kernel_format(
                member, stand_in(), **clones(tensors), is_act_and_mul=True
            )
            wanted = [as_bytes(tensor) for tensor in expected]
        except (*CANNOT, ValueError) as why:
            left[member.value] = f"vLLM: {why}"
            continue
        try:
            found = nvfp4.convert_to_nvfp4_moe_kernel_format(
                nvfp4.NvFp4MoeBackend(member.value), None, **tensors, context=context()
            )
        except Error as why:
            left[member.value] = f"fp4moe: {why}"
            continue
        for part, one, other in zip(found.names, found, wanted):
            assert as_bytes(one) == other, f"{member.value} {part}"
        compared.add(member.value)
    print(f"\nNVFP4: compared {sorted(compared)}, left out {sorted(left)}")
    assert compared >= {"EMULATION", "VLLM_CUTLASS", "FLASHINFER_CUTLASS"}, left
