"""quantize_experts: a full-precision model's experts in FP4, in place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("ml_dtypes")

import tiny_checkpoints as tiny  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

import fp4moe  # noqa: E402
from fp4moe.transformers import quantize_experts  # noqa: E402


@pytest.mark.parametrize("name", ["gpt-oss", "qwen3-nvfp4", "qwen3-mxfp4"])
def test_it_gives_the_model_that_the_quantized_checkpoint_gives(name: str, tmp_path: Path) -> None:
    kind = tiny.KINDS[name]
    result = tiny.make(tmp_path, kind)
    ids = torch.arange(1, 12)[None]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "bf16")
    assert quantize_experts(model, kind.format) is model
    assert not [name for name, _ in model.named_parameters() if ".experts." in name]
    read = AutoModelForCausalLM.from_pretrained(result, experts_implementation="fp4moe")
    with torch.no_grad():
        found = model(ids).logits
        assert torch.equal(found, read(ids).logits)

    model.save_pretrained(tmp_path / "saved")
    before, after = tiny.tensors(result), tiny.tensors(tmp_path / "saved")
    assert before.keys() == after.keys()
    assert all(array.tobytes() == after[name].tobytes() for name, array in before.items())
    stored = json.loads((tmp_path / "saved" / "config.json").read_text())["quantization_config"]
    assert stored["quant_method"] in ("mxfp4", "compressed-tensors")
    again = AutoModelForCausalLM.from_pretrained(
        tmp_path / "saved", experts_implementation="fp4moe"
    )
    with torch.no_grad():
        assert torch.equal(again(ids).logits, found)


def refusal(model: Any, format: str) -> str:
    with pytest.raises(fp4moe.Error) as caught:
        quantize_experts(model, format)
    return str(caught.value.id)


def test_what_no_dialect_holds_is_refused_before_anything_changes() -> None:
    model = tiny.plain(tiny.config("gpt_oss"))
    assert refusal(model, "nvfp4") == "transformers.experts"
    assert refusal(model, "int4") == "transformers.format"
    assert refusal(model.model.layers[0].self_attn, "mxfp4") == "transformers.model"
    assert [name for name, _ in model.named_parameters() if ".experts." in name]


def test_an_unknown_activation_is_refused_before_anything_changes() -> None:
    model = tiny.plain(tiny.config("qwen3_moe", hidden_act="mish"))
    assert refusal(model, "nvfp4") == "facts.activation"
    assert [name for name, _ in model.named_parameters() if ".experts." in name]
