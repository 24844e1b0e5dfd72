"""What is not as usual: quantized modules outside the experts, experts in full precision."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("ml_dtypes")

import tiny_checkpoints as tiny  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

import fp4moe  # noqa: E402
from fp4moe.transformers import Fp4MoeConfig  # noqa: E402

WISH = Fp4MoeConfig()
MODULE = "model.layers.1.self_attn.q_proj"


def make_fp4(tensors: dict[str, Any], dialect: str) -> None:
    """Random codes and scales in the place of one attention weight."""
    generator = torch.Generator().manual_seed(9)
    rows, columns = tensors.pop(f"{MODULE}.weight").shape
    codes = torch.randint(0, 256, (rows, columns // 2), generator=generator, dtype=torch.uint8)
    scales = (torch.rand(rows, columns // 16, generator=generator) + 0.5).to(torch.float8_e4m3fn)
    tensors[f"{MODULE}.weight_scale"] = scales
    if dialect == "modelopt":
        tensors[f"{MODULE}.weight"] = codes
        tensors[f"{MODULE}.weight_scale_2"] = torch.tensor(0.037)
        tensors[f"{MODULE}.input_scale"] = torch.tensor(0.5)
    else:
        tensors[f"{MODULE}.weight_packed"] = codes
        tensors[f"{MODULE}.weight_global_scale"] = torch.tensor([27.0])


@pytest.mark.parametrize("name", ["qwen3-modelopt", "qwen3-nvfp4"])
def test_fp4_attention_is_dequantized_and_saved_as_it_was(name: str, tmp_path: Path) -> None:
    kind = tiny.KINDS[name]
    result = tiny.make(tmp_path, kind)
    tensors = load_file(result / "model.safetensors")
    make_fp4(tensors, kind.dialect)
    save_file(tensors, result / "model.safetensors", {"format": "pt"})
    settle(result)

    theirs = tiny.witness(result, kind)
    values = tiny.decode(tiny.tensors(result), MODULE)
    theirs.model.layers[1].self_attn.q_proj.weight.data = torch.from_numpy(values).float()
    ours, said = AutoModelForCausalLM.from_pretrained(
        result, experts_implementation="fp4moe", dtype=torch.float32, output_loading_info=True
    )
    assert not said["missing_keys"] and not said["unexpected_keys"]
    ids = torch.arange(1, 20)[None]
    with torch.no_grad():
        found, exact = ours(ids).logits, theirs(ids).logits
    assert float((found - exact).norm() / exact.norm()) <= 4e-4

    ours.save_pretrained(tmp_path / "saved")
    before, after = tiny.tensors(result), tiny.tensors(tmp_path / "saved")
    assert before.keys() == after.keys()
    assert np.array_equal(before[f"{MODULE}.weight_scale"], after[f"{MODULE}.weight_scale"])
    for part in ("weight", "weight_packed"):
        if f"{MODULE}.{part}" in before:
            assert np.array_equal(before[f"{MODULE}.{part}"], after[f"{MODULE}.{part}"])


FP8_FORMS = {
    "tensor": (),
    "one": (1,),
    "rows": (64, 1),
    "row": (64,),
    "block": (2, 2),
    "axes": (2, 1, 2, 1),  # ModelOpt's blocks
}


def make_fp8(tensors: dict[str, Any], form: str) -> torch.Tensor:
    """FP8 with scales in the place of one attention weight; returns its values."""
    weight = tensors.pop(f"{MODULE}.weight")
    assert weight.shape == (64, 64)
    generator = torch.Generator().manual_seed(5)
    scales = (torch.rand(FP8_FORMS[form], generator=generator) + 0.5).to(torch.bfloat16) / 64
    codes = (torch.randn(64, 64, generator=generator) * 50).to(torch.float8_e4m3fn)
    tensors[f"{MODULE}.weight"] = codes
    tensors[f"{MODULE}.weight_scale"] = scales
    whole = scales.float().reshape(-1, 1) if form == "row" else scales.float()
    if form in ("block", "axes"):
        whole = whole.reshape(2, 2).repeat_interleave(32, 0).repeat_interleave(32, 1)
    return codes.float() * whole


@pytest.mark.parametrize("form", FP8_FORMS)
def test_fp8_attention_is_dequantized_with_its_scales(form: str, tmp_path: Path) -> None:
    kind = tiny.KINDS["qwen3-nvfp4"]
    result = tiny.make(tmp_path, kind)
    theirs = tiny.witness(result, kind)
    tensors = load_file(result / "model.safetensors")
    values = make_fp8(tensors, form)
    save_file(tensors, result / "model.safetensors", {"format": "pt"})
    document = json.loads((result / "config.json").read_text())
    quantization = document["quantization_config"]
    quantization["ignore"] = [name for name in quantization["ignore"] if name != MODULE]
    quantization["config_groups"]["group_1"] = {
        "format": "float-quantized",
        "targets": [MODULE],
        "weights": {"num_bits": 8, "type": "float", "block_structure": [32, 32]},
    }
    quantization["format"] = "mixed-precision"
    (result / "config.json").write_text(json.dumps(document))

    theirs.model.layers[1].self_attn.q_proj.weight.data = values
    ours, said = AutoModelForCausalLM.from_pretrained(
        result, experts_implementation="fp4moe", dtype=torch.float32, output_loading_info=True
    )
    assert not said["missing_keys"] and not said["unexpected_keys"]
    assert torch.equal(ours.model.layers[1].self_attn.q_proj.weight, values)
    with torch.no_grad():
        found, exact = (each(torch.arange(1, 20)[None]).logits for each in (ours, theirs))
    assert float((found - exact).norm() / exact.norm()) <= 4e-4
    ours.save_pretrained(tmp_path / "saved")
    before, after = (
        load_file(folder / "model.safetensors") for folder in (result, tmp_path / "saved")
    )
    assert before.keys() == after.keys()
    for part in ("weight", "weight_scale"):
        was, now = before[f"{MODULE}.{part}"], after[f"{MODULE}.{part}"]
        assert was.dtype == now.dtype and torch.equal(was.float(), now.float())


UNREAD = [
    "weight_zero_point",
    "pre_quant_scale",
    "weight_scale_3",
    "weight_g_idx",
    "qzeros",
    "perm",
    "weight_quantizer.svdquant_lora_a",
    "lora_A.weight",
    "input_hadamard.weight",
    "input_rotation",
]


@pytest.mark.parametrize("part", UNREAD)
def test_a_part_that_nothing_applies_is_refused(part: str, tmp_path: Path) -> None:
    result = tiny.make(tmp_path, tiny.KINDS["qwen3-modelopt"])
    tensors = load_file(result / "model.safetensors")
    tensors[f"{MODULE}.{part}"] = torch.ones(64)
    save_file(tensors, result / "model.safetensors", {"format": "pt"})
    with pytest.raises(fp4moe.UnsupportedError) as caught:
        AutoModelForCausalLM.from_pretrained(result, quantization_config=WISH)
    assert caught.value.id == "transformers.scale" and part in str(caught.value)


def test_scales_of_activations_change_no_weight(tmp_path: Path) -> None:
    result = tiny.make(tmp_path, tiny.KINDS["qwen3-modelopt"])
    tensors = load_file(result / "model.safetensors")
    tensors["model.layers.0.self_attn.k_proj.k_scale"] = torch.tensor(0.5)
    save_file(tensors, result / "model.safetensors", {"format": "pt"})
    AutoModelForCausalLM.from_pretrained(result, quantization_config=WISH)


def test_quantized_weights_without_scales_are_refused(tmp_path: Path) -> None:
    result = tiny.make(tmp_path, tiny.KINDS["qwen3-nvfp4"])
    tensors = load_file(result / "model.safetensors")
    make_fp8(tensors, "rows")
    del tensors[f"{MODULE}.weight_scale"]
    save_file(tensors, result / "model.safetensors", {"format": "pt"})
    with pytest.raises(fp4moe.UnsupportedError) as caught:
        AutoModelForCausalLM.from_pretrained(result, quantization_config=WISH)
    assert caught.value.id == "transformers.scale"


def claim(folder: Path, **words: Any) -> None:
    """Change what config.json says of the quantization."""
    document = json.loads((folder / "config.json").read_text())
    document["quantization_config"] |= words
    (folder / "config.json").write_text(json.dumps(document))


def transform(location: str, target: str) -> dict[str, Any]:
    applied = {"targets": [target], "location": location, "inverse": False, "ignore": []}
    return {"config_groups": {"u": {"type": "hadamard", "apply": [applied]}}}


@pytest.mark.parametrize("location", ["input", "output"])
@pytest.mark.parametrize(
    ("target", "id"), [("re:.*q_proj$", "transformers.scale"), ("Linear", "dialect.unsupported")]
)
def test_a_transform_at_run_time_is_refused(
    location: str, target: str, id: str, tmp_path: Path
) -> None:
    result = tiny.make(tmp_path, tiny.KINDS["qwen3-nvfp4"])
    claim(result, transform_config=transform(location, target))
    with pytest.raises(fp4moe.Error, match="transform") as caught:
        AutoModelForCausalLM.from_pretrained(result, quantization_config=WISH)
    assert caught.value.id == id and location in str(caught.value)


@pytest.mark.parametrize("location", ["weight_input", "weight_output"])
def test_a_transform_that_is_folded_into_weights_is_no_matter(
    location: str, tmp_path: Path
) -> None:
    result = tiny.make(tmp_path, tiny.KINDS["qwen3-nvfp4"])
    claim(result, transform_config=transform(location, "Linear"))
    AutoModelForCausalLM.from_pretrained(result, quantization_config=WISH)


QUARK = tiny.Kind("qwen3_moe", "quark", "mxfp4")
LEVEL = {"dtype": "fp4", "group_size": 32, "qscheme": "per_group", "scale_type": "float"}


def make_quark(folder: Path, **changes: Any) -> Path:
    """A checkpoint with an attention weight in FP4: codes of 1.0, scales of 2; Quark says what they are."""
    result = tiny.make(folder, QUARK)
    tensors = load_file(result / "model.safetensors")
    rows, columns = tensors.pop(f"{MODULE}.weight").shape
    tensors[f"{MODULE}.weight"] = torch.full((rows, columns // 2), 0x22, dtype=torch.uint8)
    tensors[f"{MODULE}.weight_scale"] = torch.full((rows, columns // 32), 128, dtype=torch.uint8)
    save_file(tensors, result / "model.safetensors", {"format": "pt"})
    stored = json.loads((result / "config.json").read_text())["quantization_config"]
    excluded = [name for name in stored["exclude"] if name != MODULE]
    layers = {"*self_attn.q_proj": {"weight": {**LEVEL, **changes}}}
    claim(result, exclude=excluded, layer_quant_config=layers)
    return result


@pytest.mark.parametrize("written", ["e8m0", None])
def test_quarks_mxfp4_outside_the_experts_is_dequantized(
    written: str | None, tmp_path: Path
) -> None:
    result = make_quark(tmp_path, scale_format=written)
    model = AutoModelForCausalLM.from_pretrained(result, quantization_config=WISH)
    assert (model.model.layers[1].self_attn.q_proj.weight == 2).all()


@pytest.mark.parametrize(
    "changes", [{"scale_format": "e5m3"}, {"scale_format": "e4m3"}, {"scale_type": "float8_e5m3"}]
)
def test_quarks_block_scales_in_another_format_are_refused(
    changes: dict[str, str], tmp_path: Path
) -> None:
    result = make_quark(tmp_path, **changes)
    with pytest.raises(fp4moe.UnsupportedError) as caught:
        AutoModelForCausalLM.from_pretrained(result, quantization_config=WISH)
    assert caught.value.id == "transformers.scale"
    assert all(value in caught.value.found for value in changes.values())


def settle(folder: Path) -> None:
    """The lists of modules that are not quantized lose the one that now is."""
    for name in ("config.json", "hf_quant_config.json"):
        if not (folder / name).is_file():
            continue
        document = json.loads((folder / name).read_text())
        inner = document.get("quantization_config", document.get("quantization"))
        for key in ("ignore", "exclude_modules", "modules_to_not_convert"):
            inner[key] = [module for module in inner.get(key, []) if module != MODULE]
        (folder / name).write_text(json.dumps(document))


def test_a_layer_in_full_precision_is_left_to_transformers(tmp_path: Path) -> None:
    kind = tiny.KINDS["qwen3-nvfp4"]
    result = tiny.make(tmp_path, kind)
    plain = load_file(tmp_path / "bf16" / "model.safetensors")
    experts = "model.layers.1.mlp.experts."
    tensors = load_file(result / "model.safetensors")
    tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(experts)}
    kept = {name: tensor for name, tensor in plain.items() if name.startswith(experts)}
    save_file({**tensors, **kept}, result / "model.safetensors", {"format": "pt"})
    document = json.loads((result / "config.json").read_text())
    document["quantization_config"]["ignore"] += sorted(
        {name.removesuffix(".weight") for name in kept}
    )
    (result / "config.json").write_text(json.dumps(document))

    model, said = AutoModelForCausalLM.from_pretrained(
        result, experts_implementation="eager", quantization_config=WISH, output_loading_info=True
    )
    assert not said["missing_keys"] and not said["unexpected_keys"]
    other = AutoModelForCausalLM.from_pretrained(result, experts_implementation="fp4moe")
    with torch.no_grad():
        found, exact = (each(torch.arange(1, 9)[None]).logits for each in (other, model))
    assert float((found - exact).norm() / exact.norm()) <= 2**-5  # BF16 in another order
    names = [type(layer.mlp.experts).__name__ for layer in model.model.layers]
    assert names == ["Fp4MoeExperts", "Qwen3MoeExperts"]
    model.save_pretrained(tmp_path / "saved")
    before, after = tiny.tensors(result), tiny.tensors(tmp_path / "saved")
    assert before.keys() == after.keys()
    assert all(array.tobytes() == after[name].tobytes() for name, array in before.items())


def test_a_layer_without_experts_is_refused(tmp_path: Path) -> None:
    result = tiny.make(tmp_path, tiny.KINDS["qwen3-nvfp4"])
    found = load_file(result / "model.safetensors")
    left = {name: tensor for name, tensor in found.items() if "layers.1.mlp.experts" not in name}
    save_file(left, result / "model.safetensors", {"format": "pt"})
    with pytest.raises(fp4moe.InvalidInputError) as caught:
        AutoModelForCausalLM.from_pretrained(result, quantization_config=WISH)
    assert caught.value.id == "transformers.layer"
