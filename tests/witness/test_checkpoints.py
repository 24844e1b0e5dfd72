"""Dequantizes what synth, transcode and quantize write, independently of the library.

Every dialect is read with other people's packages (safetensors, gguf) and turned into numbers with
numpy by the documented formats; the numbers of one seed must agree across dialects. FP4MOE_CLI
names the program.
"""
import json
import os
import re
import subprocess
from pathlib import Path

import gguf
import ml_dtypes
import numpy as np
import pytest
import safetensors

CLI = os.environ["FP4MOE_CLI"]
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float64)
NUMPY_TYPES = {"U8": np.uint8, "F32": np.float32, "BF16": ml_dtypes.bfloat16,
               "F8_E4M3": ml_dtypes.float8_e4m3fn}
PROJECTIONS = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down",
               "w1": "gate", "w3": "up", "w2": "down"}

MXFP4 = ["gpt-oss", "openai", "compressed-tensors", "quark", "gguf"]
NVFP4 = ["modelopt", "compressed-tensors", "gguf"]
GPT_OSS = ["--model", "gpt-oss-20b", "--experts", "3", "--hidden", "192", "--intermediate", "160"]
QWEN = ["--model", "qwen3-30b-a3b", "--experts", "4", "--hidden", "256", "--intermediate", "192"]
NEMOTRON = ["--model", "nemotron-3-nano", "--experts", "3", "--hidden", "192",
            "--intermediate", "128"]


def run(*arguments, status=0):
    done = subprocess.run([CLI, *map(str, arguments), "--json"], capture_output=True, text=True)
    assert done.returncode == status, done.stdout + done.stderr
    return json.loads(done.stdout)


def synth(out, *arguments):
    run("synth", "--seed", 3, "--layers", 2, *arguments, "-o", out)
    return out


def read_tensors(folder: Path):
    """All tensors of a safetensors checkpoint, through its index when it has one."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        weight_map = json.loads(index.read_text())["weight_map"]
        files = sorted(set(weight_map.values()))
    else:
        weight_map, files = None, ["model.safetensors"]
    tensors = {}
    for name in files:
        for key, view in safetensors.deserialize((folder / name).read_bytes()):
            assert weight_map is None or weight_map[key] == name
            dtype = NUMPY_TYPES[view["dtype"]]
            tensors[key] = np.frombuffer(view["data"], dtype).reshape(view["shape"])
    assert weight_map is None or set(weight_map) == set(tensors)
    return tensors


def unpack(codes):
    """Two codes to a byte, the even element in the low nibble."""
    codes = codes.view(np.uint8)
    return E2M1[np.stack([codes & 15, codes >> 4], axis=-1).reshape(*codes.shape[:-1], -1)]


def e8m0(scales):
    return np.exp2(scales.view(np.uint8).astype(np.float64) - 127)


def scaled(values, scales, block):
    return values * np.repeat(scales, block, axis=-1)


def fused(tensors, pattern, blocks, scales):
    """gate_up rows are interleaved: gate, up, gate, up."""
    weights = {}
    for name in tensors:
        found = re.fullmatch(pattern, name)
        if not found:
            continue
        codes = tensors[name].reshape(*tensors[name].shape[:2], -1)
        values = scaled(unpack(codes), e8m0(tensors[name.replace(blocks, scales)]), 32)
        for expert in range(values.shape[0]):
            layer = int(found["layer"])
            if found["which"] in ("gate_up_proj", "mlp1"):
                weights[layer, expert, "gate"] = values[expert, 0::2]
                weights[layer, expert, "up"] = values[expert, 1::2]
            else:
                weights[layer, expert, "down"] = values[expert]
    return weights


def per_expert(tensors, codes, value_of):
    weights = {}
    pattern = (r".*layers\.(?P<layer>\d+)\..*experts\.(?P<expert>\d+)\.(?P<which>\w+)"
               + re.escape(codes))
    for name in tensors:
        found = re.fullmatch(pattern, name)
        if found:
            stem = name[: -len(codes)]
            key = int(found["layer"]), int(found["expert"]), PROJECTIONS[found["which"]]
            weights[key] = value_of(unpack(tensors[name]), stem)
    return weights


def joined(tensors):
    """Quark's gpt-oss: gate_up_proj of each expert, interleaved rows."""
    weights = {}
    for name in tensors:
        found = re.fullmatch(r".*layers\.(\d+)\..*experts\.(\d+)\.(gate_up|down)_proj\.weight", name)
        if not found:
            continue
        values = scaled(unpack(tensors[name]), e8m0(tensors[name + "_scale"]), 32)
        layer, expert = int(found[1]), int(found[2])
        if found[3] == "down":
            weights[layer, expert, "down"] = values
        else:
            weights[layer, expert, "gate"], weights[layer, expert, "up"] = values[::2], values[1::2]
    return weights


def e4m3(tensor):
    return tensor.view(ml_dtypes.float8_e4m3fn).astype(np.float64)


def dequantize(path: Path, dialect, form):
    if dialect == "gguf":
        return dequantize_gguf(path)
    tensors = read_tensors(path)
    if dialect == "gpt-oss":
        return fused(tensors, r"model\.layers\.(?P<layer>\d+)\.mlp\.experts\.(?P<which>\w+)_blocks",
                     "_blocks", "_scales")
    if dialect == "openai":
        return fused(tensors, r"block\.(?P<layer>\d+)\.mlp\.(?P<which>mlp\d)_weight\.blocks",
                     ".blocks", ".scales")
    if dialect == "modelopt":
        return per_expert(tensors, ".weight", lambda values, stem: scaled(
            values, e4m3(tensors[stem + ".weight_scale"]), 16)
            * np.float64(tensors[stem + ".weight_scale_2"]))
    if dialect == "compressed-tensors" and form == "nvfp4":
        return per_expert(tensors, ".weight_packed", lambda values, stem: scaled(
            values, e4m3(tensors[stem + ".weight_scale"]), 16)
            / np.float64(tensors[stem + ".weight_global_scale"][0]))
    if dialect == "compressed-tensors":
        return per_expert(tensors, ".weight_packed", lambda values, stem: scaled(
            values, e8m0(tensors[stem + ".weight_scale"]), 32))
    assert dialect == "quark"
    if any(re.search(r"experts\.\d+\.gate_up_proj", name) for name in tensors):
        return joined(tensors)
    if any("gate_up_proj" in name for name in tensors):
        return fused(tensors, r"model\.layers\.(?P<layer>\d+)\.mlp\.experts\.(?P<which>\w+)\.weight",
                     ".weight", ".weight_scale")
    return per_expert(tensors, ".weight", lambda values, stem: scaled(
        values, e8m0(tensors[stem + ".weight_scale"]), 32))


def dequantize_gguf(path: Path):
    reader = gguf.GGUFReader(path)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    weights = {}
    for name, tensor in tensors.items():
        found = re.fullmatch(r"blk\.(\d+)\.ffn_(gate|up|down)_exps\.weight", name)
        if not found:
            continue
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
        scale = tensors.get(name.replace(".weight", ".scale"))
        for expert in range(values.shape[0]):
            own = 1.0 if scale is None else np.float64(scale.data[expert])
            weights[int(found[1]), expert, found[2]] = values[expert] * own
    return weights


def assert_same(a, b, relative=0.0):
    assert a.keys() == b.keys() and len(a) > 0
    for key in a:
        np.testing.assert_allclose(a[key], b[key], rtol=relative, atol=0, err_msg=str(key))


def path_of(folder, dialect):
    return folder / (dialect + (".gguf" if dialect == "gguf" else ""))


def test_synth_gives_the_same_numbers_in_every_mxfp4_dialect(tmp_path):
    weights = {}
    for dialect in MXFP4:
        out = synth(path_of(tmp_path, dialect), *GPT_OSS, "--dialect", dialect, "--shards", "3")
        weights[dialect] = dequantize(out, dialect, "mxfp4")
    fused_quark = synth(tmp_path / "fused", *GPT_OSS, "--dialect", "quark", "--grouping", "fused")
    weights["fused"] = dequantize(fused_quark, "quark", "mxfp4")
    assert weights["gpt-oss"][1, 2, "down"].shape == (192, 160)
    for other in weights:
        assert_same(weights["gpt-oss"], weights[other])


@pytest.mark.parametrize("model", [QWEN, NEMOTRON], ids=["qwen3", "nemotron"])
def test_synth_gives_the_same_numbers_in_every_nvfp4_dialect(tmp_path, model):
    weights = {}
    for dialect in NVFP4:
        out = synth(path_of(tmp_path, dialect), *model, "--dialect", dialect, "--format", "nvfp4")
        weights[dialect] = dequantize(out, dialect, "nvfp4")
    has_gate = any(key[2] == "gate" for key in weights["modelopt"])
    assert has_gate == (model is QWEN)
    for dialect in NVFP4:
        assert_same(weights["modelopt"], weights[dialect], relative=2e-7)


@pytest.mark.parametrize("source", MXFP4)
def test_transcode_keeps_every_mxfp4_number(tmp_path, source):
    first = synth(path_of(tmp_path, source), *GPT_OSS, "--dialect", source)
    expected = dequantize(first, source, "mxfp4")
    for target in MXFP4:
        if target != source:
            out = tmp_path / ("to-" + target + (".gguf" if target == "gguf" else ""))
            run("transcode", first, "--to", target, "-o", out, "--max-shard-size", "100KB")
            assert_same(expected, dequantize(out, target, "mxfp4"))


@pytest.mark.parametrize("source", NVFP4)
def test_transcode_keeps_every_nvfp4_number(tmp_path, source):
    first = synth(path_of(tmp_path, source), *QWEN, "--dialect", source, "--format", "nvfp4")
    expected = dequantize(first, source, "nvfp4")
    for target in NVFP4:
        if target != source:
            out = tmp_path / ("to-" + target + (".gguf" if target == "gguf" else ""))
            report = run("transcode", first, "--to", target, "-o", out)
            assert report["experts"] == 8
            assert_same(expected, dequantize(out, target, "nvfp4"), relative=2e-7)


def test_gguf_metadata_is_what_llama_cpp_looks_for(tmp_path):
    out = synth(tmp_path / "m.gguf", *GPT_OSS, "--dialect", "gguf")
    reader = gguf.GGUFReader(out)
    value = {name: field.contents() for name, field in reader.fields.items()}
    assert value["general.architecture"] == "gpt-oss"
    assert value["general.file_type"] == gguf.LlamaFileType.MOSTLY_MXFP4_MOE
    assert value["gpt-oss.expert_count"] == 3
    assert value["gpt-oss.expert_used_count"] == 3
    assert value["gpt-oss.block_count"] == 2
    assert value["gpt-oss.embedding_length"] == 192
    assert value["gpt-oss.expert_feed_forward_length"] == 160
    names = {tensor.name for tensor in reader.tensors}
    known = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GPT_OSS, 2)
    for ours in ("model.embed_tokens", "model.norm", "lm_head", "model.layers.1.input_layernorm",
                 "model.layers.1.post_attention_layernorm", "model.layers.1.self_attn.q_proj",
                 "model.layers.1.self_attn.o_proj", "model.layers.1.mlp.router"):
        assert known.get_name(ours) + ".weight" in names
    assert "blk.0.attn_sinks.weight" in names
    assert not any(name.startswith("model.") for name in names)


@pytest.mark.parametrize("model,arch", [(QWEN, "QWEN3MOE"), (NEMOTRON, "NEMOTRON_H_MOE")],
                         ids=["qwen3", "nemotron"])
def test_gguf_names_of_other_families_are_llama_cpps(tmp_path, model, arch):
    out = synth(tmp_path / "m.gguf", *model, "--dialect", "gguf", "--format", "nvfp4")
    plain = synth(tmp_path / "plain", *model, "--dialect", "modelopt")
    names = {tensor.name for tensor in gguf.GGUFReader(out).tensors}
    known = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, arch), 8)
    for name in read_tensors(plain):
        if ".experts." in name:
            continue
        mapped = known.get_name(name, try_suffixes=(".weight", ".bias"))
        assert mapped in names, name


def test_configurations_mark_their_dialect(tmp_path):
    def config(dialect, model, *more):
        out = synth(tmp_path / (dialect + "-" + "".join(more)), *model, "--dialect", dialect, *more)
        return json.loads((out / "config.json").read_text()), out

    assert config("gpt-oss", GPT_OSS)[0]["quantization_config"]["quant_method"] == "mxfp4"
    modelopt, out = config("modelopt", QWEN)
    assert modelopt["quantization_config"]["quant_algo"] == "NVFP4"
    beside = json.loads((out / "hf_quant_config.json").read_text())
    assert beside["producer"]["name"] == "modelopt"
    assert beside["quantization"] == {
        "quant_algo": "NVFP4", "kv_cache_quant_algo": None, "group_size": 16,
        "exclude_modules": modelopt["quantization_config"]["ignore"]}
    packed = config("compressed-tensors", QWEN, "--format=nvfp4")[0]["quantization_config"]
    assert packed["format"] == "nvfp4-pack-quantized"
    assert packed["config_groups"]["group_0"]["weights"]["group_size"] == 16
    assert packed["config_groups"]["group_0"]["input_activations"]["dynamic"] == "local"
    assert "lm_head" in packed["ignore"] and "model.layers.0.mlp.gate" in packed["ignore"]
    assert not any("experts" in module for module in packed["ignore"])
    weight = config("quark", GPT_OSS)[0]["quantization_config"]["global_quant_config"]["weight"]
    assert (weight["dtype"], weight["qscheme"], weight["group_size"]) == ("fp4", "per_group", 32)


def plain_weights(tensors, model_type):
    """The numbers of an unquantized checkpoint in its own form."""
    weights = {}
    for name, tensor in tensors.items():
        found = re.fullmatch(r".*layers\.(\d+)\..*experts\.(?:(\d+)\.)?(\w+?)(\.weight)?", name)
        if not found or name.endswith("bias"):
            continue
        layer, values = int(found[1]), tensor.astype(np.float64)
        if found[2] is not None:
            weights[layer, int(found[2]), PROJECTIONS[found[3]]] = values
            continue
        for expert in range(values.shape[0]):
            own = values[expert].T if model_type == "gpt_oss" else values[expert]
            if found[3] == "down_proj":
                weights[layer, expert, "down"] = own
            elif model_type == "gpt_oss":
                weights[layer, expert, "gate"], weights[layer, expert, "up"] = own[0::2], own[1::2]
            else:
                half = own.shape[0] // 2
                weights[layer, expert, "gate"], weights[layer, expert, "up"] = own[:half], own[half:]
    return weights


def nearest(values, scale):
    """The E2M1 number nearest to values / scale, for checking: distance only."""
    grid = np.unique(E2M1)
    ratio = np.clip(values / scale, -6, 6)
    return np.min(np.abs(ratio[..., None] - grid), axis=-1) * scale


@pytest.mark.parametrize("model,form", [(GPT_OSS, "bf16"), (QWEN, "bf16"), (QWEN, "bf16-fused"),
                                        (NEMOTRON, "bf16")],
                         ids=["gpt-oss", "qwen3", "qwen3-fused", "nemotron"])
@pytest.mark.parametrize("format", ["mxfp4", "nvfp4"])
def test_quantize_finds_the_nearest_numbers(tmp_path, model, form, format):
    source = synth(tmp_path / "plain", *model, "--dialect", form)
    model_type = json.loads((source / "config.json").read_text())["model_type"]
    expected = plain_weights(read_tensors(source), model_type)
    report = run("quantize", source, "--format", format, "-o", tmp_path / "out")
    quantized = dequantize(tmp_path / "out", report["to"], format)
    assert quantized.keys() == expected.keys()
    errors = {"gate": [], "up": [], "down": []}
    block = 32 if format == "mxfp4" else 16
    for key, values in expected.items():
        wrong = np.abs(values - quantized[key])
        blocks = np.abs(values).reshape(values.shape[0], -1, block).max(axis=-1)
        assert np.all(wrong <= 0.26 * np.repeat(blocks, block, axis=-1)), key
        errors[key[2]].append((np.sum(wrong**2), np.sum(values**2)))
    for which, sums in errors.items():
        if sums:
            rms = np.sqrt(sum(a for a, _ in sums) / sum(b for _, b in sums))
            np.testing.assert_allclose(report["errors"][which]["rms_relative"], rms, rtol=1e-3)


def test_quantize_rounds_to_the_nearest_code_of_its_scale(tmp_path):
    source = synth(tmp_path / "plain", *QWEN, "--dialect", "bf16")
    run("quantize", source, "--rule", "ceil6.rne", "-o", tmp_path / "out")
    expected = plain_weights(read_tensors(source), "qwen3_moe")
    quantized = dequantize(tmp_path / "out", "compressed-tensors", "mxfp4")
    tensors = read_tensors(tmp_path / "out")
    for (layer, expert, which), values in expected.items():
        stem = f"model.layers.{layer}.mlp.experts.{expert}.{which}_proj"
        scale = np.repeat(e8m0(tensors[stem + ".weight_scale"]), 32, axis=-1)
        amax = np.abs(values).reshape(values.shape[0], -1, 32).max(axis=-1)
        exact = np.exp2(np.ceil(np.log2(amax / 6)))
        np.testing.assert_array_equal(scale[:, ::32], exact)
        distance = np.abs(values - quantized[layer, expert, which])
        np.testing.assert_allclose(distance, nearest(values, scale), atol=1e-12)


def test_quantized_checkpoints_transcode_like_others(tmp_path):
    source = synth(tmp_path / "plain", *QWEN, "--dialect", "bf16")
    run("quantize", source, "--format", "nvfp4", "--input-scale", "0.002", "-o", tmp_path / "m")
    run("transcode", tmp_path / "m", "--to", "compressed-tensors", "-o", tmp_path / "c")
    run("quantize", source, "--format", "nvfp4", "--input-scale", "0.002", "--to",
        "compressed-tensors", "-o", tmp_path / "direct")
    a, b = read_tensors(tmp_path / "c"), read_tensors(tmp_path / "direct")
    assert a.keys() == b.keys()
    for name in a:
        if "global_scale" in name:  # a reciprocal of a reciprocal
            np.testing.assert_allclose(a[name], b[name], rtol=2e-7)
        else:
            np.testing.assert_array_equal(a[name].view(np.uint8), b[name].view(np.uint8))


def test_refusals_are_json_with_an_identifier(tmp_path):
    source = synth(tmp_path / "a", *QWEN, "--dialect", "modelopt")
    answer = run("transcode", source, "--to", "gpt-oss", "-o", tmp_path / "b", status=2)
    assert answer["error"]["id"] == "transcode.format"
    assert "compressed-tensors" in answer["error"]["expected"]
    assert not (tmp_path / "b").exists()
