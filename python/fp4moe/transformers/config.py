"""How transformers is told to run the experts of an FP4 checkpoint by fp4moe."""

from __future__ import annotations

import copy
import platform
from dataclasses import dataclass
from typing import Any

import torch
from transformers.utils.quantization_config import QuantizationConfigMixin

METHOD = "fp4moe"

# The options of a layer that make sense inside a model; fp4moe.Model.layer has the same words.
OPTIONS = ("engine", "backend", "policy", "numerics", "weights", "threads")

QUARK_FP4 = ("fp4", "mxfp4", "mx_fp4")  # Quark's names of the type


@dataclass
class Fp4MoeConfig(QuantizationConfigMixin):
    """Run the routed experts in the checkpoint's own FP4, where the model's tensors are.

    `from_pretrained(path, quantization_config=Fp4MoeConfig())` takes it for a checkpoint in any
    dialect that fp4moe reads and transformers has a model for. The words are those of
    `fp4moe.Model.layer`. What `save_pretrained` writes is the checkpoint's own configuration.
    """

    engine: str = "auto"
    backend: str = "auto"
    policy: str = "native"
    numerics: str = ""
    weights: str = "auto"
    threads: int = 0

    def __init__(
        self,
        engine: str = "auto",
        backend: str = "auto",
        policy: str = "native",
        numerics: str = "",
        weights: str = "auto",
        threads: int = 0,
        **others: Any,
    ) -> None:
        others.pop("quant_method", None)
        if others:
            raise TypeError(f"Fp4MoeConfig knows {', '.join(OPTIONS)}; found {', '.join(others)}")
        self.quant_method = METHOD  # type: ignore[assignment]
        self.engine = engine
        self.backend = backend
        self.policy = policy
        self.numerics = numerics
        self.weights = weights
        self.threads = threads
        self.is_folder = False  # one that `fp4moe convert` made
        self._stored: dict[str, Any] | None = None

    def adopting(self, stored: dict[str, Any] | None) -> Fp4MoeConfig:
        """The same options for a checkpoint whose configuration says `stored`."""
        result = copy.copy(self)
        result._stored = copy.deepcopy(stored)
        return result

    @property
    def stored(self) -> dict[str, Any] | None:
        """What the checkpoint's own config.json says of its quantization."""
        return self._stored

    def _options(self) -> dict[str, Any]:
        """The options, by their names."""
        return {word: getattr(self, word) for word in OPTIONS}

    def layer_options(self, place: str = "cpu") -> dict[str, Any]:
        """The keyword arguments of `fp4moe.Model.layer` for a layer on "cpu" or "cuda"."""
        options = self._options()
        if place == "cpu":
            return {**options, "device": _cpu()}
        engine = "cuda" if self.engine == "auto" else self.engine
        return {**options, "engine": engine, "device": "auto"}

    def to_dict(self) -> dict[str, Any]:
        """The checkpoint's own words once there is one: files are its, not this program's."""
        if self._stored is not None:
            return copy.deepcopy(self._stored)
        return {"quant_method": METHOD, **self._options()}


def _cpu() -> str:
    """This machine, and its CPU by name where the machine would mean an accelerator."""
    if not (torch.cuda.is_available() or torch.xpu.is_available()):
        return "auto"
    return "cpu-arm" if platform.machine() in ("aarch64", "arm64") else "cpu-avx2"


def entries(document: Any, key: str) -> dict[str, dict[str, Any]]:
    """The objects under a key of a configuration, by name; writers use null for none."""
    found = document.get(key) if isinstance(document, dict) else None
    rows = found.items() if isinstance(found, dict) else ()
    return {name: row for name, row in rows if isinstance(row, dict)}


def method_of(stored: dict[str, Any] | None) -> str:
    """The tool that quantized a checkpoint: its quant_method, or the producer where none is."""
    method = (stored or {}).get("quant_method")
    producer = (stored or {}).get("producer")
    if not method and isinstance(producer, dict):
        method = producer.get("name")
    return str(getattr(method, "value", method) or "")


def quark_blocks(scheme: Any) -> dict[str, Any] | None:
    """The blocks of one of Quark's schemes of weights; several levels of scales are a list."""
    weight = scheme.get("weight") if isinstance(scheme, dict) else None
    first = weight[0] if isinstance(weight, list) and weight else weight
    return first if isinstance(first, dict) else None


def quark_dtype(blocks: dict[str, Any]) -> str:
    """The type of a level's numbers; "mx" has that of its elements apart."""
    dtype = str(blocks.get("dtype") or "")
    return f"mx_{blocks.get('mx_element_dtype') or ''}" if dtype == "mx" else dtype


def _formats(stored: dict[str, Any]) -> set[str]:
    groups = entries(stored, "config_groups").values()
    named = (stored.get("format"), *(group.get("format") for group in groups))
    return {str(name) for name in named if name}


def _has_modelopt_fp4(stored: dict[str, Any]) -> bool:
    nested = stored.get("quantization")
    documents = [document for document in (stored, nested) if isinstance(document, dict)]
    layers = [layer for each in documents for layer in entries(each, "quantized_layers").values()]
    algorithms = {str(each.get("quant_algo")).upper() for each in (*documents, *layers)}
    # A mixture without a list of its modules: the tensors will tell.
    is_unlisted = "MIXED_PRECISION" in algorithms and not layers
    return is_unlisted or any("FP4" in algorithm for algorithm in algorithms)


def _has_quark_fp4(stored: dict[str, Any]) -> bool:
    keys = ("layer_quant_config", "layer_type_quant_config")
    listed = [scheme for key in keys for scheme in entries(stored, key).values()]
    schemes = [quark_blocks(scheme) for scheme in (*listed, stored.get("global_quant_config"))]
    return any(blocks is not None and quark_dtype(blocks) in QUARK_FP4 for blocks in schemes)


def is_folder(stored: dict[str, Any] | None) -> bool:
    """Whether this `quantization_config` is that of a folder that `fp4moe convert` made."""
    return bool(stored and "source" in stored and stored.get("quant_method") == METHOD)


def is_fp4(stored: dict[str, Any] | None) -> bool:
    """Whether this `quantization_config` of a checkpoint announces FP4 that fp4moe reads."""
    method = method_of(stored)
    if not stored or not method:
        return False
    if method.startswith("modelopt"):
        return _has_modelopt_fp4(stored)
    if method == "compressed-tensors":
        return bool(_formats(stored) & {"nvfp4-pack-quantized", "mxfp4-pack-quantized"})
    if method == "quark":
        return _has_quark_fp4(stored)
    return method == "mxfp4"
