"""GGUF files by llama.cpp's Python package: quantize_gguf.py OUT [NAME...].

The package quantizes and writes; which tensor of a model is which of GGUF's it tells, too.
SCHEME is the type of the experts, and behind an underscore that of the other matrices.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import gguf
import numpy as np
import tiny
import torch
from gguf import GGMLQuantizationType, quants
from tiny import Tensors

ARCHITECTURES = {"qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE, "gpt_oss": gguf.MODEL_ARCH.GPT_OSS,
                 "olmoe": gguf.MODEL_ARCH.OLMOE, "glm4_moe": gguf.MODEL_ARCH.GLM4_MOE}


def stacked(found: Tensors) -> Tensors:
    """Experts of a layer in one tensor each, [experts, out, in], under llama.cpp's names."""
    result: Tensors = {}
    singles: dict[tuple[str, str], dict[int, torch.Tensor]] = {}
    for name, value in found.items():
        one = re.match(r"(.*\.experts)\.(\d+)\.(\w+)\.weight$", name)
        fused = re.match(r"(.*\.experts)\.(gate_up_proj|down_proj)(_bias)?$", name)
        if one is not None:
            singles.setdefault((one[1], one[3]), {})[int(one[2])] = value
        elif fused is not None:  # gpt-oss: [experts, in, out], gate and up interleaved
            ending = "bias" if fused[3] else "weight"
            value = value if fused[3] else value.transpose(1, 2)
            if fused[2] == "down_proj":
                result[f"{fused[1]}.down_proj.{ending}"] = value
            else:
                result[f"{fused[1]}.gate_proj.{ending}"] = value[:, ::2]
                result[f"{fused[1]}.up_proj.{ending}"] = value[:, 1::2]
        else:
            result[name] = value
    for (prefix, part), values in singles.items():
        result[f"{prefix}.{part}.weight"] = torch.stack([values[i] for i in range(len(values))])
    return result


def parted(numbers: Tensors) -> Tensors:
    """The way back: matrices of single experts."""
    result: Tensors = {}
    for name, value in numbers.items():
        part = re.match(r"(.*\.experts)\.(\w+_proj)\.(weight|bias)$", name)
        if part is None:
            result[name] = value
            continue
        for expert, one in enumerate(value):
            result[f"{part[1]}.{expert}.{part[2]}.{part[3]}"] = one
    return result


def make(family: str, scheme: str, out: Path, scratch: Path) -> None:
    """One file."""
    source = tiny.checkpoint(family, scratch)
    config = json.loads((source / "config.json").read_text())
    architecture = ARCHITECTURES[config["model_type"]]
    writer = gguf.GGUFWriter(out.parent / f"{out.name}.gguf", gguf.MODEL_ARCH_NAMES[architecture])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_expert_count(config.get("num_experts") or config["num_local_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    width = config.get("moe_intermediate_size", config["intermediate_size"])
    writer.add_expert_feed_forward_length(width)
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    experts, _, others = scheme.partition("_")
    numbers: Tensors = {}
    for name, value in stacked(tiny.read(source)).items():
        plain = value.float().numpy()
        kind = GGMLQuantizationType.F32
        if ".experts." in name and name.endswith(".weight"):
            kind = GGMLQuantizationType[experts]
        elif others and value.ndim == 2 and "router" not in name and "mlp.gate" not in name:
            kind = GGMLQuantizationType[others]
        data = np.ascontiguousarray(quants.quantize(plain, kind))
        theirs = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert theirs is not None, name
        writer.add_tensor(theirs, data, raw_dtype=kind)
        numbers[name] = torch.from_numpy(np.array(quants.dequantize(data, kind), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tiny.keep_plain(out, parted(numbers), config)


if __name__ == "__main__":
    with torch.no_grad():
        tiny.each(make)
