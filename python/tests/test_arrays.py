"""Arrays of every kind go in and come out without a copy; what cannot be read is refused."""

from __future__ import annotations

import array

import numpy as np
import pytest
from conftest import EXPERTS, HIDDEN, TOP_K, GptOss, route, tokens

import fp4moe

ml_dtypes = pytest.importorskip("ml_dtypes")
TOKENS = 5


@pytest.fixture(scope="module")
def layer(witness: GptOss) -> fp4moe.Layer:
    return fp4moe.Layer.open(witness.path, 0, threads=1)


@pytest.fixture(scope="module")
def logits() -> np.ndarray:
    return np.random.default_rng(7).standard_normal((TOKENS, EXPERTS)).astype(np.float32)


@pytest.fixture(scope="module")
def routes(logits) -> tuple[np.ndarray, np.ndarray]:
    return route(logits)


@pytest.fixture(scope="module")
def expected(layer, logits) -> np.ndarray:
    return layer.run(tokens(TOKENS), logits)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_a_result_has_the_type_of_the_tokens(layer, logits, expected, dtype):
    x = (tokens(TOKENS) / 4).astype(dtype)
    out = layer.run(x, logits)
    again = layer.run(x.astype(np.float32), logits)
    assert out.dtype == dtype and out.shape == x.shape
    assert np.array_equal(out, again.astype(dtype))


def test_torch_tensors_give_torch_tensors(layer, logits, routes):
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        x = torch.from_numpy(tokens(TOKENS) / 4).to(dtype)
        out = layer.run(x, torch.from_numpy(logits))
        again = layer.run(x.float().numpy(), logits)
        assert isinstance(out, torch.Tensor) and out.dtype == dtype
        assert torch.equal(out, torch.from_numpy(again).to(dtype))
        ids, weights = map(torch.from_numpy, routes)
        assert torch.equal(layer.apply(x, ids.long(), weights), layer.apply(x, ids, weights))
    assert isinstance(layer.route(torch.from_numpy(logits))[0], torch.Tensor)


def test_kinds_can_be_mixed(layer, logits, expected):
    torch = pytest.importorskip("torch")
    out = layer.run(tokens(TOKENS), torch.from_numpy(logits))
    assert isinstance(out, np.ndarray) and np.array_equal(out, expected)


def test_out_is_filled_and_returned(layer, logits, expected):
    torch = pytest.importorskip("torch")
    for out in (np.full_like(expected, np.nan), torch.full(expected.shape, torch.nan)):
        assert layer.run(tokens(TOKENS), logits, out=out) is out
        assert np.array_equal(np.asarray(out), expected)


def test_out_may_have_a_type_of_its_own(layer, logits, expected):
    out = np.empty(expected.shape, np.float64)
    layer.run(tokens(TOKENS), logits, out=out)
    assert np.array_equal(out.astype(np.float32), expected)


def test_rows_may_have_gaps(layer, logits, expected):
    x = np.zeros((TOKENS, 2 * HIDDEN), np.float32)
    x[:, :HIDDEN] = tokens(TOKENS)
    layer.run(x[:, :HIDDEN], logits, out=x[:, HIDDEN:])  # columns of one matrix, side by side
    assert np.array_equal(x[:, HIDDEN:], expected)


def test_the_buffer_protocol_is_enough(layer, logits, expected):
    x = memoryview(array.array("f", tokens(TOKENS).ravel())).cast("B").cast("f", (TOKENS, HIDDEN))
    out = layer.run(x, memoryview(logits))
    assert isinstance(out, np.ndarray) and np.array_equal(out, expected)


def test_dlpack_is_enough(layer, logits, expected):
    class OnlyDlpack:
        def __init__(self, held):
            self.held = held

        def __dlpack__(self, **words):
            return self.held.__dlpack__(**words)

        def __dlpack_device__(self):
            return self.held.__dlpack_device__()

    out = OnlyDlpack(np.empty_like(expected))
    assert layer.run(OnlyDlpack(tokens(TOKENS)), OnlyDlpack(logits), out=out) is out
    assert np.array_equal(out.held, expected)
    out.held.flags.writeable = False
    with pytest.raises(fp4moe.UsageError) as caught:
        layer.run(tokens(TOKENS), logits, out=out)
    assert caught.value.id == "rows.readonly"


def test_read_only_arrays_are_read(layer, logits, expected):
    x, scores = tokens(TOKENS), logits.copy()
    x.flags.writeable = scores.flags.writeable = False
    assert np.array_equal(layer.run(x, scores), expected)


def test_no_tokens_give_no_rows(layer):
    empty = np.empty((0, HIDDEN), np.float32)
    assert layer.run(empty, np.empty((0, EXPERTS), np.float32)).shape == (0, HIDDEN)
    ids, weights = np.empty((0, TOP_K), np.int64), np.empty((0, TOP_K), np.float32)
    assert layer.apply(empty, ids, weights).shape == (0, HIDDEN)
    assert layer.route(np.empty((0, EXPERTS), np.float32))[0].shape == (0, TOP_K)


def test_ids_and_weights_may_lie_anyhow(layer, routes):
    ids, weights = routes
    x = tokens(TOKENS)
    expected = layer.apply(x, ids, weights)
    for own in (ids.astype(np.int64), np.asfortranarray(ids), ids[:, ::-1][:, ::-1]):
        assert np.array_equal(layer.apply(x, own, weights), expected)
    for own in (weights.astype(np.float64), np.repeat(weights, 2, 0)[::2]):
        assert np.array_equal(layer.apply(x, ids, own), expected)


def wide(columns: int) -> np.ndarray:
    return np.zeros((TOKENS, columns), np.float32)


X = tokens(TOKENS)
BAD_ROWS = [
    ("rows.columns", wide(HIDDEN + 1)),
    ("rows.dimensions", X[0]),
    ("rows.dimensions", X[None]),
    ("rows.type", X.astype(np.int32)),
    ("rows.type", X.astype(np.complex64)),
    ("rows.type", X.astype("S4")),
    ("rows.type", X.astype(ml_dtypes.float8_e4m3fn)),
    ("rows.order", X.astype(">f4")),
    ("rows.stride", np.asfortranarray(X)),
    ("rows.stride", wide(2 * HIDDEN)[:, ::2]),
    ("rows.stride", X[::-1]),
    ("rows.stride", np.broadcast_to(X[:1], X.shape)),
    (
        "rows.alignment",
        np.frombuffer(bytes(X.nbytes + 1), np.uint8)[1:].view(np.float32).reshape(X.shape),
    ),
]


@pytest.mark.parametrize(("id", "x"), BAD_ROWS)
def test_tokens_that_cannot_be_read_are_refused(layer, logits, id, x):
    with pytest.raises(fp4moe.UsageError) as caught:
        layer.run(x, logits)
    assert caught.value.id == id and caught.value.expected and caught.value.found
    with pytest.raises(fp4moe.UsageError) as caught:
        layer.run(X, logits, out=x)
    assert caught.value.id in (id, "rows.readonly")


@pytest.mark.parametrize("x", [None, 3, "abc", [[1.0] * HIDDEN] * TOKENS, object()])
def test_what_is_no_array_is_a_type_error(layer, logits, routes, x):
    calls = [
        lambda: layer.run(x, logits),
        lambda: layer.run(X, x),
        lambda: layer.apply(X, x, routes[1]),
        lambda: layer.apply(X, routes[0], x),
        lambda: layer.route(x),
    ]
    for call in calls + ([] if x is None else [lambda: layer.run(X, logits, out=x)]):
        with pytest.raises(TypeError, match="expected .* found"):
            call()


def test_sizes_that_do_not_fit_are_refused(layer, logits, routes):
    ids, weights = routes
    calls = {
        "logits rows": lambda: layer.run(X, logits[1:]),
        "logits columns": lambda: layer.run(X, logits[:, 1:].copy()),
        "out rows": lambda: layer.run(X, logits, out=np.empty_like(X[1:])),
        "ids rows": lambda: layer.apply(X, ids[1:], weights[1:]),
        "weights": lambda: layer.apply(X, ids, weights[:, 1:]),
        "ids type": lambda: layer.apply(X, ids.astype(np.float32), weights),
        "ids 1-D": lambda: layer.apply(X, ids[0], weights),
        "no ids": lambda: layer.apply(X, ids[:, :0], weights[:, :0]),
        "too many": lambda: layer.apply(X, np.tile(ids, 3), np.tile(weights, 3)),
        "no expert": lambda: layer.apply(X, ids + EXPERTS, weights),
        "below nobody": lambda: layer.apply(X, ids - EXPERTS - 1, weights),
        "far": lambda: layer.apply(X, ids.astype(np.int64) + 2**40, weights),
    }
    for name, call in calls.items():
        with pytest.raises(fp4moe.Error) as caught:
            call()
        assert caught.value.expected and caught.value.found, name


def test_out_must_not_lie_in_what_is_read(layer, logits):
    square = np.random.default_rng(0).standard_normal((HIDDEN, HIDDEN)).astype(np.float32)
    both = np.zeros((2 * TOKENS, HIDDEN), np.float32)
    for x, out in ((X, X), (both[:TOKENS], both[1 : TOKENS + 1]), (square[:5], square[4:9])):
        with pytest.raises(fp4moe.UsageError) as caught:
            layer.run(x, logits, out=out)
        assert caught.value.id == "rows.overlap"


def test_torch_tensors_that_cannot_be_read_are_refused(layer, logits):
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(X)
    refused = {
        "rows.gradient": x.clone().requires_grad_(),
        "rows.memory": x.to("meta"),
        "rows.type": x.to(torch.int64),
        "rows.stride": x.t().contiguous().t(),
    }
    for id, bad in refused.items():
        with pytest.raises(fp4moe.UsageError) as caught:
            layer.run(bad, logits)
        assert caught.value.id == id, str(caught.value)
    with pytest.raises(fp4moe.UsageError):
        layer.run(x.to_sparse(), logits)
    with torch.no_grad():
        layer.run(refused["rows.gradient"], logits)
