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


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_tensors_that_hold_no_numbers_are_refused_before_anyone_reads_them(layer, logits):
    torch = pytest.importorskip("torch")
    from torch._subclasses.fake_tensor import FakeTensorMode

    x, scores = torch.from_numpy(X), torch.from_numpy(logits)
    with FakeTensorMode():
        traced = torch.empty(X.shape)
    for bad in (traced, torch.nn.Parameter(traced, requires_grad=False)):
        for call in (lambda: layer.run(bad, scores), lambda: layer.run(x, scores, out=bad)):
            with pytest.raises(fp4moe.UsageError) as caught:
                call()
            assert caught.value.id == "rows.memory", str(caught.value)

    def wrapped(tokens):  # plain tensors by their type, but a batch of functorch's
        return layer.run(tokens, scores)

    with pytest.raises(fp4moe.UsageError) as caught:
        torch.func.vmap(wrapped)(torch.stack([x, x]))
    assert caught.value.id == "rows.memory"
    with pytest.raises(fp4moe.UsageError) as caught:
        torch.func.functionalize(wrapped)(x)
    assert caught.value.id == "rows.memory"


def test_tensors_look_the_same_by_either_way_into_torch(layer, logits, routes):
    torch = pytest.importorskip("torch")

    class Other(torch.Tensor):  # goes by DLPack; a plain one by torch's C functions, if it has them
        pass

    wide = torch.zeros(TOKENS, HIDDEN + 32)
    wide[:, 16:-16] = torch.from_numpy(X)
    ids, weights = (torch.from_numpy(values) for values in routes)
    expected = layer.apply(X, *routes)
    views = [wide[:, 16:-16], torch.from_numpy(X).clone(), torch.from_numpy(X).double()]
    for x in views:
        for kind in (lambda tensor: tensor, lambda tensor: tensor.as_subclass(Other)):
            y = layer.apply(kind(x), kind(ids), kind(weights))
            assert y.shape == x.shape and y.dtype == x.dtype and y.is_contiguous()
            np.testing.assert_array_equal(np.asarray(y, np.float32), expected)
            out = torch.full_like(x, 7)
            layer.apply(kind(x), kind(ids), kind(weights), kind(out))
            np.testing.assert_array_equal(np.asarray(out, np.float32), expected)
    assert layer.apply(x[:0], ids[:0], weights[:0]).shape == (0, HIDDEN)
    assert layer.apply(wide[:1, 16:-16], ids[:1], weights[:1]).is_contiguous()


def test_outputs_never_lie_in_a_copy_that_torch_put_off(layer, logits):
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(X)
    kept = torch.zeros(X.shape)
    put_off = torch._lazy_clone(kept)  # shares its memory until someone writes
    layer.run(x, torch.from_numpy(logits), out=put_off)
    assert not kept.any() and put_off.any()


def test_any_tensor_of_a_call_may_be_the_one_that_asks_for_a_gradient(layer, routes):
    torch = pytest.importorskip("torch")
    x, (ids, weights) = torch.from_numpy(X), map(torch.from_numpy, routes)
    asking = {
        "tokens": (x.clone().requires_grad_(), ids, weights, None),
        "weights": (x, ids, weights.clone().requires_grad_(), None),
        "outputs": (x, ids, weights, torch.empty_like(x).requires_grad_()),
        "weights beside numpy's tokens": (X, ids, weights.clone().requires_grad_(), None),
    }
    for what, call in asking.items():
        with pytest.raises(fp4moe.UsageError) as caught:
            layer.apply(*call)
        assert caught.value.id == "rows.gradient" and what.split()[0] in str(caught.value), what
        with torch.inference_mode():
            layer.apply(*call)
