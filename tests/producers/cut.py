"""Cuts a tool's checkpoint to one MoE layer and two experts, small enough to be kept.

    cut.py SOURCE OUT --layer N

Bytes, names and types of what stays are the tool's. Left out are other layers, other experts,
attention but q_proj, embeddings, head and tokenizer; the counts in config.json follow. SOURCE is a
folder, or a GGUF file, for which the package gguf must be there.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

EXPERTS = 2
COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
EXPERT = re.compile(r"\.experts\.(\d+)\.")
FUSED = re.compile(r"\.experts\.(gate_up_proj|down_proj)")
SPARE = re.compile(r"\.self_attn\.(k|v|o)_proj\.")  # q_proj stands for them
ROUTER = re.compile(r"\.(gate|router)\.(weight|bias)$|e_score_correction_bias$")


def read(path: Path) -> dict[str, tuple[str, list[int], bytes]]:
    """Tensors of one safetensors file: type, shape, bytes."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    result = {}
    for name, entry in header.items():
        begin, end = (8 + size + at for at in entry["data_offsets"])
        result[name] = (entry["dtype"], entry["shape"], data[begin:end])
    return result


def write(path: Path, tensors: dict[str, tuple[str, list[int], bytes]]) -> None:
    """One safetensors file."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for name, (dtype, shape, data) in tensors.items():
        end = begin + len(data)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    body = b"".join(data for _, _, data in tensors.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


def first_rows(tensor: tuple[str, list[int], bytes]) -> tuple[str, list[int], bytes]:
    """The part of the experts that stay, of a tensor with one row for each."""
    dtype, shape, data = tensor
    return dtype, [EXPERTS, *shape[1:]], data[: len(data) // shape[0] * EXPERTS]


def cut(tensors: dict[str, tuple[str, list[int], bytes]], layer: int) -> dict[str, Any]:
    """The tensors that stay."""
    kept = {}
    for name, tensor in sorted(tensors.items()):
        if f"layers.{layer}." not in name or SPARE.search(name):
            continue
        expert = EXPERT.search(name)
        if expert and int(expert[1]) >= EXPERTS:
            continue
        shares = (FUSED.search(name) or ROUTER.search(name)) and not expert and tensor[1]
        kept[name] = first_rows(tensor) if shares else tensor
    return kept


def cut_gguf(source: Path, out: Path, layer: int) -> None:
    """The same of a GGUF file, by the package of llama.cpp."""
    import gguf

    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(out, architecture)
    counts = {"expert_count": EXPERTS, "block_count": 1}
    for key, field in reader.fields.items():
        if key.startswith(("GGUF.", "tokenizer.", "general.architecture")):
            continue
        value = counts.get(key.removeprefix(f"{architecture}."), field.contents())
        writer.add_key_value(key, value, field.types[0])
    for tensor in reader.tensors:
        if not tensor.name.startswith(f"blk.{layer}."):
            continue
        if re.search(r"attn_(k|v|output)\.", tensor.name):
            continue
        shared = "_exps." in tensor.name or "ffn_gate_inp" in tensor.name
        data = tensor.data[:EXPERTS] if shared else tensor.data
        writer.add_tensor(tensor.name, data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    """Cuts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--layer", type=int, default=0)
    given = parser.parse_args()
    if given.source.suffix == ".gguf":
        given.out.parent.mkdir(parents=True, exist_ok=True)
        cut_gguf(given.source, given.out, given.layer)
        return
    given.out.mkdir(parents=True)
    tensors = cut(read(given.source / "model.safetensors"), given.layer)
    write(given.out / "model.safetensors", tensors)
    config = json.loads((given.source / "config.json").read_text())
    for key in COUNTS:
        if key in config:
            config[key] = EXPERTS
    config["num_hidden_layers"] = 1
    (given.out / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    beside = given.source / "hf_quant_config.json"
    if beside.is_file():
        (given.out / beside.name).write_bytes(beside.read_bytes())


if __name__ == "__main__":
    main()
