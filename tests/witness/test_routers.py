"""Families' routers: what the program chooses from hidden states is what transformers' module does.

Each model is random, made by transformers and quantized by the program. Its first router chooses
experts; the program runs once with those given and once with hidden states alone.
"""

import os
import re
import subprocess

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

CLI = os.environ["FP4MOE_CLI"]
BASE = {"hidden_size": 128, "num_hidden_layers": 2, "vocab_size": 128, "num_attention_heads": 4,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
HEADS = {"num_key_value_heads": 2, "head_dim": 32}
WIDE = {"intermediate_size": 192, "moe_intermediate_size": 64}
MANY = {"num_experts": 8, "num_experts_per_tok": 2}
LOCAL = {"num_local_experts": 8, "num_experts_per_tok": 2}
ROUTED = {"n_routed_experts": 8, "num_experts_per_tok": 2, "first_k_dense_replace": 0}
SHARED = {"shared_expert_intermediate_size": 64}

# The class of the configuration, and its sizes.
FAMILIES = {
    "OlmoeConfig": {**HEADS, "intermediate_size": 64, **MANY},
    "Qwen2MoeConfig": {**HEADS, **WIDE, **SHARED, **MANY},
    "Qwen3MoeConfig": {**HEADS, **WIDE, **MANY},
    "Qwen3NextConfig": {**HEADS, **WIDE, **SHARED, **MANY, "num_hidden_layers": 4},
    "MixtralConfig": {**HEADS, "intermediate_size": 64, **LOCAL},
    "Ernie4_5_MoeConfig": {**HEADS, **WIDE, "moe_num_experts": 8, "moe_k": 2,
                           "moe_layer_start_index": 0},
    "Dots1Config": {**HEADS, **WIDE, **ROUTED, "n_shared_experts": 1, "n_group": 2, "topk_group": 1,
                    "norm_topk_prob": True, "routed_scaling_factor": 2.5},
    "Glm4MoeConfig": {**HEADS, **WIDE, **ROUTED, "routed_scaling_factor": 1.5},
    "KimiLinearConfig": {**WIDE, "num_experts": 8, "num_experts_per_token": 2,
                         "first_k_dense_replace": 0, "routed_scaling_factor": 2.446},
    "Qwen3_5MoeTextConfig": {**HEADS, **WIDE, **SHARED, **MANY, "num_hidden_layers": 4},
    "FlexOlmoConfig": {**HEADS, "intermediate_size": 64, **MANY},
    "HunYuanMoEV1Config": {**HEADS, "intermediate_size": 64, "num_experts": 8, "moe_topk": 2},
    "Lfm2MoeConfig": {"num_key_value_heads": 2, **WIDE, **MANY, "num_dense_layers": 0,
                      "layer_types": ["full_attention"] * 2, "routed_scaling_factor": 2.5},
    "ExaoneMoeConfig": {**HEADS, **WIDE, **MANY, "num_shared_experts": 1,
                        "first_k_dense_replace": 0, "mlp_layer_types": ["sparse"] * 2},
    "MiniMaxConfig": {**HEADS, "intermediate_size": 64, **LOCAL},
    "MiniMaxM2Config": {**HEADS, "intermediate_size": 64, **LOCAL},
    "Glm4MoeLiteConfig": {**WIDE, **ROUTED, "q_lora_rank": 64, "kv_lora_rank": 64,
                          "qk_rope_head_dim": 32, "qk_nope_head_dim": 32, "v_head_dim": 32,
                          "num_key_value_heads": 4, "mlp_layer_types": ["sparse"] * 2},
    "DeepseekV2Config": {**WIDE, **ROUTED, "q_lora_rank": 64, "kv_lora_rank": 64,
                         "qk_rope_head_dim": 32, "qk_nope_head_dim": 32, "v_head_dim": 32,
                         "num_key_value_heads": 4, "topk_method": "group_limited_greedy",
                         "n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.5},
    "SolarOpenConfig": {**HEADS, **WIDE, **ROUTED, "n_shared_experts": 1},
    "Cohere2MoeConfig": {**HEADS, "intermediate_size": 64, **MANY, "expert_selection_fn": "sigmoid"},
    "MellumConfig": {**HEADS, **WIDE, **MANY, "mlp_layer_types": ["sparse"] * 2},
    "HYV3Config": {**HEADS, **WIDE, **MANY, "first_k_dense_replace": 0,
                   "mlp_layer_types": ["sparse"] * 2},
    "DeepseekV4Config": {"moe_intermediate_size": 64, "n_routed_experts": 8,
                         "num_experts_per_tok": 2, "num_hidden_layers": 3},
}
HASHED = {"DeepseekV4Config"}


def run(*words):
    return subprocess.run([CLI, *map(str, words)], capture_output=True, text=True)


def make(name, folder):
    """The model with a router that decides something, and its checkpoint in NVFP4."""
    if not hasattr(transformers, name):
        pytest.skip(f"this transformers has no {name}")
    torch.manual_seed(1)
    config = getattr(transformers, name)(**{**BASE, **FAMILIES[name]})
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    for key, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if re.search(r"correction|expert_bias|(gate|wg)\.weight$", key):
            tensor.data = (torch.randn(tensor.shape) * 0.2).to(tensor.dtype)
    model.save_pretrained(folder / "plain")
    done = run("quantize", folder / "plain", "--format", "nvfp4", "--to", "compressed-tensors",
               "-o", folder / "fp4")
    assert done.returncode == 0, done.stderr
    # Some blocks keep the bias that their router chooses with.
    for block in model.modules():
        for router in block.children():
            if re.search("(Router|MoEV1Gate)$", type(router).__name__):
                kept = [tensor.float() for key, tensor in block.named_buffers(recurse=False)
                        if "bias" in key]
                return lambda x, ask=router.float(), more=kept: ask(x, *more)
    raise AssertionError(f"{name} has no router of its own")


def outputs(folder, tensors):
    save_file(tensors, folder / "x.safetensors")
    done = run("run", folder / "fp4", "--input", folder / "x.safetensors", "--numerics", "exact",
               "--engine", "reference", "-o", folder / "out.safetensors")
    return done, load_file(folder / "out.safetensors") if done.returncode == 0 else {}


@pytest.mark.parametrize("name", FAMILIES)
def test_the_programs_router_is_the_models(name, tmp_path):
    router = make(name, tmp_path)
    x = torch.randn(24, 128).to(torch.bfloat16)
    done, own = outputs(tmp_path, {"hidden_states": x})
    if name in HASHED:
        assert done.returncode == 3 and "facts.routing" in done.stderr
        assert "token ids" in done.stderr
        return
    assert done.returncode == 0, done.stderr
    with torch.no_grad():
        result = router(x.float())
    ids = next(tensor for tensor in result if not tensor.is_floating_point())
    weights = [each for each in result if each.is_floating_point() and each.shape == ids.shape][-1]
    done, given = outputs(tmp_path, {"hidden_states": x, "topk_ids": ids.int().contiguous(),
                                     "topk_weights": weights.float().contiguous()})
    assert done.returncode == 0, done.stderr
    (a,), (b,) = own.values(), given.values()
    assert float((a - b).norm() / b.norm()) < 1e-5
