"""The plug-in's methods and experts without vLLM, on a GPU: tensors, graphs, expert maps."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from vllm_standins import Activation, Experts, has_vllm  # noqa: E402

if has_vllm():
    pytest.skip("needs to be without vLLM", allow_module_level=True)

import fp4moe  # noqa: E402
import vllm_plugin_cases as cases  # noqa: E402

from fp4moe import cli  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", [Activation.SILU, Activation.SWIGLUOAI])
def test_a_layer_computes_its_definition(activation, bias):
    cases.check_layer("cuda", activation, bias)


def test_router_weights_on_the_input_are_not_applied_twice():
    cases.check_weights_on_the_input("cuda")


def test_ranks_sum_up():
    cases.check_expert_maps("cuda")


def test_a_token_may_have_no_expert():
    cases.check_no_expert("cuda")


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


@pytest.mark.parametrize("activation", [Activation.SILU, Activation.SWIGLUOAI])
def test_tensor_parallel_ranks_sum_up(activation):
    cases.check_tensor_parallel("cuda", activation)


@pytest.mark.parametrize("is_packed", [False, True])
def test_nvfp4_of_both_dialects(is_packed):
    cases.check_nvfp4("cuda", is_packed)


def captured(method, layer, given):
    """A call in a graph, replayed; it was run once before, as vLLM warms up."""
    cases.apply(method, layer, *given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = cases.apply(method, layer, *given)
    out.zero_()
    graph.replay()
    torch.cuda.synchronize()
    return out


def test_a_graph_of_nvfp4():
    method, layer, given, wanted = cases.nvfp4("cuda", is_packed=False)
    cases.check(captured(method, layer, given), wanted)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return cases.Folders(tmp_path_factory.mktemp("folders"))


def test_a_converted_folder_is_mapped(folders):
    cases.check_folder("cuda", folders)


@pytest.mark.parametrize("layout", ["native_sm90.mxfp4", "native_sm80.mxfp4"])
def test_folders_made_for_another_architecture_are_mapped(folders, layout):
    """Both families of kernels read the same bytes."""
    words = ["convert", str(folders.source), "--layout", layout, "-o", str(folders.place / layout)]
    assert cli.call(words).status == 0
    method, layer = folders.opened(layout, "cuda")
    given = cases.inputs(9, cases.EXPERTS, cases.TOP_K, "cuda")
    cases.check(cases.apply(method, layer, *given), folders.expected(*given))


@pytest.mark.parametrize("split", ["tp", "ep", "round"])
def test_folders_of_ranks_are_mapped(folders, split):
    cases.check_folders_of_ranks("cuda", folders, split)


@pytest.mark.parametrize("words", [{}, {"ep": (1, 2)}])
def test_a_graph_of_a_mapped_layer(folders, words):
    name = "ep" if words else "one"
    method, layer = folders.opened(name, "cuda", **words)
    given = cases.inputs(9, cases.EXPERTS, cases.TOP_K, "cuda")
    found = captured(method, layer, given).cpu().double()
    cases.check(found, cases.apply(method, layer, *given).cpu().double())


def test_folders_of_the_cpu_and_of_other_ranks_are_refused(folders, tmp_path):
    with pytest.raises(fp4moe.errors.InvalidInputError, match="is not this rank's"):
        folders.opened("tp", "cuda")
    words = ["convert", str(folders.source), "--backend", "CPU", "-o", str(folders.place / "host")]
    assert cli.call(words).status == 0
    with pytest.raises(fp4moe.errors.InvalidInputError, match="kernels that are not used here"):
        folders.opened("host", "cuda")


def test_host_and_device_memory_are_one_layer_more():
    """Parameters on the GPU go after packing: what is left is the packed layer."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    layer = Experts(8, 512, 512, Activation.SILU, "cuda")
    loaded = torch.cuda.memory_allocated() - before
    cases.processed(layer, 2)
    assert torch.cuda.memory_allocated() - before < loaded // 8
