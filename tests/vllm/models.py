"""Random two-layer models for vLLM: FP4 experts in a dialect, and a BF16 reference with the same values.

    <folder>/bf16      transformers' own, before anything is quantized
    <folder>/fp4       its experts in FP4, written by fp4moe
    <folder>/native    fp4 converted for this machine's CPU; of gpt-oss also native-tp2 and -ep2
    <folder>/witness   the BF16 checkpoint with the values of fp4's experts
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    GptOssConfig,
    PreTrainedTokenizerFast,
    Qwen3MoeConfig,
)

import fp4moe
from fp4moe import cli

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
SHARED = {
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "hidden_size": 128,
    "num_experts_per_tok": 2,
    "vocab_size": 256,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": None,
    "tie_word_embeddings": False,
}


class Kind(NamedTuple):
    """A family of models, and how its experts are written."""

    family: str
    dialect: str
    format: str
    input_scale: float | None = None  # tokens are meant to be quantized, too
    has_fp4_attention: bool = False
    is_mixed: bool = False  # ModelOpt's list of layers


KINDS = {
    "gpt-oss": Kind("gpt_oss", "gpt-oss", "mxfp4"),
    "qwen3-nvfp4": Kind("qwen3_moe", "compressed-tensors", "nvfp4", 0.5, has_fp4_attention=True),
    "qwen3-modelopt": Kind("qwen3_moe", "modelopt", "nvfp4", 0.5),
    "qwen3-mixed": Kind("qwen3_moe", "modelopt", "nvfp4", 0.5, is_mixed=True),
    "qwen3-w4a16": Kind("qwen3_moe", "modelopt", "nvfp4"),
    "qwen3-nvfp4a16": Kind("qwen3_moe", "compressed-tensors", "nvfp4"),
    "qwen3-quark-nvfp4": Kind("qwen3_moe", "quark", "nvfp4", 0.5),
    "qwen3-mxfp4": Kind("qwen3_moe", "compressed-tensors", "mxfp4"),
    "qwen3-quark": Kind("qwen3_moe", "quark", "mxfp4"),
    "deepseek-nvfp4": Kind("deepseek_v3", "compressed-tensors", "nvfp4", 0.5),
}


def config(family: str) -> Any:
    """A small configuration."""
    if family == "gpt_oss":
        types = ["sliding_attention", "full_attention"]
        # Three blocks: the second of two ranks has one, which vLLM's loader fills up.
        sizes = {"intermediate_size": 96, "num_local_experts": 4, "layer_types": types}
        return GptOssConfig(**SHARED, **sizes)
    if family == "deepseek_v3":  # a dense layer first, groups, a shared expert, a bias that only chooses
        heads = {"qk_rope_head_dim": 64, "qk_nope_head_dim": 64, "v_head_dim": 64, "num_key_value_heads": 4}
        ranks = {"q_lora_rank": 64, "kv_lora_rank": 512}
        sizes = {"moe_intermediate_size": 64, "intermediate_size": 128, "n_routed_experts": 8}
        groups = {"n_group": 2, "topk_group": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid"}
        given = {**SHARED, **heads, **ranks, **sizes, **groups, "first_k_dense_replace": 1}
        del given["head_dim"]
        return DeepseekV3Config(**given)
    sizes = {"moe_intermediate_size": 64, "num_experts": 8, "norm_topk_prob": True}
    return Qwen3MoeConfig(**SHARED, **sizes, decoder_sparse_step=1)


def add_tokenizer(folder: Path) -> None:
    """One word for every token, and a chat template."""
    words = {"<pad>": 0, "<eos>": 1, **{f"w{i}": i for i in range(2, 256)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<pad>"
    )
    fast.chat_template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    fast.save_pretrained(folder)


def make(folder: Path, kind: Kind) -> None:
    """Write the three checkpoints."""
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config(kind.family), dtype=torch.bfloat16)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.2)
    for name, buffer in model.named_buffers():
        if name.endswith("correction_bias"):
            torch.nn.init.normal_(buffer, std=0.2)
    model.save_pretrained(folder / "bf16")
    add_tokenizer(folder / "bf16")
    words = {} if kind.input_scale is None else {"input_scale": kind.input_scale}
    fp4moe.quantize_checkpoint(
        folder / "bf16", folder / "fp4", format=kind.format, to=kind.dialect, **words
    )
    if kind.has_fp4_attention:
        quantize_attention(folder / "fp4")
    if kind.is_mixed:
        list_layers(folder / "fp4")
    convert(folder, "native")
    if kind.family == "gpt_oss":
        convert(folder, "native-tp2", "--tp", "2")
        convert(folder, "native-ep2", "--ep", "2")
    witness(folder, kind)


def convert(folder: Path, name: str, *words: str) -> None:
    """The FP4 checkpoint as a folder of this machine's kernels."""
    outcome = cli.call(["convert", str(folder / "fp4"), *words, "-o", str(folder / name)])
    assert outcome.status == 0, outcome.err


def quantize_attention(folder: Path) -> None:
    """Attention in NVFP4, too, with one global scale, as vLLM fuses q, k and v."""
    (path,) = folder.glob("*.safetensors")
    tensors = load_file(path)
    for name in [name for name in tensors if name.endswith("_proj.weight") and "self_attn" in name]:
        module = name.removesuffix(".weight")
        result = fp4moe.quantize(tensors.pop(name), "nvfp4", global_scale=1024.0)
        assert result.scales.all()  # weights of zero would tell nothing
        tensors[f"{module}.weight_packed"] = result.codes
        tensors[f"{module}.weight_scale"] = result.scales.view(torch.float8_e4m3fn)
        tensors[f"{module}.weight_global_scale"] = torch.tensor([1024.0])
        tensors[f"{module}.input_global_scale"] = torch.tensor([2.0])
    save_file(tensors, path, metadata={"format": "pt"})
    document = json.loads((folder / "config.json").read_text())
    ignored = document["quantization_config"]["ignore"]
    document["quantization_config"]["ignore"] = [one for one in ignored if "self_attn" not in one]
    (folder / "config.json").write_text(json.dumps(document))


def list_layers(folder: Path) -> None:
    """ModelOpt's mixed precision: every quantized layer by its name."""
    names = [f"model.layers.{number}.mlp.experts" for number in range(2)]
    listed = {name: {"quant_algo": "NVFP4", "group_size": 16} for name in names}
    for file in ("config.json", "hf_quant_config.json"):
        document = json.loads((folder / file).read_text())
        place = document.get("quantization_config", document.get("quantization"))
        place |= {"quant_algo": "MIXED_PRECISION", "quantized_layers": listed}
        (folder / file).write_text(json.dumps(document))


def witness(folder: Path, kind: Kind) -> None:
    """The BF16 checkpoint with the values of the FP4 one, by the formats' definitions."""
    shutil.copytree(folder / "bf16", folder / "witness")
    (path,) = (folder / "witness").glob("*.safetensors")
    plain = load_file(path)
    (packed,) = (folder / "fp4").glob("*.safetensors")
    found = load_file(packed)
    for name in plain:
        if name in found and found[name].dtype == plain[name].dtype:
            continue
        values = _gpt_oss(found, name) if kind.family == "gpt_oss" else _linear(found, name)
        assert values.shape == plain[name].shape, (name, values.shape, plain[name].shape)
        plain[name] = values.to(torch.bfloat16).contiguous()
    save_file(plain, path, metadata={"format": "pt"})


def _codes(packed: torch.Tensor) -> torch.Tensor:
    pairs = torch.stack((packed & 15, packed >> 4), -1).long()
    return E2M1[pairs].flatten(-2)


def _gpt_oss(found: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    blocks, scales = found[f"{name}_blocks"], found[f"{name}_scales"]
    values = _codes(blocks) * torch.exp2(scales.float() - 127)[..., None]
    return values.flatten(-2).transpose(-1, -2)  # transformers keeps [experts, in, out]


def _linear(found: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    module = name.removesuffix(".weight")
    packed = found.get(f"{module}.weight_packed", found.get(name))
    scales = found[f"{module}.weight_scale"]
    is_mx = scales.dtype == torch.uint8
    factors = torch.exp2(scales.float() - 127) if is_mx else scales.float()
    values = _codes(packed).reshape(*scales.shape, -1) * factors[..., None]
    factor = found.get(f"{module}.weight_scale_2", torch.tensor(1.0)).float()
    divisor = found.get(f"{module}.weight_global_scale", torch.tensor(1.0)).float()
    return values.flatten(-2) * factor / divisor


if __name__ == "__main__":
    target = Path(sys.argv[1])
    for name, kind in KINDS.items():
        make(target / name, kind)
    print(json.dumps(sorted(KINDS)))
