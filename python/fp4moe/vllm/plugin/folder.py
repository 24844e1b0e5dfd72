"""Folders that `fp4moe convert` made, inside vLLM: experts are mapped, nothing is packed.

Such a folder's config.json names fp4moe as its quantization method and holds the checkpoint's own
as "source". vLLM takes the configuration of that one, which knows that it stands for a folder:

    attention, embeddings, ...   loaded by vLLM, from the files that the folder's index names
    experts                      no parameters; each rank maps its own folder's layers
"""

from __future__ import annotations

import functools
import glob
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from vllm.model_executor.layers.quantization import register_quantization_config
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
from vllm.model_executor.model_loader import DefaultModelLoader, register_model_loader
from vllm.platforms import current_platform

import fp4moe
from fp4moe import converted
from fp4moe.errors import InvalidInputError
from fp4moe.torch import ops
from fp4moe.vllm.plugin import mode, support, weights
from fp4moe.vllm.plugin.choice import look, say
from fp4moe.vllm.plugin.methods import Fp4MoeMethod, Target
from fp4moe.vllm.plugin.mode import PluginRequest

FORMATS = ("auto", "hf", "safetensors")  # of loading; whatever is asked for, the index decides


class FolderLoader(DefaultModelLoader):
    """vLLM's loader; of a converted folder it reads the files of the index, and no experts."""

    def load_weights(self, model: Any, model_config: Any) -> None:
        if converted.is_converted(model_config.model):
            names = converted.other_files(model_config.model)
            model.allow_patterns_overrides = [_one_pattern(names)]
        super().load_weights(model, model_config)


def _one_pattern(names: list[str]) -> str:
    """A pattern for all files of an index: vLLM stops at the first pattern that finds any."""
    folder = names[0].rpartition("/")[0]
    return f"{glob.escape(folder)}/others-*.safetensors" if folder else "others-*.safetensors"


def use_loader() -> None:
    """Load by the index from now on; in processes that serve a converted folder only."""
    from vllm.model_executor import model_loader

    for word in FORMATS:
        if model_loader._LOAD_FORMAT_TO_MODEL_LOADER[word] is not FolderLoader:
            register_model_loader(word)(FolderLoader)


class FolderConfig(QuantizationConfig):
    """Answers for `quant_method: fp4moe`, and hands on to the configuration of the source."""

    configs: dict[str, Any] = {}

    @classmethod
    def override_quantization_method(
        cls, hf_quant_cfg: dict[str, Any], user_quant: str | None, hf_config: Any = None
    ) -> str | None:
        if not isinstance(hf_quant_cfg, dict) or hf_quant_cfg.get("quant_method") != converted.METHOD:
            return None
        source = converted.source_of(hf_quant_cfg) or {}
        for name, config in cls.configs.items():
            if config.override_quantization_method(source, user_quant, hf_config=hf_config) == name:
                return name
        method = str(source.get("quant_method", "")).lower().replace("_tensors", "-tensors")
        return method if method in cls.configs else None

    def get_name(self) -> Any:
        return converted.METHOD

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16, torch.float32]

    @classmethod
    def get_min_capability(cls) -> int:
        return 0

    @staticmethod
    def get_config_filenames() -> list[str]:
        return []

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        raise InvalidInputError(
            "the folder's checkpoint is in no dialect that fp4moe computes inside vLLM",
            id="converted.layout",
            expected=", ".join(cls.configs),
            found=str((converted.source_of(config) or {}).get("quant_method")),
            remedy="serve the checkpoint itself",
        )

    def get_quant_method(self, layer: Any, prefix: str) -> Any:
        return None


def register(configs: dict[str, type]) -> None:
    """Make the method known; `configs` are the plug-in's, by vLLM's names."""
    FolderConfig.configs = configs
    register_quantization_config(converted.METHOD)(FolderConfig)


class FolderMethod(Fp4MoeMethod):
    """Of a RoutedExperts layer whose experts lie in a converted folder."""

    fp4moe_folder = ""

    def create_weights(self, layer: Any, *sizes: Any, **attributes: Any) -> None:
        """None of vLLM's: the experts are mapped."""

    def process_weights_after_loading(self, layer: Any) -> None:
        """Map the layer, and make the kernel; again changes nothing, as after a reload."""
        device = "cuda" if current_platform.is_cuda() else "cpu"
        if self.fp4moe_layer is None:
            mapped = map_layer(layer, self.moe, self.fp4moe_folder, device, self.fp4moe_request)
            ops.name_layer(mapped, layer.layer_name)
            self.fp4moe_layer = mapped
        else:
            sentence = "are mapped and were not reloaded; serve the checkpoint"
            say(logging.WARNING, layer.layer_name, self.fp4moe_target, sentence)
        self._finish(layer, torch.device(device), *_numbers(layer, self.moe))


def map_layer(layer: Any, moe: Any, folder: str, device: str, request: PluginRequest) -> fp4moe.Layer:
    """This rank's layer of a folder, once it is known to be what vLLM made the module for."""
    parallel = moe.moe_parallel_config
    tp, ep = (parallel.tp_rank, parallel.tp_size), (parallel.ep_rank, parallel.ep_size)
    model = converted.open_rank(folder, device, tp, ep, _placement(layer))
    number = converted.layer_number(model, layer.layer_name)
    options: dict[str, Any] = {"numerics": request.numerics, "engine": device}
    if device == "cpu":
        options["threads"] = request.threads or torch.get_num_threads()
    with weights.own_cpus():
        result = model.layer(number, **options)
    _check(layer, moe, result.info())
    return result


def _placement(layer: Any) -> str:
    manager = getattr(layer, "expert_map_manager", None)
    return str(getattr(manager, "placement_strategy", "linear")).replace("_", "-")


def _numbers(layer: Any, moe: Any) -> tuple[int, int]:
    """The number of this rank's first expert, and the step to the next."""
    rank, ranks = moe.moe_parallel_config.ep_rank, moe.moe_parallel_config.ep_size
    if _placement(layer) != "linear":
        return rank, ranks
    base, rest = divmod(moe.num_experts, ranks)
    return rank * base + min(rank, rest), 1


def _check(layer: Any, moe: Any, found: dict[str, Any]) -> None:
    """Model and folder must agree: what the module was made with, and what the folder computes."""
    expected: dict[str, Any] = {
        "hidden": moe.hidden_dim,
        "experts": moe.num_experts,
        "local_experts": moe.num_local_experts,
        "top_k": moe.experts_per_token,
        "activation": moe.activation.value,
        **weights.constants(moe.activation.value, layer, moe),
    }
    for word, value in expected.items():
        same = abs(found[word] - value) < 1e-6 if _are_numbers(found.get(word), value) else None
        if same is False or (same is None and word in found and found[word] != value):
            raise InvalidInputError(
                f"vLLM's model and the converted folder do not agree on {word}",
                id="converted.size",
                tensor=layer.layer_name,
                expected=str(value),
                found=str(found[word]),
                remedy="use the config.json that fp4moe convert wrote, or convert again",
            )


def _are_numbers(*values: Any) -> bool:
    return all(isinstance(value, (int, float)) for value in values)


def choose_folder(
    layer: Any,
    prefix: str,
    find: Callable[[], Target | None],
    folder: str,
    theirs: Callable[[], Any],
) -> Any:
    """The method of a layer whose experts are in the folder; only fp4moe reads them."""
    target, why_not = look(layer, find, is_mapped=True)
    if target is None and not why_not:  # experts that the checkpoint has in full precision
        return theirs()
    request = mode.current()
    if request.mode == mode.OFF:
        why_not = "its mode is off, and only fp4moe reads a folder of fp4moe convert; set FP4MOE_VLLM=auto"
    why_not = why_not or _loading_refusal(folder) or ""
    if target is None or why_not:  # vLLM reads the checkpoint, and not the folder
        why_not = why_not.replace(support.OTHERWISE, f"serve its checkpoint, and {support.OTHERWISE}")
        raise NotImplementedError(f"fp4moe: {prefix}: {why_not}")
    say(logging.INFO, prefix, target, f"are mapped from {folder}")
    method = _method_class(target.parent)(layer.moe_config, target, request)
    method.fp4moe_folder = folder
    return method


def _loading_refusal(folder: str) -> str | None:
    """Why the folder cannot be mapped, or vLLM would read its experts as tensors of its own."""
    from vllm.config import get_current_vllm_config_or_none

    config = get_current_vllm_config_or_none()
    word = "auto" if config is None else str(config.load_config.load_format)
    if word not in (*FORMATS, "dummy"):
        return f"a converted folder is not loaded as {word}; set --load-format auto"
    if not folder or not Path(folder).is_dir():
        return f"{folder or 'an empty path'} is no folder here, and experts are mapped from one; download it and give its path"
    return None


@functools.cache
def _method_class(parent: type) -> type:
    """A subclass of vLLM's method, with its name."""
    return type(parent.__name__, (FolderMethod, parent), {"__module__": __name__})
