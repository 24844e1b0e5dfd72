"""Models whose tensors are arrays already: the same as from files, without a copy."""

from __future__ import annotations

import gc
import json
import os
import weakref
from pathlib import Path

import numpy as np
import pytest

import fp4moe

torch = pytest.importorskip("torch")
ml_dtypes = pytest.importorskip("ml_dtypes")
import torch_layers  # noqa: E402

LAYERS = {
    "gpt-oss": lambda: torch_layers.gpt_oss(),
    "modelopt": lambda: torch_layers.qwen3("modelopt"),
    "compressed-tensors": lambda: torch_layers.qwen3("compressed-tensors"),
}


def model_of(layer, tensors=None) -> fp4moe.Model:
    return fp4moe.Model.from_tensors(tensors or layer.tensors, layer.config, layer.quant_config)


def exact(model: fp4moe.Model) -> fp4moe.Layer:
    return model.layer(0, engine="reference", numerics="exact", threads=1)


@pytest.fixture(params=LAYERS)
def layer(request):
    return LAYERS[request.param]()


def test_tensors_in_memory_give_what_torch_computes(layer) -> None:
    model = model_of(layer)
    assert len(model) == 1 and model.path == "" and "in memory" in repr(model)
    x, logits = torch_layers.tokens(7)
    expected = layer.run(x, logits)
    with exact(model) as ours:
        assert torch_layers.distance(ours.run(x.double(), logits), expected) < 1e-6
    with model.layer(0, threads=1) as quick:
        assert torch_layers.distance(quick.run(x, logits), expected) < 2e-2


def test_files_and_memory_give_equal_bits(layer, tmp_path: Path) -> None:
    path = layer.save(tmp_path / "checkpoint")
    x, logits = torch_layers.tokens(5)
    for backend in ("CPU", "MARLIN"):
        with (
            fp4moe.Model.open(path).layer(0, backend=backend, threads=1) as a,
            model_of(layer).layer(0, backend=backend, threads=1) as b,
        ):
            assert torch.equal(a.run(x, logits), b.run(x, logits))


def as_numpy(tensor) -> np.ndarray:
    """The same bytes as numpy and ml_dtypes have them."""
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    if tensor.dtype == torch.float8_e4m3fn:
        return tensor.view(torch.uint8).numpy().view(ml_dtypes.float8_e4m3fn)
    return tensor.numpy()


def test_numpy_arrays_are_taken_and_may_be_read_only(layer) -> None:
    arrays = {name: as_numpy(tensor) for name, tensor in layer.tensors.items()}
    for array in arrays.values():
        array.setflags(write=False)
    x, logits = torch_layers.tokens(3)
    with exact(model_of(layer, arrays)) as ours:
        found = ours.run(x.double().numpy(), logits.numpy())
    assert torch_layers.distance(torch.from_numpy(found), layer.run(x, logits)) < 1e-6


@pytest.mark.parametrize(
    ("part", "dtype"), [("_scales", "float8_e8m0fnu"), ("_blocks", "float4_e2m1fn_x2")]
)
def test_codes_and_scales_may_have_types_of_their_own(part, dtype) -> None:
    if not hasattr(torch, dtype):
        pytest.skip(f"this torch has no {dtype}")
    layer = torch_layers.gpt_oss()
    x, logits = torch_layers.tokens(3)
    expected = layer.run(x, logits)
    tensors = dict(layer.tensors)
    for name in tensors:
        if name.endswith(part):
            tensors[name] = tensors[name].view(getattr(torch, dtype))
    with exact(model_of(layer, tensors)) as ours:
        assert torch_layers.distance(ours.run(x.double(), logits), expected) < 1e-6


def test_layers_follow_tensors_that_change(layer) -> None:
    ours = exact(model_of(layer))
    x, logits = torch_layers.tokens(4)
    before = ours.run(x.double(), logits)
    rows = ours.info()["weights_bytes"]
    for name, tensor in layer.tensors.items():
        if "down_proj" in name and tensor.dtype == torch.uint8 and "scale" not in name:
            tensor ^= 0x23
    assert torch.equal(ours.run(x.double(), logits), before), "a layer has weights of its own"
    for expert in range(torch_layers.EXPERTS):
        ours.load_expert(expert)
    expected = layer.run(x, logits)
    assert torch_layers.distance(ours.run(x.double(), logits), expected) < 1e-6
    assert torch_layers.distance(before, expected) > 0.1
    for name, tensor in layer.tensors.items():
        if "down_proj" in name and tensor.dtype == torch.uint8 and "scale" not in name:
            tensor ^= 0x23
    ours.load()
    assert torch.equal(ours.run(x.double(), logits), before)
    assert ours.info()["weights_bytes"] == rows


def test_arrays_live_as_long_as_somebody_needs_them() -> None:
    layer = torch_layers.gpt_oss()
    x, logits = torch_layers.tokens(2)
    expected = layer.run(x, logits)
    arrays = {name: as_numpy(tensor).copy() for name, tensor in layer.tensors.items()}
    watched = [weakref.ref(array) for array in arrays.values()]
    model = model_of(layer, arrays)
    ours = exact(model)
    del arrays, model
    gc.collect()
    ours.load()  # the layer reads them again
    found = ours.run(x.double().numpy(), logits.numpy())
    assert torch_layers.distance(torch.from_numpy(found), expected) < 1e-6
    alive = sum(each() is not None for each in watched)
    assert alive >= 4, "the experts' arrays are gone while a layer may read them"
    ours.close()
    del ours
    gc.collect()
    assert sum(each() is not None for each in watched) == 0, "arrays are held by nobody's model"


def test_numpy_refuses_to_resize_what_a_model_reads() -> None:
    layer = torch_layers.gpt_oss()
    arrays = {name: as_numpy(tensor).copy() for name, tensor in layer.tensors.items()}
    model = model_of(layer, arrays)
    with pytest.raises(ValueError, match="resize|reference"):
        arrays["model.layers.0.mlp.experts.down_proj_blocks"].resize((1,), refcheck=True)
    assert len(model) == 1


def test_parameters_that_are_trained_are_read_all_the_same() -> None:
    layer = torch_layers.gpt_oss()
    name = "model.layers.0.mlp.router.weight"
    tensors = {**layer.tensors, name: torch.nn.Parameter(layer.tensors[name])}
    weight, bias = model_of(layer, tensors).router(0)
    assert np.array_equal(weight, layer.tensors[name].float().numpy())
    assert bias is not None and bias.shape == (torch_layers.EXPERTS,)


def test_the_router_comes_with_the_model(layer, tmp_path: Path) -> None:
    weight, bias = layer.router
    for model in (model_of(layer), fp4moe.Model.open(layer.save(tmp_path / "c"))):
        found, found_bias = model.router(0)
        assert found.dtype == np.float32 and np.array_equal(found, weight.float().numpy())
        assert (found_bias is None) == (bias is None)
        with pytest.raises(fp4moe.UsageError) as caught:
            model.router(3)
        assert caught.value.id == "layer.number"


def test_configurations_may_be_text() -> None:
    layer = torch_layers.qwen3("modelopt")
    model = fp4moe.Model.from_tensors(
        layer.tensors, json.dumps(layer.config), json.dumps(layer.quant_config)
    )
    assert model.info()["layers"][0]["format"] == "nvfp4"


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (lambda t, n: t.__setitem__(n, t[n].transpose(1, 2)), fp4moe.UsageError, "contiguous"),
        (lambda t, n: t.__setitem__(n, t[n][:, ::2]), fp4moe.UsageError, "tensors.stride"),
        (lambda t, n: t.__setitem__(n, t[n].to(torch.complex128)), fp4moe.UsageError, "type"),
        (lambda t, n: t.__setitem__(n, t[n].to("meta")), fp4moe.UsageError, "memory|meta"),
        (lambda t, n: t.__setitem__(n, t[n].to_sparse()), fp4moe.UsageError, "memory|dense"),
        (lambda t, n: t.__setitem__(n, [1, 2]), TypeError, "expected an array.*found list"),
        (lambda t, n: t.__setitem__(n, None), TypeError, "found NoneType"),
        (lambda t, n: t.__setitem__(5, t[n]), TypeError, "name: expected str, found int"),
        (lambda t, n: t.pop(n), fp4moe.InvalidInputError, "tensor.missing"),
        (lambda t, n: t.__setitem__("", t[n]), fp4moe.InvalidInputError, "store.name"),
        (lambda t, n: t.__setitem__(n, t[n].float()), fp4moe.InvalidInputError, "tensor.dtype"),
        (lambda t, n: t.__setitem__(n, t[n][:, :32]), fp4moe.UsageError, "tensors.stride"),
        (lambda t, n: t.__setitem__(n, t[n][:2]), fp4moe.InvalidInputError, "tensor.shape"),
        (lambda t, n: t.clear(), fp4moe.InvalidInputError, "dialect.unknown"),
    ],
)
def test_wrong_tensors_are_refused_by_name(change, kind, words) -> None:
    layer = torch_layers.gpt_oss()
    change(layer.tensors, "model.layers.0.mlp.experts.down_proj_blocks")
    with pytest.raises(kind, match=words):
        model_of(layer)


def test_wrong_arguments_are_refused() -> None:
    layer = torch_layers.gpt_oss()
    for wrong in (None, 5, [("a", np.zeros(3))], "abc"):
        with pytest.raises(TypeError, match="a mapping from names to arrays"):
            fp4moe.Model.from_tensors(wrong, layer.config)
    with pytest.raises(fp4moe.InvalidInputError) as caught:
        fp4moe.Model.from_tensors(layer.tensors, "{")
    assert caught.value.path == "config.json"
    with pytest.raises(fp4moe.InvalidInputError) as caught:
        fp4moe.Model.from_tensors(layer.tensors, {"model_type": 7})
    assert caught.value.id == "config.type"
    with pytest.raises(TypeError):
        fp4moe.Model.from_tensors(layer.tensors, {"model_type": object()})
    with pytest.raises(fp4moe.InvalidInputError) as caught:
        fp4moe.Model.from_tensors(layer.tensors).layer(0)
    assert caught.value.id == "facts.top_k"


def test_tensors_that_torch_resized_are_noticed() -> None:
    layer = torch_layers.gpt_oss()
    name = "model.layers.0.mlp.experts.down_proj_blocks"
    model = model_of(layer)
    ours = exact(model)
    x, logits = torch_layers.tokens(2)
    before = ours.run(x.double(), logits)
    layer.tensors[name].untyped_storage().resize_(0)
    for call in (ours.load, lambda: ours.load_expert(0), lambda: exact(model)):
        with pytest.raises(fp4moe.UsageError, match=f"tensors.resized.*{name}"):
            call()
    assert torch.equal(ours.run(x.double(), logits), before), "loaded weights are its own"


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


def test_weights_are_not_copied() -> None:
    experts, size = 16, 1024
    random = np.random.default_rng(1)
    tensors = {}
    for name, rows in (("gate_up_proj", 2 * size), ("down_proj", size)):
        stem = f"model.layers.0.mlp.experts.{name}"
        tensors[f"{stem}_blocks"] = random.integers(
            0, 256, (experts, rows, size // 32, 16), np.uint8
        )
        tensors[f"{stem}_scales"] = np.full((experts, rows, size // 32), 120, np.uint8)
        tensors[f"{stem}_bias"] = np.zeros((experts, rows), ml_dtypes.bfloat16)
    config = {**torch_layers.gpt_oss().config, "hidden_size": size, "intermediate_size": size}
    config["num_local_experts"] = experts
    total = sum(array.nbytes for array in tensors.values())
    x = random.standard_normal((2, size), np.float32)
    logits = random.standard_normal((2, experts), np.float32)
    before = resident()
    model = fp4moe.Model.from_tensors(tensors, config)
    mapped = model.layer(0, weights="mapped", backend="CPU", threads=1)
    found = mapped.run(x, logits)
    grown = resident() - before
    assert total > 25_000_000 and grown < total / 4, f"{grown} bytes for {total} of weights"
    packed = model.layer(0, backend="CPU", threads=1)
    assert np.array_equal(packed.run(x, logits), found)
    assert resident() - before < 1.5 * total, "packing takes the weights once more, no more"
