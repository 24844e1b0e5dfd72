"""LoRA adapters beside FP4 experts, against torch: W + alpha / rank * B A, token by token."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import fp4moe

torch = pytest.importorskip("torch")
save_file = pytest.importorskip("safetensors.torch").save_file
import torch_layers  # noqa: E402

PARTS = {
    "gate": (torch_layers.INTERMEDIATE, torch_layers.HIDDEN),
    "up": (torch_layers.INTERMEDIATE, torch_layers.HIDDEN),
    "down": (torch_layers.HIDDEN, torch_layers.INTERMEDIATE),
}


def make_adapter(folder: Path, layer, rank: int, alpha: float, seed: int):
    """A PEFT folder with a module per expert, and the experts with it merged, in float64."""
    random = torch.Generator().manual_seed(seed)
    tensors, merged = {}, [dict(expert) for expert in layer.weights()]
    for e in range(torch_layers.EXPERTS):
        for part, (rows, columns) in PARTS.items():
            if part == "up" and e % 2:  # experts need not change everywhere
                continue
            a = torch.randn(rank, columns, generator=random) * 0.05
            b = torch.randn(rows, rank, generator=random) * 0.05
            stem = f"base_model.model.{layer.prefix}experts.{e}.{part}_proj"
            tensors[f"{stem}.lora_A.weight"], tensors[f"{stem}.lora_B.weight"] = a, b
            merged[e][part] = merged[e][part] + alpha / rank * (b.double() @ a.double())
    folder.mkdir()
    save_file(tensors, str(folder / "adapter_model.safetensors"))
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "target_modules": ["gate_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder, merged


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters")
    layer = torch_layers.qwen3()
    first = make_adapter(folder / "a", layer, rank=4, alpha=16, seed=1)
    second = make_adapter(folder / "b", layer, rank=8, alpha=8, seed=2)
    model = fp4moe.Model.from_tensors(layer.tensors, layer.config, layer.quant_config)
    return layer, model, first, second


def routes(layer, count: int):
    x, logits = torch_layers.tokens(count)
    return x.double(), logits, *layer.routed(logits)


def test_each_token_has_its_own_adapter(case) -> None:
    layer, model, (a, with_a), (b, with_b) = case
    x, logits, ids, weights = routes(layer, 9)
    of_token = [0, 1, -1, 0, 1, -1, 1, 1, 0]
    sets = [with_a, with_b, layer.weights()]  # -1 is the last one
    expected = layer.apply(x, ids, weights, sets, of_token)
    plain = layer.run(x, logits)
    assert torch_layers.distance(plain, expected) > 0.02, "the adapters matter"
    exact = model.layer(0, engine="reference", numerics="exact", threads=1)
    adapters = exact.adapters([a, str(b)])
    assert len(adapters) == 2 and str(a) in repr(adapters)
    for numbers in (np.array(of_token, np.int32), torch.tensor(of_token)):
        found = exact.apply(x, ids, weights, lora=adapters, lora_of_token=numbers)
        assert torch_layers.distance(found, expected) < 1e-6
        found = exact.run(x, logits, lora=adapters, lora_of_token=numbers)
        assert torch_layers.distance(found, expected) < 1e-6
    assert torch_layers.distance(exact.run(x, logits), plain) < 1e-6, "nothing stays behind"


def test_the_quick_engine_adds_adapters_too(case) -> None:
    layer, model, (a, with_a), _ = case
    x, logits, ids, weights = routes(layer, 6)
    expected = layer.apply(x, ids, weights, [with_a])
    with model.layer(0, backend="MARLIN", engine="cpu", threads=1) as quick:
        adapters = quick.adapters(a)
        found = quick.apply(x.float(), ids, weights, lora=adapters)
        assert torch_layers.distance(found, expected) < 2e-2
        assert torch.equal(found, quick.run(x.float(), logits, lora=adapters))


def test_wrong_adapters_are_refused(case, tmp_path) -> None:
    layer, model, (a, _), _ = case
    x, logits, ids, weights = routes(layer, 3)
    mine = model.layer(0, engine="reference", threads=1)
    adapters = mine.adapters([a])
    other = model.layer(0, engine="reference", threads=1)
    zeros = np.zeros(3, np.int32)
    wrong = [
        ({"lora": other.adapters(a)}, "lora.layer"),
        ({"lora_of_token": zeros}, "lora.tokens.*lora=None"),
        ({"lora": adapters, "lora_of_token": zeros[:2]}, "lora.tokens"),
        ({"lora": adapters, "lora_of_token": zeros + 1}, "lora.tokens.*found 1"),
        ({"lora": adapters, "lora_of_token": zeros - 2}, "lora.tokens.*found -2"),
        ({"lora": adapters, "lora_of_token": zeros.astype(np.float32)}, "lora.tokens.*F32"),
        ({"lora": adapters, "lora_of_token": zeros.reshape(1, 3)}, "lora.tokens"),
    ]
    for given, words in wrong:
        with pytest.raises(fp4moe.UsageError, match=words):
            mine.apply(x, ids, weights, **given)
        with pytest.raises(fp4moe.UsageError, match=words):
            mine.run(x, logits, **given)
    with pytest.raises(TypeError, match="what Layer.adapters"):
        mine.run(x, logits, lora=[a])
    with pytest.raises(fp4moe.Error, match="adapter.missing|No such file"):
        mine.adapters(tmp_path / "nothing")
    with pytest.raises(fp4moe.UsageError, match="lora.folders"):
        mine.adapters([])
    with pytest.raises(TypeError):
        mine.adapters(5)
    mine.close()
    with pytest.raises(fp4moe.UsageError, match="layer.closed"):
        mine.adapters(a)
