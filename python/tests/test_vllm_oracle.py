"""fp4moe.vllm: vLLM's functions by name, with numpy alone."""

from __future__ import annotations

import dataclasses
import enum
import json
import re
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import fp4moe
from fp4moe import _core
from fp4moe.vllm.method import Mxfp4MoEMethod, NvFp4MoEMethod
from fp4moe.vllm.oracle import Context, FusedMoEConfig, FusedMoEParallelConfig, mxfp4, nvfp4
from fp4moe.vllm.oracle.mxfp4 import Mxfp4MoeBackend
from fp4moe.vllm.oracle.nvfp4 import NvFp4MoeBackend
from vllm_layers import EXPERTS, HIDDEN, INTERMEDIATE, gpt_oss, nvfp4_layer, read_tensors

H100, B200 = Context(policy="2026-08-22", device="h100"), Context(policy="2026-08-22", device="b200")
APRIL = Context(policy="2026-04-24", device="h100")


def small(context: Context, **fields: object) -> FusedMoEConfig:
    return FusedMoEConfig(
        num_experts=EXPERTS, num_local_experts=EXPERTS, experts_per_token=2, hidden_dim=HIDDEN,
        intermediate_size_per_partition=INTERMEDIATE, has_bias=True, context=context,
    ).replace(**fields)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, np.ndarray]]:
    folder = tmp_path_factory.mktemp("vllm") / "gpt-oss"
    return folder, gpt_oss(folder)


def test_members_are_those_of_the_library():
    for format, enum in (("mxfp4", Mxfp4MoeBackend), ("nvfp4", NvFp4MoeBackend)):
        asked = json.dumps({"ask": "backends", "format": format, "context": {"device": "cpu"}})
        assert [member.value for member in enum] == json.loads(_core.vllm_ask(asked))


def test_the_configuration_has_every_field_of_a_layer():
    record = fp4moe.explain(device="h100", policy="2026-08-22")
    fields = {field.name for field in dataclasses.fields(FusedMoEConfig)}
    assert set(record["layer"]) - {"parallel"} <= fields
    parallel = {field.name for field in dataclasses.fields(FusedMoEParallelConfig)}
    assert set(re.findall(r"(\w+)=", record["layer"]["parallel"])) == parallel


def test_selections_are_those_of_explain():
    for context in (H100, B200, APRIL, Context("2026-03-20", device="mi300x")):
        backend, experts = selected = mxfp4.select_mxfp4_moe_backend(FusedMoEConfig(has_bias=True, context=context))
        record = fp4moe.explain(device=context.device, policy=context.policy)
        assert (backend.value, experts.name) == (record.backend, record.experts)
        assert selected.record.would_run == record.would_run
        assert selected.backend is backend and selected.experts_cls is experts
    deepseek = FusedMoEConfig(
        num_experts=256, num_local_experts=256, experts_per_token=8, hidden_dim=7168,
        intermediate_size_per_partition=2048, activation="silu", routing_method="DeepSeekV3", context=B200,
    )
    backend, experts = nvfp4.select_nvfp4_moe_backend(deepseek, "nvfp4", "nvfp4")
    assert backend is NvFp4MoeBackend.FLASHINFER_TRTLLM and experts.is_monolithic
    assert nvfp4.select_nvfp4_moe_backend(deepseek.replace(context=H100), activation_key=None)[0] is NvFp4MoeBackend.MARLIN


def test_a_refusal_is_the_references_sentence_with_its_record():
    with pytest.raises(fp4moe.UnsupportedError) as why:
        mxfp4.select_mxfp4_moe_backend(small(APRIL, moe_backend="cutlass"))
    assert str(why.value).startswith("moe_backend='cutlass' is not supported for MXFP4 MoE. Expected one of [")
    assert why.value.id == "vllm.refused" and why.value.record.refusals
    with pytest.raises(fp4moe.UsageError, match="policy"):
        mxfp4.select_mxfp4_moe_backend(small(Context(policy="1999-01-01", device="h100")))
    with pytest.raises(fp4moe.UsageError, match="activation"):
        mxfp4.select_mxfp4_moe_backend(small(H100, activation="relu7"))
    with pytest.raises(fp4moe.UsageError, match="vllm.key"):
        nvfp4.select_nvfp4_moe_backend(small(H100), "mxfp4")
    with pytest.raises(fp4moe.UsageError, match="vllm.ask"):
        mxfp4.select_mxfp4_moe_backend(small(Context(mode="loose", device="h100")))


def test_backends_go_by_member_name_or_value_and_fields_by_vllms_own_words():
    class Theirs(enum.Enum):  # as an engine's own enumeration
        MARLIN = "MARLIN"

    class Activation(enum.Enum):
        SILU = "silu"

    class Routing(enum.IntEnum):
        Renormalize = 1

    classes = [mxfp4.backend_to_kernel_cls(one, context=H100) for one in (Mxfp4MoeBackend.MARLIN, "MARLIN", Theirs.MARLIN)]
    assert classes[0] == classes[1] == classes[2]
    assert mxfp4.backend_activation_key("FLASHINFER_TRTLLM_MXFP4_MXFP8", context=B200) == "mxfp8"
    for backend, match in (("MARLINN", "did you mean MARLIN"), ("", "vllm.backend"), (None, "vllm.backend"), (3, "vllm.backend")):
        with pytest.raises(fp4moe.UsageError, match=match):
            mxfp4.mxfp4_round_up_hidden_size_and_intermediate_size(backend, 2880, 2880, context=H100)
    plain = small(H100, activation="silu", in_dtype="float32")
    theirs = small(
        H100, activation=Activation.SILU, routing_method=Routing.Renormalize, in_dtype=np.dtype("float32"),
        num_experts=np.int64(EXPERTS),
    )
    assert mxfp4.select_mxfp4_moe_backend(theirs) == mxfp4.select_mxfp4_moe_backend(plain)


def test_sizes_that_cannot_be_are_refused():
    for field in ("num_experts", "experts_per_token", "hidden_dim", "intermediate_size_per_partition"):
        for value in (-1, "many", 1.5):
            with pytest.raises(fp4moe.UsageError, match=field):
                mxfp4.select_mxfp4_moe_backend(small(H100, **{field: value}))
    with pytest.raises(fp4moe.UsageError, match="not finite"):
        mxfp4.select_mxfp4_moe_backend(small(H100, swiglu_limit=float("nan")))
    odd = small(H100, hidden_dim=100, intermediate_size_per_partition=33)
    with pytest.raises(fp4moe.UnsupportedError, match="a multiple of 32, found 100"):
        Mxfp4MoEMethod(odd)
    empty = np.zeros((0, 128, 64), np.uint8)
    with pytest.raises(fp4moe.UsageError, match="num_experts.*from 1"):
        mxfp4.convert_to_mxfp4_moe_kernel_format(
            Mxfp4MoeBackend.MARLIN, None, empty, empty, empty, empty, context=H100
        )


def test_environment_and_libraries_are_of_the_context():
    forced = dataclasses.replace(APRIL, environment={"VLLM_MXFP4_USE_MARLIN": "1"})
    assert mxfp4.select_mxfp4_moe_backend(small(forced))[0] is Mxfp4MoeBackend.MARLIN
    for on in (1, True):
        numbered = dataclasses.replace(APRIL, environment={"VLLM_MXFP4_USE_MARLIN": on})
        assert mxfp4.select_mxfp4_moe_backend(small(numbered))[0] is Mxfp4MoeBackend.MARLIN
    bare = dataclasses.replace(APRIL, libraries=[])
    assert mxfp4.select_mxfp4_moe_backend(small(bare))[0] is Mxfp4MoeBackend.MARLIN
    with pytest.raises(fp4moe.UsageError, match="VLLM_NO_SUCH"):
        mxfp4.select_mxfp4_moe_backend(small(dataclasses.replace(APRIL, environment={"VLLM_NO_SUCH": "1"})))


def test_lists_and_maps():
    april = mxfp4.get_priority_backends(small(APRIL))
    assert [b.value for b in april][:3] == ["FLASHINFER_TRTLLM_MXFP4_BF16", "AITER", "TRITON"]
    assert mxfp4.map_mxfp4_backend("aiter", context=H100)[2] is Mxfp4MoeBackend.AITER_MXFP4_MXFP4
    assert mxfp4.backend_activation_key(Mxfp4MoeBackend.FLASHINFER_TRTLLM_MXFP4_MXFP8, context=B200) == "mxfp8"
    assert mxfp4.backend_activation_key(Mxfp4MoeBackend.MARLIN, context=B200) is None
    classes = mxfp4.backend_to_kernel_cls(Mxfp4MoeBackend.TRITON, context=APRIL)
    assert [c.name for c in classes] == ["OAITritonMxfp4ExpertsMonolithic", "OAITritonExperts"]
    sizes = mxfp4.mxfp4_round_up_hidden_size_and_intermediate_size
    assert sizes(Mxfp4MoeBackend.MARLIN, 2880, 2880, context=H100) == (3072, 2944)
    assert nvfp4.map_nvfp4_backend("cutlass", context=B200) is NvFp4MoeBackend.VLLM_CUTLASS
    assert nvfp4.is_global_sf_supported_for_nvfp4_backend(NvFp4MoeBackend.FLASHINFER_CUTLASS, context=B200)
    assert nvfp4.backend_2_kernel_cls(NvFp4MoeBackend.MARLIN, context=Context("2026-01-seed", device="h100")).name == "MarlinExperts"
    assert NvFp4MoeBackend.FLASHINFER_TRTLLM in nvfp4.FLASHINFER_NVFP4_MOE_BACKENDS
    assert nvfp4.get_available_nvfp4_backends(small(B200))[0] is NvFp4MoeBackend.FLASHINFER_TRTLLM


@pytest.mark.parametrize(
    ("backend", "device"),
    [("MARLIN", "h100"), ("TRITON", "h100"), ("FLASHINFER_CUTLASS_MXFP4_BF16", "h100"),
     ("FLASHINFER_TRTLLM_MXFP4_BF16", "b200"), ("AITER_MXFP4_BF16", "mi355x"), ("XPU", "cpu"), ("CPU", "cpu")],
)  # fmt: skip
def test_tensors_have_the_bytes_that_convert_writes(backend, device, checkpoint, tmp_path):
    folder, tensors = checkpoint
    out = tmp_path / "out"
    fp4moe.convert(folder, out, policy="2026-08-22", backend=backend, device=device)
    written = {}
    for file in out.glob("experts-*.safetensors"):
        written |= {name.rsplit(".", 1)[1]: value for name, value in read_tensors(file).items()}
    result = mxfp4.convert_gpt_oss_weight_to_mxfp4_moe_kernel_format(
        Mxfp4MoeBackend(backend), None, **tensors,
        context=Context("2026-08-22", device=device), threads=2,
    )
    for ours, name in zip(("w13", "w2", "w13_scale", "w2_scale"), result.names):
        assert result.storages[name].tobytes() == written[ours][2], name
    assert len(result) == 6 and result[0] is result["w13_weight"]


def test_nvfp4_tensors_are_the_references_eight():
    layer = nvfp4_layer()
    result = nvfp4.convert_to_nvfp4_moe_kernel_format(
        NvFp4MoeBackend.FLASHINFER_CUTLASS, None, *(layer[name] for name in (
            "w13", "w13_scale", "w13_scale_2", "a13_scale", "w2", "w2_scale", "w2_scale_2", "a2_scale")),
        True, context=B200,
    )  # fmt: skip
    w13, w13_scale, w13_scale_2, a13_scale, w2, w2_scale, w2_scale_2, a2_scale = result
    half = layer["w13"].shape[1] // 2
    assert np.array_equal(w13, np.concatenate([layer["w13"][:, half:], layer["w13"][:, :half]], 1))
    assert np.array_equal(w2, layer["w2"]) and np.array_equal(w13_scale_2, layer["w13_scale_2"])
    assert np.array_equal(a13_scale, np.full(3, layer["a13_scale"].max()))
    assert np.array_equal(a2_scale, np.full(3, layer["a2_scale"].max()))
    # The 128x4 swizzle, element by element.
    rows = np.concatenate([layer["w13_scale"][:, half:], layer["w13_scale"][:, :half]], 1)
    flat, columns = w13_scale.reshape(3, -1), rows.shape[2]
    for r in range(0, rows.shape[1], 7):
        for c in range(columns):
            at = (r // 128 * (columns // 4) + c // 4) * 512 + r % 32 * 16 + r % 128 // 32 * 4 + c % 4
            assert flat[1, at] == rows[1, r, c]
    quant = nvfp4.make_nvfp4_moe_quant_config(
        NvFp4MoeBackend.FLASHINFER_CUTLASS, w13_scale, w2_scale, w13_scale_2, w2_scale_2, a13_scale, a2_scale,
        config=small(B200, activation_quant="nvfp4", activation="silu"),
    )
    assert quant.scheme == "nvfp4" and quant.quant_dtype == "nvfp4" and quant.is_scale_swizzled
    assert np.array_equal(quant.g1_alphas, a13_scale * layer["w13_scale_2"])
    assert np.array_equal(quant.a2_gscale, np.float32(1) / a2_scale)
    assert np.array_equal(result.handle.numbers("g1_alphas"), quant.g1_alphas.astype(np.float64))
    marlin = nvfp4.convert_to_nvfp4_moe_kernel_format(NvFp4MoeBackend.MARLIN, None, **layer, context=H100)
    assert marlin["a13_scale"] is None and marlin["w13"].dtype == np.int32
    emulated = nvfp4.convert_to_nvfp4_moe_kernel_format(NvFp4MoeBackend.EMULATION, None, **layer, context=H100)
    assert emulated["a13_scale"] == np.float32(1) / layer["a13_scale"].max()


def test_what_does_not_fit_is_refused(checkpoint):
    _, tensors = checkpoint
    convert = mxfp4.convert_to_mxfp4_moe_kernel_format

    def refused(match: str, kind: type = fp4moe.UsageError, **others: object) -> None:
        with pytest.raises(kind, match=match):
            convert(Mxfp4MoeBackend.MARLIN, None, **{**tensors, **others}, context=H100)

    refused("w13_weight", w13_weight=tensors["w13_weight"].astype(np.float32))
    refused("w13_weight_scale", w13_weight_scale=tensors["w13_weight_scale"][:, 1:])
    refused("vllm.tensor", w2_weight=tensors["w2_weight"][0])
    refused("w2_bias", w2_bias=tensors["w2_bias"].astype(np.int32))
    refused("tensor of torch or numpy", TypeError, w13_bias=[1.0])
    broken = tensors["w13_weight_scale"].copy()
    broken[1, 2, 3] = 255
    refused("scale.nan", fp4moe.InvalidInputError, w13_weight_scale=broken)
    with pytest.raises(fp4moe.UnavailableError, match="layout.external"):
        convert(Mxfp4MoeBackend.HUMMING, None, **tensors, context=H100)
    with pytest.raises(fp4moe.UsageError, match="vllm.backend"):
        convert(Mxfp4MoeBackend.CK, None, **tensors, context=H100)
    with pytest.raises(fp4moe.UsageError, match="vllm.ask"):
        convert(Mxfp4MoeBackend.MARLIN, None, **tensors, context=H100, tp_size="many")
    with pytest.raises(TypeError, match="'thread', expected .*threads"):
        convert(Mxfp4MoeBackend.MARLIN, None, **tensors, context=H100, thread=2)
    # Gaps are copied over.
    apart = {**tensors, "w13_weight": np.repeat(tensors["w13_weight"], 2, axis=2)[:, :, ::2]}
    assert np.array_equal(convert(Mxfp4MoeBackend.MARLIN, None, **apart, context=H100)[0],
                          convert(Mxfp4MoeBackend.MARLIN, None, **tensors, context=H100)[0])


def loaded(method: Mxfp4MoEMethod, tensors: dict[str, np.ndarray]) -> types.SimpleNamespace:
    layer = types.SimpleNamespace()
    method.create_weights(layer)
    for name, tensor in tensors.items():
        getattr(layer, name)[tuple(slice(0, size) for size in tensor.shape)] = tensor
    return layer


def test_a_layers_whole_life(checkpoint):
    folder, tensors = checkpoint
    rng = np.random.default_rng(5)
    x, logits = rng.standard_normal((6, HIDDEN), np.float32), rng.standard_normal((6, EXPERTS), np.float32)
    witness = fp4moe.Layer.open(folder, 0, engine="reference", numerics="exact")
    ids, weights = witness.route(logits)
    exact = witness.apply(x, ids, weights)
    for context, backend in ((APRIL, "auto"), (H100, "marlin"), (B200, "auto"), (Context("native", device="cpu"), "auto")):
        method = Mxfp4MoEMethod(small(context, moe_backend=backend, experts_per_token=4), engine="reference", threads=1)
        assert method.get_fused_moe_quant_config(None) is None
        layer = loaded(method, tensors)
        assert layer.w13_weight.shape[1:] == (2 * method.maybe_roundup_sizes()[1], method.maybe_roundup_sizes()[0] // 2)
        method.process_weights_after_loading(layer)
        y = method.apply_monolithic(layer, x, logits) if method.is_monolithic else method.apply(layer, x, weights, ids)
        assert np.abs(y - exact).max() < 0.05 * np.abs(exact).max(), context
        again = np.empty_like(y)
        layer.w2_weight[:] = 0
        method.process_weights_after_loading(layer)  # a reload
        call = method.apply_monolithic if method.is_monolithic else method.apply
        call(layer, x, *((logits,) if method.is_monolithic else (weights, ids)), out=again)
        assert not np.array_equal(again, y)
        quant = method.get_fused_moe_quant_config(layer)
        assert quant.weight_quant_dtype == "mxfp4" and quant.gemm1_alpha == 1.702


def test_an_nvfp4_layers_life_in_both_dialects():
    tensors = nvfp4_layer(EXPERTS, 256, 64)
    names = {"w13": "w13_weight", "w2": "w2_weight", "w13_scale": "w13_weight_scale", "w2_scale": "w2_weight_scale",
             "w13_scale_2": "w13_weight_scale_2", "w2_scale_2": "w2_weight_scale_2", "a13_scale": "w13_input_scale",
             "a2_scale": "w2_input_scale"}  # fmt: skip
    packed = {"w13_weight": "w13_weight_packed", "w2_weight": "w2_weight_packed",
              "w13_weight_scale_2": "w13_weight_global_scale", "w2_weight_scale_2": "w2_weight_global_scale",
              "w13_input_scale": "w13_input_global_scale", "w2_input_scale": "w2_input_global_scale"}  # fmt: skip
    config = small(B200, hidden_dim=256, intermediate_size_per_partition=64, has_bias=False, activation="silu",
                   moe_backend="flashinfer_cutlass")
    x = np.random.default_rng(3).standard_normal((4, 256), np.float32)
    ids, weights = np.array([[0, 3]] * 4, np.int64), np.full((4, 2), 0.5, np.float32)
    results = []
    for dialect in ("modelopt", "compressed-tensors"):
        method = NvFp4MoEMethod(config, names=dialect, engine="reference", threads=1)
        layer = types.SimpleNamespace()
        method.create_weights(layer)
        for short, name in names.items():
            value = tensors[short]
            if dialect != "modelopt" and name.endswith(("scale_2", "input_scale")):
                value = np.float32(1) / value
            to = getattr(layer, packed.get(name, name) if dialect != "modelopt" else name)
            to[:] = value if to.shape == value.shape else value[:, None]
        method.process_weights_after_loading(layer)
        results.append(method.apply(layer, x, weights, ids))
    assert np.abs(results[0]).max() > 0
    assert np.abs(results[0] - results[1]).max() < 0.1 * np.abs(results[0]).max()


def test_calls_are_checked(checkpoint):
    _, tensors = checkpoint
    method = Mxfp4MoEMethod(small(H100, moe_backend="marlin"), engine="cpu", threads=1)
    x = np.zeros((2, HIDDEN), np.float32)
    ids, weights = np.zeros((2, 2), np.int32), np.ones((2, 2), np.float32)
    with pytest.raises(fp4moe.UsageError, match="vllm.order"):
        method.apply(None, x, weights, ids)
    with pytest.raises(fp4moe.UsageError, match="vllm.order"):
        method.process_weights_after_loading(types.SimpleNamespace())
    layer = loaded(method, tensors)
    method.process_weights_after_loading(layer)
    with pytest.raises(fp4moe.UsageError, match="vllm.routes"):
        method.apply(layer, x, weights[:1], ids)
    with pytest.raises(fp4moe.UsageError, match="an array of integers, found float64"):
        method.apply(layer, x, weights, ids + 0.5)
    with pytest.raises(fp4moe.UsageError, match="rows.columns"):
        method.apply(layer, x[:, :32].copy(), weights, ids)
    with pytest.raises(fp4moe.UsageError, match="vllm.kind"):
        method.apply_monolithic(layer, x, np.zeros((2, EXPERTS), np.float32))
    quant = method.get_fused_moe_quant_config(layer)
    shared = mxfp4.make_mxfp4_moe_kernel(
        quant, method.moe, method.experts_cls, method.mxfp4_backend, shared_experts=lambda x: x + 1,
        weights=method.weights, engine="cpu", threads=1,
    )
    assert np.array_equal(shared.apply(x, weights, ids), method.apply(layer, x, weights, ids) + 1)
    with pytest.raises(fp4moe.UsageError, match="routing tables"):
        mxfp4.make_mxfp4_moe_kernel(quant, method.moe, None, method.mxfp4_backend, (1, 2, 3), weights=method.weights)


def test_the_page_says_which_backends_convert():
    page = (Path(__file__).resolve().parents[2] / "docs/from-vllm.md")
    if not page.exists():
        pytest.skip("the page is not part of this installation")
    policies = ("vllm-0.33.0", "2026-08-22", "2026-04-24", "2026-03-20", "2026-01-seed", "native")
    for format, title in (("mxfp4", "Mxfp4MoeBackend"), ("nvfp4", "NvFp4MoeBackend")):
        table = page.read_text().split(f"| `{title}` | value | convert |")[1].split("\n\n")[0]
        for member, value, says in re.findall(r"^\| `(\w+)` \| `(\w+)` \| (.*) \|$", table, re.M):
            answers = set()
            for policy in policies:
                asked = {"ask": "kernel_format", "format": format, "backend": value,
                         "context": {"policy": policy, "device": "b200"},
                         "config": {"hidden_dim": 256, "intermediate_size_per_partition": 256}}  # fmt: skip
                try:
                    _core.vllm_ask(json.dumps(asked))
                    answers.add("yes")
                except fp4moe.Error as why:
                    answers.add(why.id)
            known = answers - {"vllm.backend", "policy.unknown"}
            assert known, member
            assert says.startswith(("yes", "ours")) == ("yes" in known) or says == "no kernel", (member, known)


def test_torch_is_not_imported():
    words = "import sys, fp4moe.vllm.oracle.mxfp4, fp4moe.vllm.oracle.nvfp4, fp4moe.vllm.method; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
