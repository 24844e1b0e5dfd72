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
from fp4moe.transformers import Fp4MoeConfig, Fp4MoeExperts  # noqa: E402
from fp4moe.transformers.config import is_fp4  # noqa: E402

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


def make_form(folder: Path, form: str, **more: Any) -> Path:
    """A checkpoint with one attention weight in this form, and more tensors of its module."""
    result = tiny.make(folder, tiny.KINDS["qwen3-modelopt"])
    tensors = load_file(result / "model.safetensors")
    if form == "fp8":
        make_fp8(tensors, "rows")
    elif form == "mxfp4":
        del tensors[f"{MODULE}.weight"]
        tensors[f"{MODULE}.weight"] = torch.full((64, 32), 0x22, dtype=torch.uint8)
        tensors[f"{MODULE}.weight_scale"] = torch.full((64, 2), 128, dtype=torch.uint8)
    else:
        make_fp4(tensors, form)
    tensors |= {f"{MODULE}.{part}": tensor for part, tensor in more.items()}
    tensors = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    save_file(tensors, result / "model.safetensors", {"format": "pt"})
    settle(result)
    return result


def refuse(folder: Path, id: str = "transformers.scale") -> fp4moe.Error:
    """The error with this id that loading ends with."""
    with pytest.raises(fp4moe.Error) as caught:
        AutoModelForCausalLM.from_pretrained(folder, quantization_config=WISH)
    assert caught.value.id == id
    return caught.value


# Form, and one more tensor that would be multiplied in by another reading.
SECOND_SCALES = [
    ("modelopt", "weight_global_scale", torch.tensor([27.0])),
    ("modelopt", "weight_scale_inv", torch.ones(64, 4)),
    ("modelopt", "scale", torch.tensor(2.0)),
    ("compressed-tensors", "weight_scale_2", torch.tensor(0.037)),
    ("mxfp4", "weight_scale_2", torch.tensor(0.037)),
    ("mxfp4", "weight_global_scale", torch.tensor([27.0])),
    ("fp8", "weight_scale_2", torch.tensor(0.037)),
    ("fp8", "weight_scale_inv", torch.ones(64, 1)),
]


@pytest.mark.parametrize(("form", "part", "scale"), SECOND_SCALES)
def test_a_scale_beside_the_applied_one_is_refused(
    form: str, part: str, scale: Any, tmp_path: Path
) -> None:
    assert refuse(make_form(tmp_path, form, **{part: scale})).tensor == f"{MODULE}.{part}"


@pytest.mark.parametrize("form", ["modelopt", "compressed-tensors"])
def test_nvfp4_without_a_global_scale_is_refused(form: str, tmp_path: Path) -> None:
    part = {"modelopt": "weight_scale_2", "compressed-tensors": "weight_global_scale"}[form]
    assert part in refuse(make_form(tmp_path, form, **{part: None})).found


@pytest.mark.parametrize("scale", [torch.full((3,), 0.037), torch.tensor(2, dtype=torch.uint8)])
def test_a_global_scale_that_is_no_single_float_is_refused(scale: Any, tmp_path: Path) -> None:
    found = refuse(make_form(tmp_path, "modelopt", weight_scale_2=scale))
    assert found.tensor == f"{MODULE}.weight_scale_2"


@pytest.mark.parametrize("shape", [(64, 2), (1, 4), (64, 8), (128, 4), (64,)])
def test_block_scales_of_another_shape_are_refused(shape: tuple[int, ...], tmp_path: Path) -> None:
    scales = torch.ones(shape).to(torch.float8_e4m3fn)
    found = refuse(make_form(tmp_path, "modelopt", weight_scale=scales))
    assert str(list(shape)) in found.found and "[64, 4]" in found.expected


# The types and shapes of other formats with E8M0 scales, and a matrix of another size.
OTHER_WEIGHTS = {
    "MXFP6": (torch.uint8, (64, 48)),
    "MXINT8": (torch.int8, (64, 64)),
    "stack": (torch.uint8, (2, 32, 32)),
    "rows": (torch.float8_e4m3fn, (32, 64)),
}


@pytest.mark.parametrize("name", OTHER_WEIGHTS)
def test_a_weight_of_another_shape_is_refused(name: str, tmp_path: Path) -> None:
    kind, shape = OTHER_WEIGHTS[name]
    weight = torch.zeros(shape).to(kind)
    found = refuse(make_form(tmp_path, "mxfp4", weight=weight), "transformers.shape")
    assert str(list(shape)) in found.found and "[64, 64]" in found.expected


@pytest.mark.parametrize("shape", [(2,), (3,), (2, 2, 2, 1), (2, 2, 1), (3, 3)])
def test_fp8_scales_of_an_unknown_form_are_refused(
    shape: tuple[int, ...], tmp_path: Path
) -> None:
    result = make_form(tmp_path, "fp8", weight_scale=torch.full(shape, 0.5))
    claim(result, weight_block_size=[32, 32])
    assert str(list(shape)) in refuse(result).found


def test_two_weights_of_a_module_are_refused(tmp_path: Path) -> None:
    plain = torch.zeros(64, 64, dtype=torch.bfloat16)
    found = refuse(make_form(tmp_path, "compressed-tensors", weight=plain))
    assert found.tensor == f"{MODULE}.weight" and "BF16" in found.found


LISTED = [(MODULE, "W4A8_AWQ"), (MODULE, "NVFP4_SVD"), ("model.layers.1.self_attn", "FP8")]


@pytest.mark.parametrize(("module", "algorithm"), [*LISTED, ("re:*", "NVFP4")])
@pytest.mark.parametrize("name", ["config.json", "hf_quant_config.json"])
def test_fp4_that_modelopt_lists_as_something_else_is_refused(
    module: str, algorithm: str, name: str, tmp_path: Path
) -> None:
    result = make_form(tmp_path, "modelopt")
    layers = {module: {"quant_algo": algorithm}}
    if name == "config.json":
        claim(result, quantized_layers=layers)
    else:
        document = json.loads((result / name).read_text())
        document["quantization"]["quantized_layers"] = layers
        (result / name).write_text(json.dumps(document))
    assert (module if module == "re:*" else algorithm) in refuse(result).found


def test_the_nearest_entry_of_modelopts_list_counts(tmp_path: Path) -> None:
    result = make_form(tmp_path, "modelopt")
    layers = {"model.layers.1.self_attn": {"quant_algo": "FP8"}, MODULE: {"quant_algo": "nvfp4"}}
    claim(result, quantized_layers=layers)
    AutoModelForCausalLM.from_pretrained(result, quantization_config=WISH)


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
    "changes",
    [
        {"scale_format": "e5m3"},
        {"scale_format": "e4m3"},
        {"scale_type": "float8_e5m3"},
        {"dtype": "int4"},
        {"dtype": "fp6_e3m2"},
        {"dtype": "mx", "mx_element_dtype": "fp6_e2m3"},
    ],
)
def test_quarks_block_scales_in_another_format_are_refused(
    changes: dict[str, str], tmp_path: Path
) -> None:
    result = make_quark(tmp_path, **changes)
    with pytest.raises(fp4moe.UnsupportedError) as caught:
        AutoModelForCausalLM.from_pretrained(result, quantization_config=WISH)
    assert caught.value.id == "transformers.scale"
    assert all(value in caught.value.found for value in changes.values())


MXFP4 = {"weight": {**LEVEL, "scale_format": "e8m0"}}
E5M3 = {"weight": {**LEVEL, "scale_format": "e5m3"}}
EXPERTS = {"*experts*": MXFP4}


def say_quark(folder: Path, layers: Any, types: Any, rest: Any) -> Path:
    """A checkpoint of make_quark with schemes by layer name, by layer type, and of all others."""
    result = make_quark(folder)
    schemes = {"layer_quant_config": layers, "layer_type_quant_config": types}
    claim(result, **schemes, global_quant_config=rest)
    return result


# By layer name, by layer type, and global: the first that says how weights are quantized holds.
READ = {
    "name before type": ({**EXPERTS, "*q_proj": MXFP4}, {"Linear": E5M3}, MXFP4),
    "type before global": (EXPERTS, {"Linear": MXFP4}, E5M3),
    "base of the type": (EXPERTS, {"Module": MXFP4}, E5M3),
    "another type": (EXPERTS, {"Conv2d": E5M3}, MXFP4),
    "whole name before patterns": ({**EXPERTS, "*_proj": E5M3, MODULE: MXFP4}, {}, E5M3),
    "null for none": (None, None, MXFP4),
}
REFUSED = {
    "type before global": (EXPERTS, {"Linear": E5M3}, MXFP4),
    "a class as Python has it": (EXPERTS, {"<class 'torch.nn.Linear'>": E5M3}, MXFP4),
    "two classes": (EXPERTS, {"Linear": MXFP4, "quark.QuantLinear": E5M3}, MXFP4),
    "a name without weights": ({**EXPERTS, "*q_proj": {"weight": None}}, {}, E5M3),
    "null for no scheme": ({**EXPERTS, "*q_proj": None}, {"Linear": None}, E5M3),
}


@pytest.mark.parametrize("name", READ)
def test_quarks_scheme_of_a_module_is_by_name_then_type(name: str, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(
        say_quark(tmp_path, *READ[name]), quantization_config=WISH
    )
    assert (model.model.layers[1].self_attn.q_proj.weight == 2).all()


@pytest.mark.parametrize("name", REFUSED)
def test_quarks_scheme_of_a_layer_type_is_not_skipped(name: str, tmp_path: Path) -> None:
    assert "e5m3" in refuse(say_quark(tmp_path, *REFUSED[name])).found


def test_a_pattern_that_is_not_understood_is_refused(tmp_path: Path) -> None:
    result = say_quark(tmp_path, {**EXPERTS, "re:*q_proj": E5M3}, {}, MXFP4)
    assert "re:*q_proj" in refuse(result).found


def test_quarks_scales_of_fp8_blocks_in_another_format_are_refused(tmp_path: Path) -> None:
    level = {"dtype": "fp8_e4m3", "group_size": 32, "qscheme": "per_group", "scale_format": "e5m3"}
    result = say_quark(tmp_path, {**EXPERTS, "*q_proj": {"weight": level}}, {}, MXFP4)
    tensors = load_file(result / "model.safetensors")
    tensors[f"{MODULE}.weight"] = torch.ones(64, 64).to(torch.float8_e4m3fn)
    save_file(tensors, result / "model.safetensors", {"format": "pt"})
    assert "e5m3" in refuse(result).found


def modelopt(algorithm: str, **words: Any) -> dict[str, Any]:
    return {"quant_method": "modelopt", "quant_algo": algorithm, **words}


FP4_CLAIMS = [
    modelopt("NVFP4", quant_method="modelopt_fp4"),
    modelopt("mxfp4", quant_method=None, producer={"name": "modelopt"}),
    modelopt("MIXED_PRECISION"),  # the tensors will tell
    modelopt("MIXED_PRECISION", quantized_layers={"a": {"quant_algo": "NVFP4"}}),
    {"quant_method": "quark", "layer_type_quant_config": {"Linear": MXFP4}},
    {"producer": {"name": "quark"}, "layer_quant_config": {"*": MXFP4, "a": None}},
    {
        "quant_method": "quark",
        "global_quant_config": {"weight": {"dtype": "mx", "mx_element_dtype": "fp4"}},
    },
]
OTHER_CLAIMS = [
    modelopt("FP8"),
    modelopt("MIXED_PRECISION", quantized_layers={"a": {"quant_algo": "FP8"}, "b": None}),
    {"quant_algo": "NVFP4"},
    {
        "quant_method": "quark",
        "global_quant_config": {"weight": {"dtype": "mx", "mx_element_dtype": "fp8_e4m3"}},
    },
    {"quant_method": "compressed-tensors", "config_groups": {"group_0": None}},
    {"quant_method": "fp8"},
]


def test_what_announces_fp4() -> None:
    assert [claim for claim in FP4_CLAIMS if not is_fp4(claim)] == []
    assert [claim for claim in OTHER_CLAIMS if is_fp4(claim)] == []


OTHER_NAMES = [
    {"quant_method": "modelopt_fp4"},
    {"quant_method": None, "producer": {"name": "modelopt"}},
]


@pytest.mark.parametrize("words", OTHER_NAMES)
def test_modelopt_is_known_by_its_other_names(words: dict[str, Any], tmp_path: Path) -> None:
    result = tiny.make(tmp_path, tiny.KINDS["qwen3-modelopt"])
    claim(result, **words)
    model = AutoModelForCausalLM.from_pretrained(result, experts_implementation="fp4moe")
    assert isinstance(model.model.layers[0].mlp.experts, Fp4MoeExperts)
    model.save_pretrained(tmp_path / "saved")
    before, after = (
        json.loads((folder / "config.json").read_text())["quantization_config"]
        for folder in (result, tmp_path / "saved")
    )
    assert before == after


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
