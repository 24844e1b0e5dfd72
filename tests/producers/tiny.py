"""Tiny random models of many families, and what transformers computes with a tool's own weights.

The scripts quantize_*.py run this inside the environment of a tool. `plain` makes the model that is
quantized. `witness` takes the numbers that the tool's own code makes of the files it wrote, puts
them into an unquantized model, and keeps what that model computes: witness.safetensors has the
logits of some tokens and, for every MoE layer, inputs, choice and output of the experts.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

TOKENS = 24
BASE = {"hidden_size": 128, "num_hidden_layers": 2, "vocab_size": 128, "num_attention_heads": 4,
        "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
        "tie_word_embeddings": False}
HEADS = {"num_key_value_heads": 2, "head_dim": 32}
WIDE = {"intermediate_size": 192, "moe_intermediate_size": 64}
MANY = {"num_experts": 4, "num_experts_per_tok": 2}
LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
ROUTED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "first_k_dense_replace": 1,
          "n_shared_experts": 1, "routed_scaling_factor": 1.5, "norm_topk_prob": True}
SHARED = {"shared_expert_intermediate_size": 64}
LINEAR = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32,
          "linear_value_head_dim": 32, "num_hidden_layers": 4}
NEMOTRON = {**HEADS, "num_hidden_layers": 4, "hybrid_override_pattern": "ME*E",
            "intermediate_size": 64, "moe_intermediate_size": 64, "n_routed_experts": 4,
            "num_experts_per_tok": 2, "n_shared_experts": 1, "routed_scaling_factor": 1.5,
            "moe_shared_expert_intermediate_size": 64, "mamba_num_heads": 4, "mamba_head_dim": 32,
            "ssm_state_size": 16, "n_groups": 2, "chunk_size": 16}

# Name: the class of the configuration, and its sizes.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "gptoss": ("GptOssConfig", {**HEADS, **LOCAL, "intermediate_size": 64, "sliding_window": 16}),
    "qwen3moe": ("Qwen3MoeConfig", {**HEADS, **WIDE, **MANY, "norm_topk_prob": True}),
    "qwen2moe": ("Qwen2MoeConfig", {**HEADS, **WIDE, **MANY, **SHARED}),
    "mixtral": ("MixtralConfig", {**HEADS, **LOCAL, "intermediate_size": 64}),
    "dsv3": ("DeepseekV3Config", {**WIDE, **ROUTED, "n_group": 2, "topk_group": 1,
                                  "q_lora_rank": 64, "kv_lora_rank": 64, "qk_rope_head_dim": 32,
                                  "qk_nope_head_dim": 32, "v_head_dim": 32,
                                  "num_key_value_heads": 4}),
    "glm4moe": ("Glm4MoeConfig", {**HEADS, **WIDE, **ROUTED}),
    "minimaxm2": ("MiniMaxM2Config", {**HEADS, **LOCAL, "intermediate_size": 64}),
    "olmoe": ("OlmoeConfig", {**HEADS, **MANY, "intermediate_size": 64}),
    "ernie": ("Ernie4_5_MoeConfig", {**HEADS, **WIDE, "moe_num_experts": 4, "moe_k": 2,
                                     "moe_num_shared_experts": 1, "moe_layer_start_index": 1}),
    "qwen3next": ("Qwen3NextConfig", {**HEADS, **WIDE, **MANY, **SHARED, **LINEAR}),
    "qwen35moe": ("Qwen3_5MoeTextConfig", {**HEADS, **WIDE, **MANY, **SHARED, **LINEAR}),
    "nemotronh": ("NemotronHConfig", NEMOTRON),
    "nemotronh_latent": ("NemotronHConfig", {**NEMOTRON, "moe_latent_size": 64}),
    "llama4": ("Llama4TextConfig", {**HEADS, **LOCAL, "intermediate_size": 64,
                                    "intermediate_size_mlp": 192, "interleave_moe_layer_step": 1,
                                    "num_experts_per_tok": 1}),
    "kimilinear": ("KimiLinearConfig", {**WIDE, "num_experts": 4, "num_experts_per_token": 2,
                                        "first_k_dense_replace": 1, "routed_scaling_factor": 2.446,
                                        "num_hidden_layers": 2}),
    "dsv4": ("DeepseekV4Config", {"moe_intermediate_size": 64, "n_routed_experts": 4,
                                  "num_experts_per_tok": 2, "num_hidden_layers": 3}),
}

Tensors = dict[str, torch.Tensor]
NAMES: dict[str, set[str]] = {}  # of tensors, as transformers saves a family
EXPERT = re.compile(r"(.*\.(\d+)\.\w+\.)experts\.(\d+)\.(\w+)\.(\w+)$")
NUMBERED = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}


def checkpoint(family: str, folder: Path) -> Path:
    """A random model in BF16 whose routers decide something, as transformers saves it.

    Made once: llm-compressor changes how transformers saves a family that it has loaded.
    """
    if family in NAMES:
        return folder / family
    name, sizes = FAMILIES[family]
    config = getattr(transformers, name)(**{**BASE, **sizes})
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    for key, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_floating_point() and "norm" not in key and tensor.ndim > 1:
            tensor.data = (torch.randn(tensor.shape) * 0.05).to(tensor.dtype)
        if re.search(r"\.(gate|router)\.weight$|correction|expert.*bias", key):
            tensor.data = (torch.randn(tensor.shape) * 0.2).to(tensor.dtype)
    model.save_pretrained(folder / family)
    NAMES[family] = set(read(folder / family))
    return folder / family


def plain(family: str, folder: Path) -> Any:
    """The same as a model."""
    return load(checkpoint(family, folder))


def load(source: Path) -> Any:
    """As users do."""
    return transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16).eval()


def tokens() -> torch.Tensor:
    """What models are asked, and calibrated with."""
    return torch.randint(3, 128, (1, TOKENS), generator=torch.Generator().manual_seed(2))


def calibrate(model: Any) -> None:
    """One forward pass."""
    with torch.no_grad():
        model(tokens())


def attempt(out: Path, name: str, work: Callable[[], None]) -> None:
    """What cannot be done is told in NAME.failed, beside what was made."""
    try:
        work()
    except Exception:  # of anybody's code: the test says which
        traceback.print_exc()
        (out / f"{name}.failed").write_text(traceback.format_exc())


def each(make: Callable[[str, str, Path, Path], None]) -> None:
    """Calls `make(family, scheme, out, scratch)` for the names FAMILY-SCHEME of the command line."""
    out = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as scratch:
        for name in sys.argv[2:]:
            family, scheme = name.split("-", 1)
            attempt(out, name, lambda: make(family, scheme, out / name, Path(scratch)))  # noqa: B023
    subprocess.run([sys.executable, __file__, out], check=True)


def read(folder: Path) -> Tensors:
    """All tensors of a checkpoint."""
    found: Tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        found |= load_file(file)
    return found


def witness(folder: Path, dequantize: Callable[[Tensors, dict[str, Any]], Tensors]) -> None:
    """Keeps the numbers that `dequantize` makes of the tool's tensors."""
    config = json.loads((folder / "config.json").read_text())
    keep_plain(folder, dequantize(read(folder), config), config)


def keep_plain(folder: Path, numbers: Tensors, config: dict[str, Any]) -> None:
    """Numbers as an unquantized checkpoint beside the tool's."""
    beside = folder.parent / f"{folder.name}.plain"
    beside.mkdir()
    config.pop("quantization_config", None)
    (beside / "config.json").write_text(json.dumps(config))
    numbers = {name: value.contiguous().clone() for name, value in as_model(numbers, folder.name, config).items()}
    save_file(numbers, beside / "model.safetensors", metadata={"format": "pt"})


def compute(plain: Path) -> None:
    """What transformers makes of them; in a process that the tool has changed nothing in."""
    name = plain.name.removesuffix(".plain")
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        plain, dtype=torch.float32, output_loading_info=True)
    lost = [key for key in report["missing_keys"] if "inv_freq" not in key]
    if lost or report["mismatched_keys"]:
        raise ValueError(f"{name}: transformers found no {lost[:3]}")
    save_file(seen(model.eval()), plain.parent / f"{name}.witness.safetensors")
    shutil.rmtree(plain)


def as_model(numbers: Tensors, name: str, config: dict[str, Any]) -> Tensors:
    """Names and places as in transformers' own files, where a tool keeps its module's instead."""
    kind = config.get("model_type")
    if kind in ("gpt_oss", "llama4_text"):
        return joined(numbers, is_interleaved=kind == "gpt_oss")
    known = NAMES[name.split("-", 1)[0]]
    experts = [found for key in known if (found := EXPERT.match(key))]
    theirs = {found[2]: found[1] for found in experts}
    is_numbered = any(found[4] == "w1" for found in experts)
    ours = {found[1]: theirs[found[2]] for key in numbers if (found := EXPERT.match(key))}
    result = {}
    for key, value in numbers.items():
        found = EXPERT.match(key)
        if key not in known and found:
            part = NUMBERED.get(found[4], found[4]) if is_numbered else found[4]
            key = f"{theirs[found[2]]}experts.{found[3]}.{part}.{found[5]}"
        elif key not in known:
            prefix = next((prefix for prefix in ours if key.startswith(prefix)), "")
            key = ours.get(prefix, "") + key.removeprefix(prefix)
        result[key] = value
    return result


def joined(numbers: Tensors, is_interleaved: bool) -> Tensors:
    """Experts [experts, in, out] in one tensor, from matrices [out, in] of single experts."""
    result, found = {}, {}
    for name, value in numbers.items():
        part = re.match(r"(.*\.experts\.)(\d+)\.(\w+)\.(weight|bias)$", name)
        if part is None:
            result[name] = value
        else:
            found.setdefault(part[1], {})[int(part[2]), part[3], part[4]] = value
    for prefix, parts in found.items():
        count = 1 + max(expert for expert, _, _ in parts)
        for kind, ending in (("weight", ""), ("bias", "_bias")):
            def row(name: str, kind: str = kind) -> torch.Tensor | None:
                all_ = [parts.get((expert, name, kind)) for expert in range(count)]
                return None if all_[0] is None else torch.stack(all_)  # type: ignore[arg-type]
            both, gate, down = row("gate_up_proj"), row("gate_proj"), row("down_proj")
            if both is None and gate is not None:
                up = row("up_proj")
                assert up is not None
                both = (torch.stack((gate, up), 2).flatten(1, 2) if is_interleaved
                        else torch.cat((gate, up), 1))
            for name, value in (("gate_up_proj", both), ("down_proj", down)):
                if value is not None:
                    value = value.transpose(1, 2) if kind == "weight" else value
                    result[f"{prefix}{name}{ending}"] = value
    return result


def seen(model: Any) -> Tensors:
    """Logits, and what the experts of each layer were given and made."""
    result: Tensors = {}

    def keep(name: str) -> Callable[..., None]:
        def hook(module: Any, given: Any, named: dict[str, Any], out: Any) -> None:
            if f"{name}.out" not in result:
                result[f"{name}.out"] = out  # only once: `asked` calls the module again
                result.update(asked(name, module, given, named))
        return hook

    hooks = [module.register_forward_hook(keep(name), with_kwargs=True)
             for name, module in model.named_modules() if name.endswith(".experts")]
    with torch.no_grad():
        result["logits"] = model(tokens()).logits.float().contiguous()
    for hook in hooks:
        hook.remove()
    result["input_ids"] = tokens()
    return result


def asked(name: str, module: Any, given: Any, named: dict[str, Any]) -> Tensors:
    """The experts again, on inputs that BF16 holds."""
    values = [*given, *named.values()]
    ids = next((value for value in values if not value.is_floating_point()), None)
    x = values[0].reshape(-1, values[0].shape[-1]).to(torch.bfloat16).float()
    if ids is None:  # Llama 4 gives each expert all tokens, multiplied before
        x = x.reshape(module.num_experts, -1, x.shape[-1])[0].contiguous()
        ids = torch.arange(len(x))[:, None] % module.num_experts
        weights = torch.ones(ids.shape)
        every = module(x.repeat(module.num_experts, 1)).reshape(module.num_experts, *x.shape)
        out = every[ids[:, 0], torch.arange(len(x))]
    else:
        weights = next(value for value in values[1:] if value.is_floating_point())
        weights = weights.gather(1, ids) if weights.shape != ids.shape else weights
        out = module(x, *given[1:], **{key: value for key, value in named.items()
                                       if key != "hidden_states"})
    return {f"{name}.hidden_states": x.to(torch.bfloat16), f"{name}.topk_ids": ids.int().contiguous(),
            f"{name}.topk_weights": weights.float().contiguous(),
            f"{name}.out": out.float().contiguous()}


if __name__ == "__main__":
    for folder in sorted(Path(sys.argv[1]).glob("*.plain")):
        result = folder.name.removesuffix(".plain")
        if not (folder.parent / f"{result}.failed").exists():
            attempt(folder.parent, result, lambda: compute(folder))  # noqa: B023
