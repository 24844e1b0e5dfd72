"""The plug-in's methods and experts without vLLM, on a GPU: tensors, graphs, expert maps."""

from __future__ import annotations

import importlib.util

import pytest

torch = pytest.importorskip("torch")
if importlib.util.find_spec("vllm") is not None:
    pytest.skip("needs to be without vLLM", allow_module_level=True)

import vllm_plugin_cases as cases  # noqa: E402
from vllm_standins import Activation, Experts  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", [Activation.SILU, Activation.SWIGLUOAI])
def test_a_layer_computes_its_definition(activation, bias):
    cases.check_layer("cuda", activation, bias)


def test_router_weights_on_the_input_are_not_applied_twice():
    cases.check_weights_on_the_input("cuda")


def test_ranks_sum_up():
    cases.check_expert_maps("cuda")


def test_a_token_may_have_nobody():
    cases.check_nobody("cuda")


def test_batched_experts():
    cases.check_batches("cuda")


def test_weights_are_loaded_again():
    cases.check_reload("cuda")


@pytest.mark.parametrize("batch", [1, 8, 64])
def test_a_graph_computes_with_new_tokens(batch):
    layer = Experts(6, cases.HIDDEN, cases.INTERMEDIATE, Activation.SWIGLUOAI, "cuda", bias=True)
    first, second = (cases.inputs(batch, 6, 3, "cuda", seed) for seed in (3, 4))
    wanted = cases.expected(layer, *second)
    method = cases.processed(layer, 3)
    held = [tensor.clone() for tensor in first]
    cases.apply(method, layer, *held)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = cases.apply(method, layer, *held)
    for to, tensor in zip(held, second):
        to.copy_(tensor)
    graph.replay()
    torch.cuda.synchronize()
    cases.check(out, wanted)


def test_a_graph_with_an_expert_map():
    layer = Experts(6, cases.HIDDEN, cases.INTERMEDIATE, Activation.SILU, "cuda")
    x, weights, ids = cases.inputs(8, 6, 3, "cuda")
    wanted = cases.expected(layer, x, weights, ids)
    total = torch.zeros_like(wanted)
    for seed, chosen in enumerate([[4, 1, 0], [2, 3, 5]], start=30):
        part = layer.part(chosen, seed)
        method = cases.processed(part, 3)
        cases.apply(method, part, x, weights, ids)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = cases.apply(method, part, x, weights, ids)
        graph.replay()
        torch.cuda.synchronize()
        total += out.cpu().double()
    cases.check(total, wanted)


def test_host_and_device_memory_are_one_layer_more():
    """Parameters on the GPU go after packing: what is left is the packed layer."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    layer = Experts(8, 512, 512, Activation.SILU, "cuda")
    loaded = torch.cuda.memory_allocated() - before
    cases.processed(layer, 2)
    assert torch.cuda.memory_allocated() - before < loaded // 8
