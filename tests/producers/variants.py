"""Legal forms of checkpoints that no fixture has: names, scales, groupings, lists of modules, shards and configurations.

Each is a tiny model and what must come of it: it is read, or refused with an id and a word of the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from gguf_files import GgufVariant
from numbers_of_fp4 import Rule
from spellings import (
    ABSENT, COMPRESSED, EXPERTS, HIDDEN, INTERMEDIATE, MODELOPT, NUMBERED, PROJECTIONS, QUARK, Style, Tensors, Tiny, Variant,
    bf16, blocks, columns, compressed, config_of, f32, matrices, modelopt, ones, quark, raw, single,
)

NV, MX, ONE = Tiny("nvfp4"), Tiny("mxfp4"), Tiny("nvfp4", one_factor=True)
EXPERT = "model.layers.0.mlp.experts.0."
MIXTRAL = {"model_type": "mixtral", "num_local_experts": EXPERTS, "num_experts": ABSENT, "intermediate_size": INTERMEDIATE,
           "moe_intermediate_size": ABSENT}
SPARSE = "model.layers.{}.block_sparse_moe."


def refusal(refused: str, word: str) -> dict[str, Any]:
    return {"refused": refused, "word": word}


def hadamard(location: str, target: str) -> dict[str, Any]:
    """One transform of compressed-tensors."""
    return {"config_groups": {"u": {"type": "hadamard", "apply": [{"targets": [target], "location": location, "ignore": []}]}}}


def of_compressed_tensors() -> Iterator[Variant]:
    """llm-compressor's."""
    read = {"dialect": "compressed-tensors"}
    for kind, tiny in (("nvfp4", NV), ("mxfp4", MX)):
        tensors, whole = single(tiny, COMPRESSED[kind]), f"{kind}-pack-quantized"
        kv_cache = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
        scale_dtype = {"nvfp4": "torch.float8_e4m3fn", "mxfp4": "torch.uint8"}[kind]
        configs = {
            "group_size-absent": compressed(kind, {"group_size": ABSENT}),
            "ignore-by-regex-and-glob": compressed(kind, ignore=["re:.*lm_head", "re:.*mlp\\.gate$", "re:.*self_attn.*", "model.embed*",
                                                                 "re:^(?!.*experts).*$"]),
            "targets-by-regex": compressed(kind, group={"targets": ["re:.*mlp\\.experts\\.\\d+\\.(gate|up|down)_proj$"]}),
            "targets-by-class": compressed(kind, group={"targets": ["Qwen3MoeMLP", "Linear"]}),
            "kv_cache_scheme": compressed(kind, kv_cache_scheme=kv_cache),
            "format-of-group-alone": compressed(kind, group={"format": whole}, format="mixed-precision"),
            "format-null": compressed(kind, group={"format": whole}, format=None),
            "format-absent": compressed(kind, group={"format": whole}, format=ABSENT),
            "config_groups-absent": compressed(kind, config_groups=ABSENT),
            "keys-of-later-versions": compressed(kind, {"scale_dtype": scale_dtype, "zp_dtype": None, "actorder": None, "later": 1},
                                                 version="0.21.0", transform_config={}, sparsity_config={}),
            "no-claim": ABSENT,
        }
        for name, config in configs.items():
            yield Variant(f"ct-{kind}-{name}", tiny, tensors, config_of(config), **read)
        yield Variant(f"ct-{kind}-mixtral", tiny, single(tiny, COMPRESSED[kind].but(names=NUMBERED, prefix=SPARSE)),
                      config_of(compressed(kind), **MIXTRAL), **read)
    e8m0 = single(MX, COMPRESSED["mxfp4"].but(scales_dtype="F8_E8M0"))
    yield Variant("ct-mxfp4-scales-as-e8m0", MX, e8m0, config_of(compressed("mxfp4")), **read)
    style, plain = COMPRESSED["nvfp4"], config_of(compressed("nvfp4"))
    tensors = single(NV, style)
    yield Variant("ct-scalars", NV, single(NV, style.but(shape=())), plain, **read)
    yield Variant("ct-input-scales", NV, single(NV, style.but(inputs=".input_global_scale")), plain, **read)
    yield Variant("ct-scales-as-e5m2", NV, single(NV, style.but(scales_dtype="F8_E5M2")), plain, **refusal("tensor.dtype", "F8_E5M2"))
    extras = {"weight_zero_point": raw("U8", np.ones((INTERMEDIATE, HIDDEN // 16), np.uint8)),
              "weight_g_idx": raw("I32", np.arange(HIDDEN, dtype=np.int32) // 16)}
    for name, extra in extras.items():
        yield Variant(f"ct-{name}", NV, {**tensors, f"{EXPERT}up_proj.{name}": extra}, plain, **refusal("tensor.unread_part", name))
    groups_of_32 = config_of(compressed("nvfp4", {"group_size": 32}))
    yield Variant("ct-groups-of-32", NV, tensors, groups_of_32, **refusal("dialect.unsupported", "32 elements"))
    first = compressed("nvfp4")["config_groups"]["group_0"]
    for name, target, word in (("up", "re:.*up_proj$", "32 elements"), ("class-path", "torch.nn.Linear", "32 elements"),
                               ("look-behind", "re:(?<!x).*experts.*", "is not understood")):
        odd = {**first, "targets": [target], "weights": {**first["weights"], "group_size": 32}}
        both = compressed("nvfp4", config_groups={"group_0": first, "group_1": odd})
        yield Variant(f"ct-{name}-in-groups-of-32", NV, tensors, config_of(both), **refusal("dialect.unsupported", word))
    for name in ("0.scale", "act_scale"):
        more = {**tensors, f"model.layers.0.mlp.experts.{name}": f32(1, [1])}
        yield Variant(f"ct-experts.{name}", NV, more, plain, **refusal("tensor.unread_scale", name))
    online = refusal("dialect.unsupported", "transform")
    for name, transform, what in (("online", hadamard("input", "re:.*down_proj$"), online), ("of-up", hadamard("input", "re:.*up_proj$"), online),
                                  ("of-all", hadamard("output", "Linear"), online),
                                  ("folded", hadamard("weight_input", "re:.*down_proj$"), read),
                                  ("elsewhere", hadamard("input", "re:.*q_proj$"), read)):
        yield Variant(f"ct-transform-{name}", NV, tensors, config_of(compressed("nvfp4", transform_config=transform)), **what)
    half = {"targets": ["re:.*down_proj$"], "format": "float-quantized", "weights": {"num_bits": 8, "type": "float"}}
    rest = {"targets": ["re:.*(gate|up)_proj$"], "format": "nvfp4-pack-quantized", "weights": {"num_bits": 4, "type": "float"}}
    mixed = {name: tensor for name, tensor in tensors.items() if ".down_proj" not in name}
    for expert in range(EXPERTS):
        stem = f"model.layers.0.mlp.experts.{expert}.down_proj.weight"
        mixed |= {stem: raw("F8_E4M3", np.full((HIDDEN, INTERMEDIATE), 56, np.uint8)), f"{stem}_scale": ones(HIDDEN, 1)}
    yield Variant("ct-down-as-fp8", NV, mixed, config_of(compressed("nvfp4", format="mixed-precision", config_groups={"a": half, "b": rest})),
                  **refusal("dialect.unsupported", "FP4 and F8_E4M3 mixed"))


def of_modelopt() -> Iterator[Variant]:
    """ModelOpt's, one matrix for each expert."""
    read = {"dialect": "modelopt"}
    tensors, plain = single(NV, MODELOPT), config_of(modelopt())
    quantization = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16,
                    "exclude_modules": ["lm_head", "model.layers.*.self_attn*"]}
    beside = {"hf_quant_config.json": {"producer": {"name": "modelopt", "version": "0.39.0"}, "quantization": quantization}}
    yield Variant("mo-hf_quant_config-alone", NV, tensors, config_of(ABSENT), beside=beside, **read)
    yield Variant("mo-both-documents", NV, tensors, plain, beside=beside, **read)
    scheme = {"num_bits": 4, "type": "float", "group_size": 16, "dynamic": False}
    group = {"weights": scheme, "input_activations": scheme, "targets": ["Linear"]}
    configs = {
        "plain": modelopt(), "modelopt_fp4": modelopt(quant_method="modelopt_fp4"), "quant_method-absent": modelopt(quant_method=ABSENT),
        "weights-alone": modelopt("W4A16_NVFP4"),
        "config_groups": modelopt(config_groups={"group_0": group}, ignore=["lm_head", "re:.*q_proj"],
                                  kv_cache_scheme={"num_bits": 8, "type": "float", "dynamic": False}),
    }
    for name, config in configs.items():
        yield Variant(f"mo-{name}", NV, tensors, config_of(config), **read)
    yield Variant("mo-scalars-of-rank-1", NV, single(NV, MODELOPT.but(shape=(1,))), plain, **read)
    yield Variant("mo-scalars-of-rank-2", NV, single(NV, MODELOPT.but(shape=(1, 1))), plain, **refusal("tensor.shape", "[1, 1]"))
    yield Variant("mo-no-input-scales", NV, single(NV, MODELOPT.but(inputs="")), plain, **read)
    yield Variant("mo-groups-of-32", NV, tensors, config_of(modelopt(group_size=32)), **refusal("dialect.unsupported", "group_size 32"))
    yield Variant("mo-svdquant", NV, tensors, config_of(modelopt("NVFP4_SVD")), **refusal("dialect.unsupported", "NVFP4_SVD"))
    for name, refused in (("pre_quant_scale", "tensor.unread_scale"), ("svdquant_lora_a", "tensor.unread_part")):
        more = {**tensors, f"{EXPERT}down_proj.{name}": ones(INTERMEDIATE)}
        yield Variant(f"mo-{name}", NV, more, config_of(modelopt("NVFP4_AWQ")), **refusal(refused, name))
    attention = "model.layers.0.self_attn.q_proj"
    layers = {name.removesuffix(".weight"): {"quant_algo": "NVFP4", "group_size": 16} for name in tensors if ".experts." in name}
    fp8 = {f"{attention}.weight": raw("F8_E4M3", np.full((HIDDEN, HIDDEN), 56, np.uint8)), f"{attention}.weight_scale": f32(0.5, []),
           f"{attention}.input_scale": f32(0.5, [])}
    yield Variant("mo-mixed-precision", NV, {**tensors, **fp8},
                  config_of(modelopt("MIXED_PRECISION", quantized_layers={**layers, attention: {"quant_algo": "FP8"}})), **read)
    of_up = {name: {"quant_algo": "NVFP4_SVD"} for name in layers if name.endswith("up_proj")}
    yield Variant("mo-mixed-precision-up", NV, tensors, config_of(modelopt("MIXED_PRECISION", quantized_layers={**layers, **of_up})),
                  **refusal("dialect.unsupported", "NVFP4_SVD"))


def of_places() -> Iterator[Variant]:
    """Where experts stand in a model, and where the configuration speaks of them."""
    read = {"dialect": "modelopt"}
    for prefix in (SPARSE, "language_model.model.layers.{}.mlp.", "model.language_model.layers.{}.mlp.", "model.layers.{}.feed_forward.",
                   "model.layers.{}.moe.", "backbone.layers.{}.mixer.", "transformer.blocks.{}.ffn.", "model.decoder.layers.{}.mlp.",
                   "layers.{}.mlp.", "model.layers.{}."):
        yield Variant(f"prefix-{prefix.format('N')[:-1]}", NV, single(NV, MODELOPT.but(prefix=prefix)), config_of(modelopt()), **read)
    text = config_of(ABSENT, model_type="qwen3_moe_text")
    vision = {**single(NV, MODELOPT.but(prefix="model.language_model.layers.{}.mlp.")), "model.visual.blocks.0.mlp.fc1.weight": ones(8, 8)}
    whole = {"model_type": "qwen3_vl_moe", "vision_config": {"hidden_size": 8, "intermediate_size": 8}}
    for key in ("text_config", "llm_config", "language_config"):
        yield Variant(f"nested-in-{key}", NV, vision, {**whole, key: text, "quantization_config": modelopt()}, **read)
    yield Variant("nested-quantization", NV, vision, {**whole, "text_config": {**text, "quantization_config": modelopt()}}, **read)
    thinker = {"model_type": "speaks", "thinker_config": {"text_config": text}, "quantization_config": modelopt()}
    yield Variant("nested-in-thinker", NV, single(NV, MODELOPT.but(prefix="thinker.model.layers.{}.mlp.")), thinker, **read)


def of_files_and_counts() -> Iterator[Variant]:
    """Shards, layers and what the configuration counts."""
    read = {"dialect": "modelopt"}
    tensors, plain = single(NV, MODELOPT), config_of(modelopt())
    down = [name for name in tensors if "down_proj" in name]
    two = {"model-00001-of-00002.safetensors": down, "model-00002-of-00002.safetensors": None}
    scales = {"model-00001-of-00002.safetensors": [name for name in tensors if "scale" in name], "model-00002-of-00002.safetensors": None}
    yield Variant("files-shards-with-index", NV, tensors, plain, files=two, index=True, **read)
    yield Variant("files-shards-without-index", NV, tensors, plain, files=two, **read)
    yield Variant("files-scales-apart", NV, tensors, plain, files=scales, index=True, **read)
    yield Variant("files-one-of-another-name", NV, tensors, plain, files={"consolidated.safetensors": None}, **read)
    three = {"model-00001-of-00003.safetensors": down, "model-00002-of-00003.safetensors": None}
    missing = Variant("files-one-is-missing", NV, tensors, plain, files=three, **refusal("store.missing_shard", "00003"))
    yield missing
    for name, changes, what in (
        ("no-num_experts", {"num_experts": ABSENT}, read),
        ("more-experts", {"num_experts": 8}, refusal("layer.missing_expert", "4-7")),
        ("fewer-experts", {"num_experts": 2}, refusal("layer.extra_expert", "beyond the last")),
        ("infinity", {"time_step_limit": [0.0, float("inf")]}, read),
        ("lists", {"num_experts": [EXPERTS, EXPERTS], "moe_intermediate_size": [INTERMEDIATE], "num_experts_per_tok": [2, 2]}, read),
        ("lists-that-differ", {"moe_intermediate_size": [INTERMEDIATE, 32]}, read),
        ("moe_topk", {"num_experts_per_tok": ABSENT, "moe_topk": 2}, read),
        ("tied-embeddings", {"tie_word_embeddings": True, "vocab_size": 16}, read),
    ):
        more = {"model.embed_tokens.weight": ones(16, HIDDEN)} if "tied" in name else {}
        yield Variant(f"config-{name}", NV, {**tensors, **more}, config_of(modelopt(), **changes), **what)
    sparse, deep = Tiny("nvfp4", layers=(1, 3)), Tiny("nvfp4", layers=(1, 2))
    dense = {f"model.layers.{layer}.mlp.{name}.weight": ones(256, HIDDEN) for layer in (0, 2) for name in PROJECTIONS}
    yield Variant("layers-between-dense-ones", sparse, {**single(sparse, MODELOPT), **dense},
                  config_of(modelopt(), num_hidden_layers=4, decoder_sparse_step=2, mlp_only_layers=[]), **read)
    first = {name: tensor for name, tensor in dense.items() if ".0." in name}
    shared = {f"model.layers.{layer}.mlp.shared_experts.{name}.weight": ones(4, 4) for layer in (1, 2) for name in PROJECTIONS}
    bias = {f"model.layers.{layer}.mlp.gate.e_score_correction_bias": f32(0, [EXPERTS]) for layer in (1, 2)}
    deepseek = {"model_type": "deepseek_v3", "n_routed_experts": EXPERTS, "num_experts": ABSENT, "first_k_dense_replace": 1,
                "moe_layer_freq": 1, "n_shared_experts": 1, "scoring_func": "sigmoid", "n_group": 1, "topk_group": 1}
    yield Variant("layers-after-a-dense-one", deep, {**single(deep, MODELOPT), **first, **shared, **bias},
                  config_of(modelopt(), **deepseek), rule=None, **read)
    own = {name.replace("experts.0", "shared_expert"): tensor for name, tensor in tensors.items() if ".experts.0." in name}
    gate = {"model.layers.0.mlp.shared_expert_gate.weight": ones(1, HIDDEN)}
    yield Variant("shared-expert-in-fp4", NV, {**tensors, **own, **gate}, config_of(modelopt(), model_type="qwen2_moe"), **read)
    draft = {f"mtp.layers.0.mlp.experts.{expert}.{name}.weight": ones(8, 8) for expert in range(EXPERTS) for name in PROJECTIONS}
    yield Variant("draft-layer-in-bf16", NV, {**tensors, **draft}, config_of(modelopt(ignore=["lm_head", "mtp*"])), **read)


def of_fused() -> Iterator[Variant]:
    """All experts of a layer in one tensor."""
    oss = {"model_type": "gpt_oss", "num_local_experts": EXPERTS, "num_experts": ABSENT, "intermediate_size": INTERMEDIATE,
           "moe_intermediate_size": ABSENT, "swiglu_limit": 7.0}
    claim = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"]}
    read = {"dialect": "gpt-oss"}
    yield Variant("oss-blocks", MX, blocks(MX), config_of(claim, **oss), **read)
    yield Variant("oss-blocks-of-rank-3", MX, blocks(MX, flat=True), config_of(claim, **oss), **read)
    vision = {"model_type": "some_chat", "llm_config": config_of(ABSENT, **oss), "quantization_config": claim}
    yield Variant("oss-in-a-vision-model", MX, blocks(MX, "language_model.model.layers.{}.mlp."), vision, **read)
    for model in ("qwen3_vl_moe", "qwen3_vl_moe_text", "qwen3_5_moe"):
        yield Variant(f"columns-{model}", ONE, columns(ONE), config_of(modelopt(), model_type=model), "modelopt", rule=None)
    for shape in ((1,), (EXPERTS,)):
        yield Variant(f"columns-factors-{shape[0]}", ONE, columns(ONE, shape), config_of(modelopt(), model_type="qwen3_vl_moe"), "modelopt",
                      rule=None, back=shape == (1,))
    yield Variant("columns-of-a-new-family", ONE, columns(ONE), config_of(modelopt(), model_type="news_moe"),
                  **refusal("dialect.ambiguous", "news_moe"))


def of_quark_and_deepseek() -> Iterator[Variant]:
    """AMD's tool, and DeepSeek-V4's own files."""
    mx = {"dtype": "fp4", "group_size": 32, "qscheme": "per_group", "scale_format": "e8m0", "scale_type": "float", "is_dynamic": False}
    nv = [{"dtype": "fp4", "group_size": 16, "qscheme": "per_group", "scale_type": "float32"},
          {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_scale_quant": True, "scale_type": "float32"}]
    tensors, read = single(MX, QUARK["mxfp4"]), {"dialect": "quark"}
    by_layer = {"quant_method": "quark", "global_quant_config": {"weight": None}, "exclude": ["lm_head", "re:.*self_attn.*"],
                "layer_quant_config": {"*mlp.experts*": {"weight": mx}}}
    later = quark(mx, layer_quant_config=None, layer_type_quant_config={}, algo_config=None, exclude=[],
                  kv_cache_quant_config={"*k_proj": {"output_tensors": {"dtype": "fp8_e4m3"}}})
    for name, config in (("least-words", quark({"dtype": "fp4"})), ("by-layer", by_layer), ("later-keys", later),
                         ("mx_element_dtype", quark({"dtype": "mx", "mx_element_dtype": "fp4", "group_size": 32}))):
        yield Variant(f"qk-{name}", MX, tensors, config_of(config), **read)
    yield Variant("qk-scales-as-e8m0", MX, single(MX, QUARK["mxfp4"].but(scales_dtype="F8_E8M0")), config_of(quark(mx)), **read)
    yield Variant("qk-mixtral", MX, single(MX, QUARK["mxfp4"].but(names=NUMBERED, prefix=SPARSE)), config_of(quark(mx), **MIXTRAL), **read)
    for key, value in (("group_size", 16), ("scale_format", "e4m3"), ("qscheme", "per_channel")):
        yield Variant(f"qk-{key}-{value}", MX, tensors, config_of(quark({**mx, key: value})), **refusal("dialect.unsupported", str(value)))
    odd = {"weight": {**mx, "scale_format": "e5m3", "scale_type": "float8_e5m3"}}
    for name, pattern, word in (("up", "*up_proj", "e5m3"), ("gate", "*gate_proj", "e5m3"), ("expert-1", "*experts.1.*", "e5m3"),
                                ("experts-by-set", "*experts.[01].*", "is not understood")):
        config = config_of(quark(mx, layer_quant_config={pattern: odd}))
        yield Variant(f"qk-e5m3-{name}", MX, tensors, config, **refusal("dialect.unsupported", word))
    of_linear = quark(mx, layer_type_quant_config={"Linear": odd})
    yield Variant("qk-e5m3-linear", MX, tensors, config_of(of_linear), **refusal("dialect.unsupported", "e5m3"))
    yield Variant("qk-linear", MX, tensors, config_of(quark(odd["weight"], layer_type_quant_config={"Linear": {"weight": mx}})), **read)
    yield Variant("qk-nvfp4", NV, single(NV, QUARK["nvfp4"]), config_of(quark(nv)), **read)
    yield Variant("qk-nvfp4-input-scales", NV, single(NV, QUARK["nvfp4"].but(inputs=".input_scale_2")), config_of(quark(nv)), **read)
    v4 = {"model_type": "deepseek_v4", "n_routed_experts": EXPERTS, "num_experts": ABSENT, "scoring_func": "sqrtsoftplus"}
    fp8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128], "scale_fmt": "ue8m0"}
    own = Style(names=NUMBERED, prefix="layers.{}.ffn.", scales=".scale", scales_dtype="F8_E8M0")
    for name, style, more in (("u8", own, {"expert_dtype": "fp4"}), ("i8", own.but(codes_dtype="I8"), {"expert_dtype": "fp4"}),
                              ("no-expert_dtype", own, {}),
                              ("in-a-model", own.but(names=PROJECTIONS, prefix="model.layers.{}.mlp."), {"expert_dtype": "fp4"})):
        yield Variant(f"v4-{name}", MX, single(MX, style), config_of(fp8, **v4, **more), "deepseek-v4", rule=None)


def of_others() -> Iterator[Variant]:
    """What is no dialect here, by its own name."""
    def experts(dtype: str, shape: tuple[int, ...], parts: tuple[str, ...], place: str = "experts.0") -> Tensors:
        zeros = np.zeros(shape, {"U8": np.uint8, "I32": np.int32, "U32": np.uint32}[dtype])
        return {f"model.layers.0.mlp.{place}.{name}.{part}": raw(dtype, zeros) for name in PROJECTIONS for part in parts}

    bitsandbytes = ("weight", "weight.absmax", "weight.quant_map", "weight.quant_state.bitsandbytes__fp4")
    for name, tensors, config, refused, word in (
        ("fp_quant", experts("U8", (64, 64), ("qweight", "scales")), {"quant_method": "fp_quant"}, "dialect.unsupported", "fp_quant"),
        ("gptq", experts("I32", (8, 64), ("qweight", "qzeros", "scales")), {"quant_method": "gptq"}, "dialect.unsupported", "GPTQ"),
        ("bitsandbytes", experts("U8", (64, 1), bitsandbytes), {"quant_method": "bitsandbytes"}, "dialect.unsupported", "bitsandbytes"),
        ("mlx", experts("U32", (4, 64, 16), ("weight",), "switch_mlp"), {"mode": "mxfp4", "bits": 4}, "dialect.unknown", "no tensors"),
    ):
        yield Variant(f"other-{name}", MX, tensors, config_of(config), **refusal(refused, word))


def of_families() -> Iterator[Variant]:
    """Routers and activations of families, as their configurations and tensors spell them."""
    bias = np.array([0.3, -0.2, 0.1, -0.4])
    plain = single(NV, MODELOPT)
    weight = plain["model.layers.0.mlp.gate.weight"]
    without = {name: tensor for name, tensor in plain.items() if ".mlp.gate." not in name}

    def family(model: str, router: str = "gate", bias_name: str = "", rule: Rule | None = None, activation: str = "silu",
               no_rule: str = "", **changes: Any) -> Variant:
        tensors = {**without, f"model.layers.0.mlp.{router}.weight": weight}
        if bias_name:
            tensors[f"model.layers.0.mlp.{bias_name}"] = f32(bias, [EXPERTS])
        name = f"family-{model}" + (f"-{activation}" if activation != "silu" else "")
        config = config_of(modelopt(), **{"model_type": model, "norm_topk_prob": ABSENT, **changes})
        return Variant(name, NV, tensors, config, "modelopt", rule=rule, bias=bias if bias_name else None, activation=activation,
                       no_rule=no_rule)

    yield family("lfm2_moe", bias_name="expert_bias", rule=Rule("sigmoid"), norm_topk_prob=True, use_expert_bias=True)
    yield family("afmoe", "router.gate", "expert_bias", Rule("sigmoid", scale=2.5), route_scale=2.5, route_norm=True)
    yield family("bailing_moe_v2", bias_name="gate.expert_bias", rule=Rule("sigmoid", scale=2.5), routed_scaling_factor=2.5)
    yield family("hunyuan_v1_moe", "gate.wg", rule=Rule(), num_experts_per_tok=ABSENT, moe_topk=[2])
    yield family("granitemoe", "router.layer", rule=Rule())
    yield family("jamba", "router", rule=Rule(normalizes=False))
    yield family("olmoe", rule=Rule(normalizes=False), norm_topk_prob=False)
    yield family("cohere2_moe", rule=Rule("sigmoid"), expert_selection_fn="sigmoid", norm_topk_prob=True)
    yield family("ernie4_5_moe", bias_name="moe_statics.e_score_correction_bias", rule=Rule())
    yield family("qwen3_moe", rule=Rule(), norm_topk_prob=True, activation="gelu_tanh", hidden_act="gelu_pytorch_tanh")
    yield family("hy_v3", bias_name="e_score_correction_bias", rule=Rule("sigmoid", scale=2.5), router_scaling_factor=2.5)
    # MiniMax-M3 and Kimi-K3 by their keys, with constants that no activation has by itself.
    yield family("minimax_m3_vl", bias_name="e_score_correction_bias", rule=Rule("sigmoid", scale=2.0), activation="swigluoai",
                 hidden_act="swigluoai", swiglu_alpha=1.25, swiglu_limit=5.0, scoring_func="sigmoid", routed_scaling_factor=2.0)
    latent = family("kimi_linear", bias_name="gate.e_score_correction_bias", activation="situ", hidden_act="situ", activation_situ_beta=4.0,
                    activation_situ_linear_beta=25.0, hidden_size=2 * HIDDEN, routed_expert_hidden_size=HIDDEN,
                    moe_router_activation_func="sigmoid", moe_renormalize=True)
    latent.tensors["model.layers.0.mlp.gate.weight"] = ones(EXPERTS, 2 * HIDDEN)
    yield latent
    yield family("phimoe", no_rule="phimoe")
    hashed = family("deepseek_v4", no_rule="token ids", num_experts=ABSENT, n_routed_experts=EXPERTS, scoring_func="sqrtsoftplus")
    hashed.tensors["model.layers.0.mlp.gate.tid2eid"] = raw("I64", np.zeros((16, 2), np.int64))
    yield hashed
    yield family("a_new_one", no_rule="a_new_one", norm_topk_prob=True)
    deepseek: dict[str, Any] = {"scoring_func": "sigmoid", "norm_topk_prob": True, "num_experts": ABSENT, "n_routed_experts": EXPERTS}
    for name, odd in (
        ("by_hash", family("deepseek_v3", bias_name="gate.e_score_correction_bias", no_rule="by_hash", topk_method="by_hash", **deepseek)),
        ("lost-bias", family("deepseek_v3", no_rule="no correction bias", topk_method="noaux_tc", **deepseek)),
        ("tanh", family("qwen3_moe", no_rule="tanh", norm_topk_prob=True, score_function="tanh")),
        ("softcap", family("qwen3_moe", no_rule="softcap", norm_topk_prob=True, moe_router_logit_softcapping=30.0)),
        ("scale", family("qwen3_moe", no_rule="nothing here applies", norm_topk_prob=True)),
    ):
        odd.name += f"-{name}"
        if name == "scale":
            odd.tensors["model.layers.0.mlp.gate.scale"] = f32(1, [EXPERTS])
        yield odd


def of_gguf() -> Iterator[GgufVariant]:
    """Architectures that llama.cpp has, with experts in FP4."""
    bias = np.array([0.3, -0.2, 0.1, -0.4])
    sigmoid, group = {"expert_gating_func": 2}, {"expert_group_count": 1, "expert_group_used_count": 1}
    scaled = {"expert_weights_scale": 2.5, "expert_weights_norm": True}
    only_one_width: dict[str, Any] = {"expert_feed_forward_length": None, "feed_forward_length": INTERMEDIATE}
    for kind, tiny in (("nvfp4", NV), ("mxfp4", MX)):
        for architecture in ("qwen3moe", "qwen3next", "qwen35moe", "hunyuan-moe"):
            yield GgufVariant(f"gguf-{kind}-{architecture}", tiny, Rule(), architecture)
        for architecture in ("llama", "dbrx"):
            yield GgufVariant(f"gguf-{kind}-{architecture}", tiny, Rule(), architecture, only_one_width)
        for architecture in ("olmoe", "jamba"):
            yield GgufVariant(f"gguf-{kind}-{architecture}", tiny, Rule(normalizes=False), architecture, only_one_width)
        yield GgufVariant(f"gguf-{kind}-qwen2moe", tiny, Rule(normalizes=False), "qwen2moe")
        yield GgufVariant(f"gguf-{kind}-granitemoe", tiny, Rule(), "granitemoe", only_one_width, joined=True)
        yield GgufVariant(f"gguf-{kind}-qwen3moe-joined", tiny, Rule(), "qwen3moe", joined=True)
        yield GgufVariant(f"gguf-{kind}-grok", tiny, None, "grok", only_one_width, activation="gelu_tanh", no_rule="grok")
        for architecture, more in (("glm4moe", {**sigmoid, **scaled}), ("deepseek2", {**sigmoid, **scaled, **group}), ("dots1", {**sigmoid, **scaled}),
                                   ("bailingmoe2", {**sigmoid, **scaled})):
            yield GgufVariant(f"gguf-{kind}-{architecture}", tiny, Rule("sigmoid", scale=2.5), architecture, more, bias=bias)
        for architecture in ("minimax-m2", "lfm2moe"):
            yield GgufVariant(f"gguf-{kind}-{architecture}", tiny, Rule("sigmoid"), architecture, sigmoid, bias=bias)
        yield GgufVariant(f"gguf-{kind}-ernie4_5-moe", tiny, Rule(), "ernie4_5-moe", bias=bias)
        hybrid: dict[str, Any] = {**scaled, **group}
        yield GgufVariant(f"gguf-{kind}-nemotron_h_moe", tiny, Rule("sigmoid", scale=2.5), "nemotron_h_moe", hybrid, ("up", "down"), bias=bias,
                          activation="relu2")
        latent = {**hybrid, "embedding_length": 2 * HIDDEN, "moe_latent_size": HIDDEN}
        yield GgufVariant(f"gguf-{kind}-latent", tiny, None, "nemotron_h_moe", latent, ("up", "down"), activation="relu2")
        yield GgufVariant(f"gguf-{kind}-phimoe", tiny, None, "phimoe", only_one_width, no_rule="phimoe")


def unquantized(variant: Variant) -> Variant:
    """The same model with its experts' values in BF16, which holds all of them."""
    tensors = {name: tensor for name, tensor in variant.tensors.items() if ".experts." not in name}
    tensors |= {f"{stem}.weight": bf16(each.values()) for stem, each in matrices(variant.tiny, MODELOPT)}
    config = {key: value for key, value in variant.config.items() if key != "quantization_config"}
    return Variant(variant.name, variant.tiny, tensors, config)


def variants() -> list[Variant | GgufVariant]:
    """All of them."""
    makers = (of_compressed_tensors, of_modelopt, of_places, of_files_and_counts, of_fused, of_quark_and_deepseek, of_others, of_families, of_gguf)
    return [variant for maker in makers for variant in maker()]
