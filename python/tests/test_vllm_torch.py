"""fp4moe.vllm on tensors of torch: the same bytes as with numpy, nothing copied."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import fp4moe  # noqa: E402
from fp4moe.vllm.method import Mxfp4MoEMethod, NvFp4MoEMethod  # noqa: E402
from fp4moe.vllm.oracle import Context, FusedMoEConfig, mxfp4, nvfp4  # noqa: E402
from fp4moe.vllm.oracle.mxfp4 import Mxfp4MoeBackend  # noqa: E402
from fp4moe.vllm.oracle.nvfp4 import NvFp4MoeBackend  # noqa: E402
from vllm_layers import nvfp4_layer  # noqa: E402

E, H, I = 3, 256, 128  # noqa: E741
H100, B200 = Context("2026-08-22", device="h100"), Context("2026-08-22", device="b200")


def mxfp4_tensors() -> dict[str, torch.Tensor]:
    make = torch.Generator().manual_seed(1)

    def codes(*shape: int) -> torch.Tensor:
        return torch.randint(0, 256, shape, dtype=torch.uint8, generator=make)

    return {
        "w13_weight": codes(E, 2 * I, H // 2),
        "w2_weight": codes(E, H, I // 2),
        "w13_weight_scale": codes(E, 2 * I, H // 32) % 6 + 118,
        "w2_weight_scale": codes(E, H, I // 32) % 6 + 118,
        "w13_bias": torch.randn(E, 2 * I, generator=make).bfloat16(),
        "w2_bias": torch.randn(E, H, generator=make).bfloat16(),
    }


def test_types_and_shapes_are_vllms():
    tensors = mxfp4_tensors()
    convert = mxfp4.convert_gpt_oss_weight_to_mxfp4_moe_kernel_format
    w13, w2, s13, s2, b13, b2 = convert(Mxfp4MoeBackend.MARLIN, None, **tensors, context=H100)
    assert w13.dtype == torch.int32 and w13.shape == (E, H // 16, 4 * I)
    assert s13.dtype == torch.float8_e8m0fnu and s13.shape == (E, H // 32, 2 * I)
    assert b13.dtype == torch.bfloat16 and b2.shape == (E, H)
    w13, w2, s13, s2, b13, b2 = convert(
        Mxfp4MoeBackend.FLASHINFER_TRTLLM_MXFP4_BF16, None, **tensors, context=B200
    )
    assert s13.dtype == torch.float8_e4m3fn and b13.dtype == torch.float32
    # The rows of TRT-LLM: pairs swapped, then the shuffle of 32.
    y = torch.arange(2 * I)
    source = 32 * (y // 32) + 4 * (y % 8) + y % 32 // 8
    assert torch.equal(w13, tensors["w13_weight"][:, source ^ 1])
    assert torch.equal(b13, tensors["w13_bias"][:, source ^ 1].float())


def test_torch_and_numpy_give_the_same_bytes():
    layer = nvfp4_layer()
    tensors = {name: torch.from_numpy(array) for name, array in layer.items()}
    for name in ("w13_scale", "w2_scale"):
        tensors[name] = tensors[name].view(torch.float8_e4m3fn)
    for backend, context in ((NvFp4MoeBackend.MARLIN, H100), (NvFp4MoeBackend.FLASHINFER_TRTLLM, B200),
                             (NvFp4MoeBackend.VLLM_CUTLASS, B200), (NvFp4MoeBackend.EMULATION, H100)):  # fmt: skip
        ours = nvfp4.convert_to_nvfp4_moe_kernel_format(backend, None, **tensors, context=context)
        theirs = nvfp4.convert_to_nvfp4_moe_kernel_format(backend, None, **layer, context=context)
        for name, a, b in zip(ours.names, ours, theirs):
            if b is None:
                assert a is None
                continue
            bits = a.contiguous().view(torch.uint8) if a.ndim else a.reshape(1).view(torch.uint8)
            assert bits.numpy().tobytes() == np.ascontiguousarray(b).tobytes(), name
    assert ours["w13_scale"].dtype == torch.float8_e4m3fn


def test_a_module_gets_parameters_and_runs():
    config = FusedMoEConfig(
        num_experts=E, num_local_experts=E, experts_per_token=2, hidden_dim=H,
        intermediate_size_per_partition=I, has_bias=True, moe_backend="marlin", context=H100,
    )  # fmt: skip
    method, layer = Mxfp4MoEMethod(config, engine="cpu", threads=1), torch.nn.Module()
    method.create_weights(layer)
    assert isinstance(layer.w13_weight, torch.nn.Parameter) and layer.w13_bias.dtype == torch.bfloat16
    for name, tensor in mxfp4_tensors().items():
        getattr(layer, name).data.copy_(tensor)
    method.process_weights_after_loading(layer)
    x = torch.randn(5, H, dtype=torch.bfloat16)
    ids, weights = torch.tensor([[0, 2]] * 5), torch.full((5, 2), 0.5)
    y = method.apply(layer, x, weights, ids)
    assert y.dtype == torch.bfloat16 and y.shape == x.shape and y.isfinite().all()
    out = torch.empty_like(y)
    assert torch.equal(method.apply(layer, x, weights.double(), ids.int(), out=out), y)
    with pytest.raises(fp4moe.UsageError, match="rows.columns"):
        method.apply(layer, x[:, :32].contiguous(), weights, ids)


def test_an_nvfp4_module_runs():
    config = FusedMoEConfig(
        num_experts=E, num_local_experts=E, experts_per_token=2, hidden_dim=256,
        intermediate_size_per_partition=64, activation="silu", context=H100,
    )  # fmt: skip
    method, layer = NvFp4MoEMethod(config, None, engine="cpu", threads=1), torch.nn.Module()
    assert method.nvfp4_backend is NvFp4MoeBackend.MARLIN
    method.create_weights(layer)
    loaded = nvfp4_layer(E, 256, 64)
    layer.w13_weight.data.copy_(torch.from_numpy(loaded["w13"]))
    layer.w2_weight.data.copy_(torch.from_numpy(loaded["w2"]))
    layer.w13_weight_scale.data.view(torch.uint8).copy_(torch.from_numpy(loaded["w13_scale"]))
    layer.w2_weight_scale.data.view(torch.uint8).copy_(torch.from_numpy(loaded["w2_scale"]))
    layer.w13_weight_scale_2.data.copy_(torch.from_numpy(loaded["w13_scale_2"])[:, None])
    layer.w2_weight_scale_2.data.copy_(torch.from_numpy(loaded["w2_scale_2"]))
    method.process_weights_after_loading(layer)
    y = method.apply(layer, torch.randn(2, 256), torch.ones(2, 2), torch.tensor([[0, 1], [1, 2]]))
    assert y.abs().max() > 0
