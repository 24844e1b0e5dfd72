"""fp4moe.torch: operators under torch.compile, and the module."""

from __future__ import annotations

import copy
import gc
import pickle
import shutil
import sys
import threading
from pathlib import Path

import pytest

import fp4moe

torch = pytest.importorskip("torch")
import torch_layers  # noqa: E402

import fp4moe.torch  # noqa: E402

OPS = torch.ops.fp4moe


@pytest.fixture(scope="module")
def source():
    return torch_layers.gpt_oss()


@pytest.fixture(scope="module")
def path(source, tmp_path_factory) -> Path:
    return source.save(tmp_path_factory.mktemp("torch") / "checkpoint")


@pytest.fixture(scope="module")
def layer(path):
    return fp4moe.Layer.open(path, 0, threads=1)


@pytest.fixture(autouse=True)
def fresh_compiler():
    yield
    torch._dynamo.reset()


def routes(source, count: int, seed: int = 1):
    x, logits = torch_layers.tokens(count, seed)
    ids, weights = source.routed(logits)
    return x, logits, ids.int(), weights.float()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_operators_compute_what_the_layer_does(source, layer, dtype) -> None:
    x, logits, ids, weights = routes(source, 6)
    x, number = x.to(dtype), fp4moe.torch.handle(layer)
    assert number == fp4moe.torch.handle(layer)
    ran, applied = OPS.run(x, logits, number), OPS.apply(x, ids, weights, number)
    assert ran.dtype == applied.dtype == dtype
    assert torch.equal(ran, layer.run(x, logits))
    assert torch.equal(applied, layer.apply(x, ids, weights))
    assert torch_layers.distance(ran, source.run(x, logits)) < 2e-2
    for op, given in ((OPS.run_out, (logits,)), (OPS.apply_out, (ids, weights))):
        out = torch.full_like(x, 7)
        assert op(x, *given, number, out=out) is None
        assert torch.equal(out, ran if len(given) == 1 else applied)


def test_operators_pass_the_checks_of_torch(source, layer) -> None:
    x, logits, ids, weights = routes(source, 3)
    number = fp4moe.torch.handle(layer)
    out = torch.empty_like(x)
    torch.library.opcheck(OPS.run.default, (x, logits, number))
    torch.library.opcheck(OPS.apply.default, (x.bfloat16(), ids.long(), weights, number))
    torch.library.opcheck(OPS.run_out.default, (x, logits, number), {"out": out})
    torch.library.opcheck(OPS.apply_out.default, (x, ids, weights, number), {"out": out})


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_whole_graphs_are_compiled(source, layer, backend) -> None:
    number = fp4moe.torch.handle(layer)

    @torch.compile(fullgraph=True, backend=backend)
    def block(x, logits, ids, weights):
        out = torch.empty_like(x)
        OPS.apply_out(x * 2, ids, weights, number, out=out)
        return OPS.run(x * 2, logits, number) + out

    for count in (1, 4, 9):
        x, logits, ids, weights = routes(source, count, count)
        expected = layer.run(x * 2, logits) + layer.apply(x * 2, ids, weights)
        assert torch.equal(block(x, logits, ids, weights), expected)


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch's inductor needs a C++ compiler")
def test_inductor_compiles_the_module(source, path, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    moe = fp4moe.torch.MoE.open(path, threads=1)
    x, logits, _, _ = routes(source, 4)
    with torch.no_grad():
        compiled = torch.compile(moe, fullgraph=True)
        assert torch.equal(compiled(x, logits), moe(x, logits))


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_are_refused_not_invented(source, layer, path, compiled) -> None:
    x, logits, ids, weights = routes(source, 2)
    number = fp4moe.torch.handle(layer)
    moe = fp4moe.torch.MoE.open(path, threads=1)
    asks = x.clone().requires_grad_()
    calls = [
        lambda x: OPS.run(x, logits, number),
        lambda x: OPS.apply(x, ids, weights, number),
        lambda x: moe(x, logits),
    ]
    for call in calls:
        if compiled:
            call = torch.compile(call, backend="aot_eager", fullgraph=True)
        with pytest.raises(Exception, match="rows.gradient.*requires_grad"):
            call(asks)
        torch._dynamo.reset()
        with torch.no_grad():
            assert torch.equal(call(asks), call(x))


def test_numbers_of_layers_that_are_gone_are_refused(source, path) -> None:
    x, logits, _, _ = routes(source, 2)
    mine = fp4moe.Layer.open(path, 0, threads=1)
    number = fp4moe.torch.handle(mine)
    OPS.run(x, logits, number)
    mine.close()
    with pytest.raises(fp4moe.UsageError, match="layer.closed"):
        OPS.run(x, logits, number)
    del mine
    gc.collect()
    with pytest.raises(fp4moe.UsageError, match="handle.freed.*found"):
        OPS.run(x, logits, number)
    with pytest.raises(fp4moe.UsageError, match="handle.freed"):
        OPS.run(x, logits, 123456)
    with pytest.raises(TypeError, match="expected fp4moe.Layer, found int"):
        fp4moe.torch.handle(5)
    other = fp4moe.Layer.open(path, 0, threads=1)
    assert fp4moe.torch.handle(other) != number, "a number is never used twice"


def test_wrong_tensors_are_refused(source, layer) -> None:
    x, logits, ids, weights = routes(source, 3)
    number = fp4moe.torch.handle(layer)
    wrong = [
        (OPS.run, (x[:, :-1], logits), "rows"),
        (OPS.run, (x, logits[:2]), "rows.count"),
        (OPS.run, (x.int(), logits), "rows.type"),
        (OPS.run, (x.t().contiguous().t(), logits), "rows.stride"),
        (OPS.run, (x[0], logits), "rows.dimensions"),
        (OPS.apply, (x, ids.float(), weights), "routes.ids"),
        (OPS.apply, (x, ids, weights[:, :1]), "routes.weights"),
        (OPS.apply, (x, ids + 100, weights), "routes.ids"),
    ]
    for op, given, words in wrong:
        with pytest.raises(fp4moe.UsageError, match=words):
            op(*given, number)
    with pytest.raises(fp4moe.UsageError, match="rows.overlap"):
        OPS.run_out(x, logits, number, out=x)


@pytest.mark.parametrize("shape", [(6,), (2, 3), (1, 3, 2), (0,), (2, 0)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_module_takes_any_leading_dimensions(source, path, shape, dtype) -> None:
    moe = fp4moe.torch.MoE.open(path, router=True, threads=1)
    count = torch.Size(shape).numel()
    x, logits, ids, weights = routes(source, count)
    x = x.to(dtype)
    for given in ((), (logits,), (ids, weights)):
        spread = [each.reshape(*shape, each.shape[-1]) for each in given]
        found = moe(x.reshape(*shape, torch_layers.HIDDEN), *spread)
        assert found.shape == (*shape, torch_layers.HIDDEN) and found.dtype == dtype
        if count == 0:
            continue
        weight, bias = source.router
        scores = torch.nn.functional.linear(x.double(), weight.double(), bias.double())
        expected = source.run(x, logits if given else scores)
        assert torch_layers.distance(found.reshape(count, -1), expected) < 2e-2


def test_the_module_compiles_whole(source, path) -> None:
    moe = fp4moe.torch.MoE.open(path, router=True, threads=1)
    x, logits, ids, weights = routes(source, 4)
    compiled = torch.compile(moe, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        for given in ((), (logits,), (ids, weights)):
            assert torch.equal(compiled(x, *given), moe(x, *given))
    exported = torch.export.export(moe, (x, logits))
    assert torch.equal(exported.module()(x, logits), moe(x, logits))


def test_the_module_refuses_what_it_cannot_compute(source, path) -> None:
    x, logits, ids, weights = routes(source, 2)
    moe = fp4moe.torch.MoE.open(path, threads=1)
    with pytest.raises(fp4moe.UsageError, match="facts.router.*router=True"):
        moe(x)
    with pytest.raises(TypeError, match="found 4 tensors"):
        moe(x, logits, ids, weights)
    with pytest.raises(TypeError, match="found list"):
        moe(x, [[1.0]])
    moe.to("meta")  # it is the tokens that are in the wrong place
    with pytest.raises(fp4moe.UsageError, match="rows"):
        moe.layer.run(x.to("meta"), logits)
    assert torch.equal(moe(x, logits), moe.layer.run(x, logits))


def test_the_router_follows_types_and_the_experts_stay(source, path) -> None:
    moe = fp4moe.torch.MoE.open(path, router=True, threads=1)
    x, _, _, _ = routes(source, 4)
    before = moe(x)
    assert moe.to(torch.bfloat16).router_weight.dtype == torch.bfloat16
    assert torch_layers.distance(moe(x), before) < 2e-2
    assert list(moe.parameters()) == [] and "router=True" in repr(moe)


def test_state_pickles_and_copies_name_the_source(source, path) -> None:
    moe = fp4moe.torch.MoE.open(path, 0, router=True, threads=1, backend="CPU")
    x, logits, _, _ = routes(source, 3)
    expected = moe(x, logits)
    state = moe.state_dict()
    assert list(state) == ["_extra_state"], "no weights"
    assert state["_extra_state"] == {
        "path": str(path), "number": 0, "router": True, "options": {"threads": 1, "backend": "CPU"},
    }
    assert len(pickle.dumps(moe)) < 20_000
    again = pickle.loads(pickle.dumps(moe))
    assert again.layer is not moe.layer
    assert torch.equal(again(x, logits), expected) and torch.equal(again(x), moe(x))
    copied = copy.deepcopy(moe.eval())
    assert copied.layer is moe.layer and not copied.training, "experts are shared"
    assert copied.router_weight is not moe.router_weight
    assert torch.equal(copied(x), moe(x))


def test_state_of_another_layer_opens_that_layer(path, tmp_path) -> None:
    other = torch_layers.gpt_oss(seed=9)
    moe = fp4moe.torch.MoE.open(path, threads=1)
    theirs = fp4moe.torch.MoE.open(other.save(tmp_path / "other"), threads=1)
    before = moe.layer
    moe.load_state_dict(moe.state_dict())
    assert moe.layer is before, "nothing is opened again for nothing"
    moe.load_state_dict(theirs.state_dict())
    x, logits, _, _ = routes(other, 3)
    assert torch.equal(moe(x, logits), theirs(x, logits))
    assert torch_layers.distance(moe(x, logits), other.run(x, logits)) < 2e-2


def test_a_module_without_a_source_says_so(source) -> None:
    model = fp4moe.Model.from_tensors(source.tensors, source.config)
    moe = fp4moe.torch.MoE.of(model, router=True, threads=1)
    x, logits, _, _ = routes(source, 2)
    assert torch_layers.distance(moe(x, logits), source.run(x, logits)) < 2e-2
    assert moe.state_dict()["_extra_state"] == {}
    with pytest.raises(fp4moe.UsageError, match="moe.source"):
        pickle.loads(pickle.dumps(moe))
    assert copy.deepcopy(moe).layer is moe.layer


def test_threads_of_python_go_on_while_a_layer_computes(source, layer) -> None:
    x, logits, _, _ = routes(source, 4000)
    number = fp4moe.torch.handle(layer)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(10)  # nobody is interrupted: whoever runs was let run
    counts: list[int] = []
    started, stop = threading.Event(), threading.Event()

    def count() -> None:
        started.set()
        turns = 0
        while not stop.is_set():
            turns += 1
            stop.wait(0.001)
        counts.append(turns)

    other = threading.Thread(target=count)
    try:
        other.start()
        started.wait()
        OPS.run(x, logits, number)
    finally:
        stop.set()
        sys.setswitchinterval(interval)
        other.join()
    assert counts[0] >= 3


def test_threads_share_a_layer(source, layer) -> None:
    number = fp4moe.torch.handle(layer)
    given = [routes(source, 3 + i, i)[:2] for i in range(4)]
    expected = [layer.run(x, logits) for x, logits in given]
    failures: list[int] = []

    def work(i: int) -> None:
        for _ in range(50):
            if not torch.equal(OPS.run(*given[i], number), expected[i]):
                failures.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_named_layer_is_found_by_every_graph(source, layer) -> None:
    x, _, ids, weights = routes(source, 6)
    fp4moe.torch.name_layer(layer, "model.layers.0.mlp.experts")
    fp4moe.torch.name_layer(layer, "model.layers.0.mlp.experts")  # again is no harm

    def call(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        OPS.apply_named_out(x, ids, weights, "model.layers.0.mlp.experts", out=out)
        return out + OPS.apply_named(x, ids, weights, "model.layers.0.mlp.experts")

    expected = 2 * layer.apply(x, ids, weights)
    assert torch.equal(call(x), expected)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), expected)


def test_a_name_is_one_layers(source, layer, path) -> None:
    x, _, ids, weights = routes(source, 2)
    other = fp4moe.Layer.open(path, 0, threads=1)
    fp4moe.torch.name_layer(other, "a name")
    with pytest.raises(fp4moe.UsageError, match="handle.name"):
        fp4moe.torch.name_layer(layer, "a name")
    del other
    fp4moe.torch.name_layer(layer, "a name")
    with pytest.raises(fp4moe.UsageError, match="handle.freed"):
        OPS.apply_named(x, ids, weights, "another name")
    with pytest.raises(TypeError):
        fp4moe.torch.name_layer(5, "a name")
