"""The files of a checkpoint, mapped: what is saved again is what was read, bit for bit.

    8 bytes   length of the header, little endian
    header    JSON: name -> {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__"
    data      offsets count from here

Tensors are views of private mappings, each with a storage of its own, so that no code takes two
tensors of a file for one that is tied to the other.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

import fp4moe
from fp4moe import converted
from fp4moe.errors import InvalidInputError


# Types of the files by torch's names; which of the small ones exist depends on its version.
NAMES = {
    "U8": "uint8",
    "I8": "int8",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "F4": "float4_e2m1fn_x2",
    "BF16": "bfloat16",
    "F16": "float16",
    "F32": "float32",
    "F64": "float64",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "BOOL": "bool",
}
DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, theirs) for name, theirs in NAMES.items() if hasattr(torch, theirs)
}


class _Place(NamedTuple):
    file: int
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class Source:
    """A checkpoint on disk: its tensors by name, and the fp4moe model that reads its experts."""

    def __init__(self, files: Sequence[str | Path], place: str | None = None) -> None:
        """`place`: the files are of a converted folder, whose experts are mapped there."""
        self.files = [Path(file) for file in files]
        self.folder = self.files[0].parent
        self.metadata: dict[str, str] = {}
        self._maps: list[mmap.mmap] = []
        self._places: dict[str, _Place] = {}
        self.is_converted = place is not None
        if place is not None:
            self.model = converted.open_rank(self.folder, place)
        else:
            self.model = fp4moe.Model.open(self._entrance())  # first: it finds what is wrong
        for number, file in enumerate(self.files):
            self._read_header(number, file)

    def __deepcopy__(self, memo: dict[int, Any]) -> Source:
        return self  # read only: copies of a model share it

    def _read_header(self, number: int, file: Path) -> None:
        with open(file, "rb") as opened:
            mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)
        length = int.from_bytes(mapped[:8], "little")
        header: dict[str, Any] = json.loads(mapped[8 : 8 + length])
        self._merge_metadata(header.pop("__metadata__", {}))
        self._maps.append(mapped)
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            shape = tuple(entry["shape"])
            self._places[name] = _Place(
                number, entry["dtype"], shape, 8 + length + begin, 8 + length + end
            )

    def _merge_metadata(self, found: dict[str, str]) -> None:
        """Keep fp4moe's own notes; originals of rounded scales are listed shard by shard."""
        for key, text in found.items():
            if not key.startswith("fp4moe."):
                continue
            if key in self.metadata and self.metadata[key] != text:
                text = json.dumps({**json.loads(self.metadata[key]), **json.loads(text)})
            self.metadata[key] = text

    def _entrance(self) -> Path:
        """What fp4moe is to open: the only file, or the index that names exactly these files."""
        other = [str(file) for file in self.files if file.suffix != ".safetensors"]
        if other:
            raise InvalidInputError(
                "fp4moe reads safetensors checkpoints",
                id="transformers.files",
                expected="*.safetensors",
                found=", ".join(other),
            )
        if len(self.files) == 1:
            return self.files[0]
        names = {file.name for file in self.files}
        for index in sorted(self.folder.glob("*.index*.json")):
            if not index.is_file():
                continue
            listed = json.loads(index.read_text()).get("weight_map", {}).values()
            if set(listed) == names:
                return index
        return self.folder

    def names(self, prefix: str = "") -> Iterator[str]:
        """The names of all tensors that begin with `prefix`."""
        return (name for name in self._places if name.startswith(prefix))

    def dtype(self, name: str) -> str:
        """The type's name in the file; empty when there is no such tensor."""
        return self._places[name].dtype if name in self._places else ""

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape in the file, which counts FP4 numbers and not bytes where the type is F4."""
        return self._places[name].shape

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor in the pages of its file; writing to it changes no file."""
        place = self._places[name]
        dtype = DTYPES.get(place.dtype)
        if dtype is None:
            raise InvalidInputError(
                "a tensor's type has no counterpart in torch",
                id="transformers.dtype",
                tensor=name,
                expected=", ".join(DTYPES),
                found=place.dtype,
            )
        shape = list(place.shape)
        if place.dtype == "F4":
            shape[-1] //= 2
        if place.begin == place.end:
            return torch.empty(shape, dtype=dtype)
        count = (place.end - place.begin) // dtype.itemsize
        mapped = self._maps[place.file]
        return torch.frombuffer(mapped, dtype=dtype, count=count, offset=place.begin).view(shape)

    def document(self, name: str) -> dict[str, Any]:
        """A JSON file beside the tensors; empty when there is none."""
        path = self.folder / name
        if not path.is_file():
            return {}
        read = json.loads(path.read_text())
        return read if isinstance(read, dict) else {}
