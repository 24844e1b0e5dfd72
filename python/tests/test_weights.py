"""Layers of stacked matrices in arrays: the numbers of the checkpoint that holds the same weights."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import tokens
from vllm_layers import EXPERTS, HIDDEN, gpt_oss, nvfp4_layer

import fp4moe

GPT_OSS = {"format": "mxfp4", "row_order": "interleaved", "activation": "swigluoai", "top_k": 2}
NVFP4 = {"format": "nvfp4", "row_order": "halves", "activation": "silu", "top_k": 2}


def named(loaded: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """vLLM's names as from_weights has them."""
    return {name.replace("_weight", ""): array for name, array in loaded.items()}


def routes(count: int, experts: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    ids = np.stack([rng.permutation(experts)[:2] for _ in range(count)]).astype(np.int32)
    return ids, rng.random((count, 2), np.float32)


@pytest.fixture
def loaded(tmp_path):
    return named(gpt_oss(tmp_path / "model")), tmp_path / "model"


def test_numbers_are_the_checkpoints(loaded):
    tensors, folder = loaded
    x, (ids, weights) = tokens(5, HIDDEN), routes(5, EXPERTS)
    result = fp4moe.Layer.from_weights(tensors, GPT_OSS)
    wanted = fp4moe.Layer.open(folder, 0).apply(x, ids, weights)
    assert np.array_equal(result.apply(x, ids, weights), wanted)
    assert (result.experts, result.hidden, result.top_k) == (EXPERTS, HIDDEN, 2)


def test_arrays_may_go_and_others_come(loaded):
    tensors, _ = loaded
    x, (ids, weights) = tokens(3, HIDDEN), routes(3, EXPERTS)
    layer = fp4moe.Layer.from_weights(tensors, GPT_OSS)
    first = layer.apply(x, ids, weights)
    other = {name: array[::-1].copy() for name, array in tensors.items()}
    for array in tensors.values():
        array[:] = 0
    assert np.array_equal(layer.apply(x, ids, weights), first)
    layer.load_weights(other)  # the experts in the opposite order
    assert np.array_equal(layer.apply(x, EXPERTS - 1 - ids, weights), first)


def test_global_scales_count(loaded):
    layer = {k: v for k, v in nvfp4_layer().items() if not k.startswith("a")}
    tensors = {name.replace("scale_2", "global_scale"): array for name, array in layer.items()}
    x, (ids, weights) = tokens(4, 256), routes(4, 3)
    one = fp4moe.Layer.from_weights(tensors, NVFP4).apply(x, ids, weights)
    tensors["w2_global_scale"] = tensors["w2_global_scale"] * np.float32(2)
    two = fp4moe.Layer.from_weights(tensors, NVFP4).apply(x, ids, weights)
    np.testing.assert_allclose(two, 2 * one, rtol=1e-2)


def test_more_experts_to_a_token_than_a_rank_has(loaded):
    tensors, _ = loaded
    x, (ids, weights) = tokens(4, HIDDEN), routes(4, EXPERTS)
    whole = fp4moe.Layer.from_weights(tensors, GPT_OSS).apply(x, ids, weights)
    total = np.zeros_like(whole)
    for expert in range(EXPERTS):
        part = {name: array[expert : expert + 1].copy() for name, array in tensors.items()}
        layer = fp4moe.Layer.from_weights(part, {**GPT_OSS, "experts": 2}, ep=(0, 2))
        local = np.where(ids == expert, 0, -1).astype(np.int32)
        total += layer.apply(x, local, weights)
    np.testing.assert_allclose(total, whole, rtol=1e-3, atol=1e-3 * np.abs(whole).max())


def refused(tensors, description=None, **changes):
    with pytest.raises(fp4moe.Error) as raised:
        fp4moe.Layer.from_weights({**tensors, **changes}, description or GPT_OSS)
    return raised.value.id


def test_bad_weights_are_refused(loaded):
    tensors, folder = loaded
    assert refused(tensors, w13=None) == "weights.missing"
    assert refused(tensors, w13_scale=None) == "weights.missing"
    assert refused(tensors, w14=tensors["w13"]) == "weights.word"
    assert refused(tensors, w2=tensors["w2"][:, :, ::2]) == "weights.array"
    assert refused(tensors, w2=tensors["w2"].transpose(0, 2, 1).copy()) == "weights.shape"
    assert refused(tensors, w2=tensors["w2"][:2].copy()) == "weights.shape"
    assert refused(tensors, w2_scale=tensors["w2_scale"][:, :, :1].copy()) == "weights.size"
    assert refused(tensors, {**GPT_OSS, "activation": "relu"}) == "description.activation"
    assert refused(tensors, {**GPT_OSS, "format": "fp8"}) == "weights.word"
    assert refused(tensors, {**GPT_OSS, "row_order": "random"}) == "weights.word"
    assert refused(tensors, {**GPT_OSS, "color": 1}) == "weights.word"
    assert refused(tensors, {**GPT_OSS, "top_k": -1}) == "options.negative"
    with pytest.raises(TypeError):
        fp4moe.Layer.from_weights(3, GPT_OSS)
    with pytest.raises(TypeError):
        fp4moe.Layer.from_weights(tensors, {**GPT_OSS, "activation": 1})


def test_what_is_not_there_is_not_read_again(loaded):
    tensors, folder = loaded
    layer = fp4moe.Layer.from_weights(tensors, GPT_OSS)
    calls = (layer.load, lambda: layer.load_expert(0), lambda: layer.adapters("nowhere"))
    opened = fp4moe.Layer.open(folder, 0)
    for call in (*calls, lambda: opened.load_weights(tensors)):
        with pytest.raises(fp4moe.UsageError) as raised:
            call()
        assert raised.value.id == "layer.source"
    with pytest.raises(fp4moe.UsageError) as raised:
        layer.load_weights({name: array[:2].copy() for name, array in tensors.items()})
    assert raised.value.id in ("weights.slice", "weights.other", "layer.experts")
