"""Folders that `fp4moe convert` made, as serving programs find them.

A folder is one rank's (fp4moe.json is in it), or holds one for each rank: rank-0, rank-1, ...
Either has config.json, the tokenizer's files, and an index of the tensors that are not experts'.
"""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fp4moe._core import Model
from fp4moe.errors import Error, InvalidInputError

METHOD = "fp4moe"  # `quant_method` of such a folder's config.json
MANIFEST = "fp4moe.json"
INDEX = "others.safetensors.index.json"

# Layouts that kernels of ours read as they lie, by where they run. Those of GPUs have the same bytes.
OWN_LAYOUTS = {"cpu": ("cpu_native.",), "cuda": ("native_sm90.", "native_sm80.")}
CPU_GENERATIONS = {"aarch64": "arm.", "arm64": "arm.", "x86_64": "x86.", "AMD64": "x86."}

Rank = tuple[int, int]


def is_converted(folder: str | Path) -> bool:
    """Whether `fp4moe convert` made this folder, of one rank or of all."""
    path = Path(folder)
    return (path / MANIFEST).is_file() or (path / "rank-0" / MANIFEST).is_file()


def source_of(quantization: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The quantization_config of the checkpoint that a folder was made of."""
    found = (quantization or {}).get("source")
    return dict(found) if isinstance(found, Mapping) else None


def other_files(folder: str | Path) -> list[str]:
    """The files with the tensors that are not experts', relative to the folder."""
    path = Path(folder) / INDEX
    if not path.is_file():
        raise InvalidInputError(
            "the converted folder has no tensors but the experts'",
            id="converted.file",
            path=str(folder),
            expected=INDEX,
            found="none",
            remedy="convert again without --experts-only, from a checkpoint with a config.json",
        )
    return sorted(set(json.loads(path.read_text())["weight_map"].values()))


def open_rank(
    folder: str | Path,
    place: str,
    tp: Rank = (0, 1),
    ep: Rank = (0, 1),
    placement: str = "linear",
) -> Model:
    """The model of one rank, mapped; whatever is another's is refused in one sentence."""
    path = Path(folder)
    if not (path / MANIFEST).is_file():
        path = path / f"rank-{ep[0] if ep[1] > 1 else tp[0]}"
    if not path.is_dir():
        raise _wrong_rank(folder, tp, ep, placement, f"no {path.name}")
    model = Model.open(path)
    facts = model.info()["converted"]
    found = (facts["tp"], facts["ep"], facts["placement"])
    wanted = (_text(tp), _text(ep), placement)
    if found[:2] != wanted[:2] or (ep[1] > 1 and found[2] != wanted[2]):
        raise _wrong_rank(path, tp, ep, placement, f"tp {found[0]}, ep {found[1]} ({found[2]})")
    _check_layout(path, facts, place)
    return model


def layer_number(model: Model, name: str) -> int:
    """The position of the layer that a module of this name is: blocks have numbers."""
    block = re.findall(r"(?:^|\.)(\d+)(?=\.|$)", name)
    layers = model.info()["layers"]
    found = [at for at, layer in enumerate(layers) if block and layer["index"] == int(block[-1])]
    if len(found) == 1:
        return found[0]
    raise InvalidInputError(
        "the converted folder has not just one layer for a module of the model",
        id="converted.tensor",
        tensor=name,
        expected="one layer of its number",
        found=f"{len(found)} of {len(layers)}",
        remedy="convert the checkpoint that this model belongs to",
    )


def _check_layout(path: Path, facts: Mapping[str, Any], place: str) -> None:
    layout, generation = str(facts["layout"]), str(facts["generation"])
    wanted = OWN_LAYOUTS[place]
    if not layout.startswith(wanted):
        raise InvalidInputError(
            "the folder was converted for kernels that are not used here",
            id="converted.layout",
            path=str(path),
            expected=" or ".join(f"{word}*" for word in wanted)
            + f", which fp4moe's kernels read on {place}",
            found=layout,
            remedy="convert the checkpoint again, without --backend, on this machine",
        )
    machine = CPU_GENERATIONS.get(platform.machine(), "")
    if place == "cpu" and not generation.startswith(machine):
        raise InvalidInputError(
            "the folder was converted for CPUs of another kind",
            id="converted.generation",
            path=str(path),
            expected=f"{layout} ({machine}*)",
            found=f"{layout} ({generation})",
            remedy="convert the checkpoint again on this machine",
        )


def _wrong_rank(folder: str | Path, tp: Rank, ep: Rank, placement: str, found: str) -> Error:
    word = f"--ep {ep[1]} --placement {placement}" if ep[1] > 1 else f"--tp {tp[1]}"
    return InvalidInputError(
        "the converted folder is not this rank's",
        id="converted.shard",
        path=str(folder),
        expected=f"tp {_text(tp)}, ep {_text(ep)} ({placement})",
        found=found,
        remedy="convert for these ranks: fp4moe convert CHECKPOINT"
        + (f" {word}" if tp[1] > 1 or ep[1] > 1 else "")
        + " -o OUT",
    )


def _text(rank: Rank) -> str:
    return f"{rank[0]}/{rank[1]}"
