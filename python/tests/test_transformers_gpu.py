"""fp4moe inside transformers on a GPU: experts go where the model's tensors go."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
import tiny_checkpoints as tiny  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

import fp4moe  # noqa: E402
from fp4moe.transformers import Fp4MoeExperts, quantize_experts  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")

ERROR = 4e-3  # docs/cuda.md: root mean square of the difference as a share of the result's
KINDS = [("gpt_oss", "mxfp4"), ("qwen3_moe", "nvfp4"), ("qwen3_moe", "mxfp4")]


def moved(model: Any, place: str = "cuda") -> Any:
    try:
        return copy.deepcopy(model).to(place)
    except fp4moe.UnavailableError as why:  # another GPU than Hopper, a build without the kernels
        pytest.skip(str(why))


@pytest.fixture(scope="module", params=KINDS, ids="-".join)
def model(request: Any) -> Any:
    family, format = request.param
    return quantize_experts(tiny.plain(tiny.config(family)), format).eval()


def experts_of(model: Any, layer: int = 1) -> Fp4MoeExperts:
    found: Fp4MoeExperts = model.model.layers[layer].mlp.experts
    return found


def routed(count: int, experts: int, seed: int = 4) -> tuple[Any, Any, Any]:
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 64, generator=random).bfloat16()
    index = torch.stack([torch.randperm(experts, generator=random)[:2] for _ in range(count)])
    return x, index, torch.rand(count, 2, generator=random).bfloat16()


def relative(found: Any, exact: Any) -> float:
    difference = found.double().cpu() - exact.double().cpu()
    return float(difference.norm() / exact.double().cpu().norm())


def text(seed: int = 3) -> Any:
    return torch.randint(1, 128, (2, 24), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def test_experts_compute_the_same_where_the_model_goes(model: Any) -> None:
    ours, theirs = experts_of(moved(model)), experts_of(model)
    assert ours.layer is not None and ours.layer.info()["engine"] == "cuda"
    assert theirs.layer is not None and theirs.layer.info()["engine"] == "cpu"
    for count in (1, 16, 33, 200):
        given = routed(count, ours.num_experts)
        found = ours(*(tensor.cuda() for tensor in given))
        assert found.device.type == "cuda" and found.dtype == torch.bfloat16
        assert relative(found, theirs(*given)) < 2 * ERROR  # both round


@torch.no_grad()
def test_whole_models_agree(model: Any) -> None:
    ours = moved(model)
    found, exact = ours(text().cuda()).logits.double().cpu(), model(text()).logits.double()
    apart = (found - exact).norm(dim=-1) / exact.norm(dim=-1)
    # In bf16 throughout; a token next to the border between two experts may take the other one.
    assert float((apart < 0.05).float().mean()) > 0.8
    words = [ours.generate(text().cuda(), max_new_tokens=8, do_sample=False) for _ in range(2)]
    assert words[0].shape == (2, 32) and torch.equal(*words)


@torch.no_grad()
def test_experts_come_back_to_the_processor(model: Any) -> None:
    given = routed(9, experts_of(model).num_experts)
    back = experts_of(moved(model).to("cpu"))
    assert back.layer is not None and back.layer.info()["engine"] == "cpu"
    assert torch.equal(back(*given), experts_of(model)(*given))


def test_tokens_elsewhere_are_refused(model: Any) -> None:
    given = routed(3, experts_of(model).num_experts)
    for experts, tensors in (
        (experts_of(moved(model)), given),
        (experts_of(model), tuple(tensor.cuda() for tensor in given)),
    ):
        with pytest.raises(fp4moe.UnsupportedError) as why:
            experts(*tensors)
        assert why.value.id == "transformers.device"


@torch.no_grad()
def test_experts_are_one_call_of_a_compiled_graph(model: Any) -> None:
    experts = experts_of(moved(model))
    given = [tensor.cuda() for tensor in routed(12, experts.num_experts)]
    compiled = torch.compile(experts, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*given), experts(*given))


@torch.no_grad()
def test_a_checkpoint_is_loaded_to_the_gpu(model: Any, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    expected = experts_of(moved(model))
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(
        tmp_path, experts_implementation="fp4moe", device_map="cuda"
    )
    assert loaded.device.type == "cuda"
    given = [tensor.cuda() for tensor in routed(20, expected.num_experts)]
    assert torch.equal(experts_of(loaded)(*given), expected(*given))
