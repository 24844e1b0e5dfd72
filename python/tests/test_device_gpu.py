"""Layers on a GPU, with tensors that lie there: results, order, graphs, memory, refusals."""

from __future__ import annotations

import math
import platform
import shutil
import threading
from typing import Any

import pytest

import fp4moe

torch = pytest.importorskip("torch")
import torch_layers  # noqa: E402
from torch_layers import EXPERTS, HIDDEN, TOP_K  # noqa: E402

import fp4moe.torch  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")

OPS = torch.ops.fp4moe
GPU = torch.device("cuda", 0)
ERROR = 4e-3  # docs/cuda.md: root mean square of the difference as a share of the result's
A_WHILE = 200_000_000  # cycles that a stream is kept busy: a tenth of a second
SOURCES = {"gpt_oss": torch_layers.gpt_oss, "qwen3": torch_layers.qwen3}


def model_of(source: Any) -> fp4moe.Model:
    return fp4moe.Model.from_tensors(
        source.tensors, source.config, quant_config=source.quant_config
    )


def open_layer(source: Any) -> fp4moe.Layer:
    try:
        return model_of(source).layer(0, engine="cuda")
    except fp4moe.UnavailableError as why:  # another GPU than Hopper, a build without the kernels
        pytest.skip(str(why))


@pytest.fixture(scope="module")
def source() -> Any:
    return torch_layers.gpt_oss()


@pytest.fixture(scope="module")
def layer(source: Any) -> fp4moe.Layer:
    return open_layer(source)


@pytest.fixture(autouse=True)
def fresh_compiler() -> Any:
    yield
    torch._dynamo.reset()


class Call:
    """Tokens that bf16 holds exactly, with logits, ids and weights, on the GPU."""

    def __init__(self, source: Any, count: int, dtype: Any = torch.bfloat16, seed: int = 1) -> None:
        x, logits = torch_layers.tokens(count, seed)
        ids, weights = source.routed(logits)
        self.host = (x.bfloat16(), logits, ids, weights.float())
        self.x = x.bfloat16().to(GPU, dtype)
        self.logits = logits.to(GPU)
        self.ids, self.weights = ids.to(GPU, torch.int32), weights.to(GPU, torch.float32)

    @property
    def routes(self) -> tuple[Any, Any]:
        return self.ids, self.weights

    def expected(self, source: Any) -> Any:
        """The exact result, by plain torch on the CPU."""
        x, _, ids, weights = self.host
        return source.apply(x, ids, weights)


def error(found: Any, expected: Any) -> float:
    difference = found.double().cpu() - expected.double().cpu()
    return float(difference.norm() / expected.double().cpu().norm())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("name", sorted(SOURCES))
def test_results_are_those_of_the_processor(name: str, dtype: Any) -> None:
    source = SOURCES[name]()
    layer = open_layer(source)
    beside = model_of(source).layer(0, engine="reference", numerics="exact")
    for count in (1, 8, 16, 17, 100):
        call = Call(source, count, dtype, seed=count)
        ran, applied = layer.run(call.x, call.logits), layer.apply(call.x, *call.routes)
        for found in (ran, applied):
            assert found.device == GPU and found.dtype == dtype and found.shape == call.x.shape
            assert error(found, call.expected(source)) < ERROR
        x, logits, _, _ = call.host
        assert error(ran, beside.run(x.float(), logits)) < ERROR
        # Tokens of the host go through the same kernels.
        assert error(layer.run(x.to(dtype), logits), call.expected(source)) < ERROR


def test_info_names_fp8_tensor_cores_and_counts_wide_rows(source: Any, layer: Any) -> None:
    info = layer.info()
    assert info["engine"] == "cuda" and info["kernel"].endswith("/exact")
    fp8 = model_of(source).layer(0, engine="cuda", activations="fp8_token").info()
    assert fp8["wide_rows"] == info["wide_rows"]
    is_multiplied_in_fp8 = fp8["kernel"].startswith("sm90/") and fp8["wide_rows"] == 0
    assert fp8["kernel"].endswith("/exact+fp8_token" if is_multiplied_in_fp8 else "/exact")


def test_a_result_goes_where_it_is_asked_to(source: Any, layer: Any) -> None:
    for count in (3, 40):
        call = Call(source, count)
        expected = layer.apply(call.x, *call.routes)
        out = torch.full_like(call.x, math.nan)
        assert layer.apply(call.x, *call.routes, out=out) is out
        assert torch.equal(out, expected)
        # Rows of a wider matrix, of another type, with their neighbors left alone.
        wide = torch.full((count, HIDDEN + 16), math.nan, device=GPU)
        layer.run(call.x, call.logits, out=wide[:, 8 : 8 + HIDDEN])
        assert error(wide[:, 8 : 8 + HIDDEN], call.expected(source)) < ERROR
        assert wide[:, :8].isnan().all() and wide[:, 8 + HIDDEN :].isnan().all()
        rows = torch.zeros(count, HIDDEN + 8, device=GPU, dtype=torch.bfloat16)
        rows[:, :HIDDEN] = call.x
        assert torch.equal(layer.apply(rows[:, :HIDDEN], *call.routes), expected)


def test_ids_and_weights_of_other_types_are_turned_on_the_device(source: Any, layer: Any) -> None:
    call = Call(source, 9)
    expected = layer.apply(call.x, *call.routes)
    ids = torch.stack([call.ids, call.ids], dim=-1)[..., 0]  # with gaps
    weights = call.weights.double()
    assert torch.equal(layer.apply(call.x, ids.long(), weights), expected)
    assert torch.equal(layer.apply(call.x, ids, call.weights.t().contiguous().t()), expected)


def test_ids_of_nobody_add_nothing(source: Any, layer: Any) -> None:
    for count in (5, 40):
        call = Call(source, count)
        nobody = torch.full_like(call.ids, -1)
        assert not layer.apply(call.x, nobody, call.weights).any()
        first = call.ids.clone()
        first[:, 1:] = -1
        x, _, ids, weights = call.host
        expected = source.apply(x, ids[:, :1], weights[:, :1])
        assert error(layer.apply(call.x, first, call.weights), expected) < ERROR
    empty = Call(source, 0)
    assert layer.apply(empty.x, *empty.routes).shape == (0, HIDDEN)
    assert layer.run(empty.x, empty.logits).shape == (0, HIDDEN)


def test_work_stays_in_the_order_of_the_callers_stream(source: Any, layer: Any) -> None:
    for count in (4, 40):
        old, new = Call(source, count, seed=1), Call(source, count, seed=2)
        expected = layer.apply(new.x, *new.routes)
        x = old.x.clone()
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(A_WHILE)
            x.copy_(new.x)  # much later than the call below is made
            found = layer.apply(x, *new.routes)
            doubled = found + found
            x.zero_()
        stream.synchronize()
        assert torch.equal(found, expected)
        assert torch.equal(doubled, expected + expected)


def test_a_call_waits_for_nothing(source: Any, layer: Any) -> None:
    for count in (4, 40):
        call = Call(source, count)
        moe = fp4moe.torch.MoE(layer)
        out = torch.empty_like(call.x)
        number, stream = fp4moe.torch.handle(layer), torch.cuda.Stream()
        ways = [
            lambda: layer.apply(call.x, *call.routes, out=out),
            lambda: layer.run(call.x, call.logits),
            lambda: layer.apply(call.x, call.ids.long(), call.weights.double()),
            lambda: OPS.apply(call.x, *call.routes, number),
            lambda: moe(call.x, call.logits),
        ]
        for way in ways:
            with torch.cuda.stream(stream):
                way()  # memory is reserved by the first
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error")  # what torch itself would wait for
            try:
                with torch.cuda.stream(stream):
                    torch.cuda._sleep(A_WHILE)
                    way()
                    assert not stream.query()  # the call is back, and its stream still busy
            finally:
                torch.cuda.set_sync_debug_mode("default")
                torch.cuda.synchronize()


def test_the_same_call_gives_the_same_bits(source: Any, layer: Any) -> None:
    calls = [Call(source, count, seed=count) for count in (1, 16, 33, 300)]
    first = [layer.run(call.x, call.logits) for call in calls]
    for _ in range(5):
        for call, expected in reversed(list(zip(calls, first))):
            assert torch.equal(layer.run(call.x, call.logits), expected)


@pytest.mark.parametrize("count", [1, 16, 40])
def test_graphs_are_captured_and_replayed(source: Any, layer: Any, count: int) -> None:
    layer.reserve(64)
    call = Call(source, count)
    x, logits = call.x.clone(), call.logits.clone()
    ids, weights = call.ids.clone(), call.weights.clone()
    out = torch.empty_like(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        layer.apply(x, ids, weights, out=out)
        ran = layer.run(x, logits)
    for seed in (1, 2, 3):
        new = Call(source, count, seed=seed)
        x.copy_(new.x), logits.copy_(new.logits), ids.copy_(new.ids), weights.copy_(new.weights)
        out.fill_(math.nan)
        graph.replay()
        assert torch.equal(out, layer.apply(new.x, *new.routes))
        assert torch.equal(ran, layer.run(new.x, new.logits))
        assert error(out, new.expected(source)) < ERROR
        layer.reserve(256 * seed)  # what was reserved before stays where it was


def test_threads_with_streams_of_their_own_do_not_disturb_each_other(source: Any) -> None:
    layers = [open_layer(source) for _ in range(2)]
    calls = [[Call(source, count, seed=9 * who + count) for count in (1, 16, 40)] for who in (1, 2)]
    expected = [
        [layer.run(call.x, call.logits) for call in mine] for layer, mine in zip(layers, calls)
    ]
    torch.cuda.synchronize()
    wrong: list[int] = []

    def work(who: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for turn in range(50):
                for call, right in zip(calls[who], expected[who]):
                    found = layers[who].run(call.x, call.logits)
                    if not torch.equal(found, right):
                        wrong.append(turn)

    threads = [threading.Thread(target=work, args=(who,)) for who in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_one_layer_serves_streams_that_are_ordered(source: Any, layer: Any) -> None:
    streams = [torch.cuda.Stream() for _ in range(2)]
    calls = [Call(source, count, seed=count) for count in (5, 40)]
    expected = [layer.apply(call.x, *call.routes) for call in calls]
    torch.cuda.synchronize()
    found = []
    for turn in range(20):
        stream, call = streams[turn % 2], calls[turn % 2]
        stream.wait_stream(streams[1 - turn % 2])
        with torch.cuda.stream(stream):
            found.append(layer.apply(call.x, *call.routes))
    torch.cuda.synchronize()
    assert all(torch.equal(each, expected[turn % 2]) for turn, each in enumerate(found))


def test_calls_allocate_nothing_but_their_result(source: Any, layer: Any) -> None:
    layer.reserve(64)
    call = Call(source, 40)
    out = torch.empty_like(call.x)
    layer.apply(call.x, *call.routes, out=out)
    layer.run(call.x, call.logits, out=out)
    torch.cuda.synchronize()
    held, free = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]
    for _ in range(20):
        layer.apply(call.x, *call.routes, out=out)
        layer.run(call.x, call.logits, out=out)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == held
    assert torch.cuda.mem_get_info()[0] == free
    result = layer.apply(call.x, *call.routes)
    assert torch.cuda.memory_allocated() - held == -(-result.nbytes // 512) * 512
    del result
    layer.reserve(8192)
    assert torch.cuda.mem_get_info()[0] < free
    assert torch.cuda.memory_allocated() == held  # it is the layer's own


def test_weights_that_change_are_loaded_again() -> None:
    source = torch_layers.gpt_oss(seed=3)
    layer = open_layer(source)
    call = Call(source, 20)
    before = layer.apply(call.x, *call.routes)
    source.tensors["model.layers.0.mlp.experts.down_proj_scales"].add_(1)
    layer.load()
    after = layer.apply(call.x, *call.routes)
    assert error(before, call.expected(source)) > 0.1
    assert error(after, call.expected(source)) < ERROR


def test_what_does_not_fit_is_refused(source: Any, layer: Any) -> None:
    call = Call(source, 6, torch.float32)
    x, logits, (ids, weights) = call.x, call.logits, call.routes
    wide = torch.zeros(6, HIDDEN + 8, device=GPU)
    asks = x.clone().requires_grad_()
    refused: list[tuple[str, Any]] = [
        ("rows.device", lambda: layer.run(x, logits.cpu())),
        ("rows.device", lambda: layer.run(x.cpu(), logits)),
        ("rows.device", lambda: layer.run(x, logits, out=x.cpu())),
        ("rows.device", lambda: layer.apply(x, ids.cpu(), weights)),
        ("rows.device", lambda: layer.apply(x, ids, weights.cpu())),
        ("rows.type", lambda: layer.run(x.int(), logits)),
        ("cuda.type", lambda: layer.run(x.double(), logits)),
        ("rows.stride", lambda: layer.run(torch.zeros(HIDDEN, 6, device=GPU).t(), logits)),
        ("cuda.pointer", lambda: layer.run(wide[:, 1 : 1 + HIDDEN], logits)),
        ("cuda.size", lambda: layer.run(x[:, : HIDDEN - 32].contiguous(), logits)),
        ("cuda.size", lambda: layer.run(x, logits[:, : EXPERTS - 1].contiguous())),
        ("rows.overlap", lambda: layer.run(x, logits, out=x)),
        ("rows.count", lambda: layer.run(x, logits, out=x.clone()[:5])),
        ("routes.weights", lambda: layer.apply(x, ids[:, :1].contiguous(), weights)),
        ("routes.weights", lambda: layer.apply(x, ids[:5], weights[:5])),
        ("rows.gradient", lambda: layer.run(asks, logits)),
    ]
    for id, way in refused:
        with pytest.raises(fp4moe.Error) as why:
            way()
        assert why.value.id == id, why.value
    processor = "cpu-arm" if platform.machine() == "aarch64" else "cpu-avx2"
    other = model_of(source).layer(0, engine="cpu", device=processor)
    with pytest.raises(fp4moe.UsageError) as why:
        other.run(x, logits)
    assert why.value.id == "layer.device"
    assert error(layer.run(x, logits), call.expected(source)) < ERROR  # nothing is spoilt


def has_inductor() -> bool:
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return shutil.which("gcc") is not None or shutil.which("cc") is not None


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_whole_graphs_are_compiled(source: Any, layer: Any, backend: str) -> None:
    if backend == "inductor" and not has_inductor():
        pytest.skip("torch's inductor needs triton and a C compiler")
    number = fp4moe.torch.handle(layer)

    @torch.compile(fullgraph=True, backend=backend)
    def block(x: Any, logits: Any, ids: Any, weights: Any) -> Any:
        out = torch.empty_like(x)
        OPS.apply_out(x * 2, ids, weights, number, out=out)
        return OPS.run(x * 2, logits, number), out

    for count in (1, 4, 40):
        call = Call(source, count, seed=count)
        ran, applied = block(call.x, call.logits, *call.routes)
        assert torch.equal(ran, layer.run(call.x * 2, call.logits))
        assert torch.equal(applied, layer.apply(call.x * 2, *call.routes))


def test_operators_pass_the_checks_of_torch(source: Any, layer: Any) -> None:
    call = Call(source, 3)
    number, out = fp4moe.torch.handle(layer), torch.empty_like(call.x)
    torch.library.opcheck(OPS.run.default, (call.x, call.logits, number))
    torch.library.opcheck(OPS.apply.default, (call.x, *call.routes, number))
    torch.library.opcheck(OPS.apply_out.default, (call.x, *call.routes, number), {"out": out})


def test_a_module_moves_its_router_and_computes_there(source: Any, layer: Any) -> None:
    moe = fp4moe.torch.MoE.of(model_of(source), router=True, engine="cuda").to(GPU)
    assert moe.router_weight is not None and moe.router_weight.device == GPU
    for count in (2, 40):
        call = Call(source, count)
        x = call.x.reshape(2, count // 2, HIDDEN)
        with torch.inference_mode():
            scores = moe.logits(x)
            found = moe(x)
            assert scores.device == GPU and found.shape == x.shape
            flat = scores.reshape(count, EXPERTS)
            assert torch.equal(found.reshape(count, HIDDEN), moe.layer.run(call.x, flat))
            ids, weights = source.routed(flat.cpu())
            expected = source.apply(call.host[0], ids, weights)
            assert error(found.reshape(count, HIDDEN), expected) < ERROR
            by_routes = moe(x, call.ids.reshape(2, -1, TOP_K), call.weights.reshape(2, -1, TOP_K))
            assert error(by_routes.reshape(count, HIDDEN), call.expected(source)) < ERROR


def test_a_closed_layer_is_refused(source: Any) -> None:
    layer = open_layer(source)
    call = Call(source, 2)
    layer.run(call.x, call.logits)
    layer.close()
    with pytest.raises(fp4moe.UsageError) as why:
        layer.run(call.x, call.logits)
    assert why.value.id == "layer.closed"
