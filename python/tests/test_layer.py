"""Layers from Python compute what numpy computes from the checkpoint's bytes."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import EXPERTS, HIDDEN, INTERMEDIATE, TOP_K, GptOss, route, tokens

import fp4moe


def distance(actual: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(np.asarray(actual, np.float64) - expected).max() / np.abs(expected).max())


@pytest.fixture(scope="module")
def layer(witness: GptOss) -> fp4moe.Layer:
    return fp4moe.Layer.open(witness.path, 0)


@pytest.fixture(scope="module")
def exact(witness: GptOss) -> fp4moe.Layer:
    return fp4moe.Layer.open(witness.path, 0, engine="reference", numerics="exact")


@pytest.fixture(scope="module")
def logits() -> np.ndarray:
    return np.random.default_rng(7).standard_normal((5, EXPERTS)).astype(np.float32)


def test_run_is_what_the_definitions_say(witness, exact, layer, logits):
    x = tokens(5)
    expected = witness.run(x, logits)
    assert distance(exact.run(x, logits), expected) < 1e-5
    assert distance(layer.run(x, logits), expected) < 2e-2


def test_apply_takes_experts_and_nobody(witness, exact):
    x = tokens(3)
    ids = np.array([[1, -1], [7, 0], [-1, -1]], np.int32)
    weights = np.array([[0.5, 9], [0.25, -1], [1, 1]], np.float32)
    out = exact.apply(x, ids, weights)
    assert distance(out, witness.apply(x, ids, weights)) < 1e-5
    assert not out[2].any()


def test_calling_a_layer_runs_it(layer, logits):
    x = tokens(5)
    assert np.array_equal(layer(x, logits), layer.run(x, logits))


def test_route_is_the_choice_of_run(exact, logits):
    x = tokens(5)
    ids, weights = exact.route(logits)
    assert ids.dtype == np.int32 and weights.dtype == np.float32
    expected_ids, expected_weights = route(logits)
    assert np.array_equal(ids, expected_ids)
    assert np.allclose(weights, expected_weights, rtol=1e-6)
    assert np.array_equal(exact.apply(x, ids, weights), exact.run(x, logits))


def test_a_layer_knows_its_sizes(checkpoint):
    model = fp4moe.Model.open(checkpoint)
    assert len(model) == 2 and model.path == str(checkpoint)
    assert [each["index"] for each in model.info()["layers"]] == [0, 1]
    layer = model.layer(1, backend="MARLIN", engine="reference", ep=(1, 2))
    sizes = layer.hidden, layer.intermediate, layer.experts, layer.local_experts, layer.top_k
    assert sizes == (HIDDEN, INTERMEDIATE, EXPERTS, EXPERTS // 2, TOP_K)
    info = layer.info()
    assert info["backend"] == "MARLIN" and info["engine"] == "reference" and info["is_processed"]
    assert "wide_rows" not in info
