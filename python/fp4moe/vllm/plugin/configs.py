"""vLLM's configurations of FP4 checkpoints, as subclasses under their own names.

Each says which method of vLLM's a layer has (`Target`); the rest is vLLM's.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from vllm.model_executor.layers.fused_moe import RoutedExperts
from vllm.model_executor.layers.quantization import register_quantization_config
from vllm.model_executor.layers.quantization.compressed_tensors import (
    compressed_tensors as compressed,
)
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_moe import (
    compressed_tensors_moe_w4a4_mxfp4 as compressed_mxfp4,
    compressed_tensors_moe_w4a4_nvfp4 as compressed_nvfp4,
    compressed_tensors_moe_w4a8_mxfp4 as compressed_w4a8,
)
from vllm.model_executor.layers.quantization import modelopt, mxfp4
from vllm.model_executor.layers.quantization.quark import quark, quark_moe
from vllm.model_executor.layers.quantization.utils.quant_utils import kFp8StaticTensorSym
from vllm.platforms import current_platform

from fp4moe import converted
from fp4moe.vllm.plugin import folder, mode, support
from fp4moe.vllm.plugin.choice import choose
from fp4moe.vllm.plugin.methods import Target

GPT_OSS = Target(
    mxfp4.GptOssMxfp4MoEMethod, "mxfp4", {"weight_dtype": "gpt_oss_mxfp4"}, is_padded=True
)
MXFP4 = Target(
    mxfp4.Mxfp4MoEMethod, "mxfp4", {"weight_dtype": "mxfp4", "activation_key": None}
)


class _Choosing:
    """Before vLLM's class in the order of methods."""

    fp4moe_is_folder = False  # of a folder that `fp4moe convert` made
    fp4moe_folder = ""

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """vLLM's; that of a converted folder is the one of its source."""
        if config.get("quant_method") != converted.METHOD:
            return super().from_config(config)  # type: ignore[misc]
        others = {key: value for key, value in config.items() if key not in ("quant_method", "source")}
        result = super().from_config({**(converted.source_of(config) or {}), **others})  # type: ignore
        result.fp4moe_is_folder = True
        folder.use_loader()
        return result

    def maybe_update_config(self, model_name: str, *words: Any, **others: Any) -> None:
        """vLLM tells where the model is."""
        super().maybe_update_config(model_name, *words, **others)  # type: ignore[misc]
        self.fp4moe_folder = model_name if self.fp4moe_is_folder else ""

    def __setstate__(self, state: dict[str, Any]) -> None:
        """In a worker: what serves a converted folder loads by its index."""
        self.__dict__.update(state)
        if self.fp4moe_is_folder:
            folder.use_loader()

    def fp4moe_target(self, layer: Any, prefix: str) -> Target | None:
        """vLLM's method of this layer; None where it is none of FP4's."""
        raise NotImplementedError

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        """vLLM's, and on a CPU those of fp4moe: not every CPU has instructions for BF16."""
        theirs = list(super().get_supported_act_dtypes())  # type: ignore[misc]
        has_ours = current_platform.is_cpu() and mode.current().mode != mode.OFF
        added = support.DTYPES if has_ours else ()
        return [*theirs, *(dtype for dtype in added if dtype not in theirs)]

    def _check_dtype(self) -> None:
        """Refuse a type of ours in mode off: vLLM asks for types before additional_config is known."""
        if self.fp4moe_is_folder or mode.current().mode != mode.OFF:
            return
        from vllm.config import get_current_vllm_config_or_none

        config = get_current_vllm_config_or_none()
        dtype = getattr(getattr(config, "model_config", None), "dtype", None)
        theirs = list(super().get_supported_act_dtypes())  # type: ignore[misc]
        if dtype in support.DTYPES and dtype not in theirs:
            raise ValueError(
                f"{dtype} is not supported for quantization method {self.get_name()}. "  # type: ignore
                f"Supported dtypes: {theirs} (fp4moe's mode is off)"
            )

    def get_quant_method(self, layer: Any, prefix: str) -> Any:
        def theirs() -> Any:
            return super(_Choosing, self).get_quant_method(layer, prefix)  # type: ignore[misc]

        self._check_dtype()
        if not isinstance(layer, RoutedExperts):
            return theirs()
        if self.fp4moe_is_folder:
            target = self.fp4moe_target(layer, prefix)
            return folder.choose_folder(layer, prefix, target, self.fp4moe_folder, theirs)
        return choose(layer, prefix, lambda: self.fp4moe_target(layer, prefix), theirs)


class GptOssMxfp4Config(_Choosing, mxfp4.GptOssMxfp4Config):
    def fp4moe_target(self, layer: Any, prefix: str) -> Target | None:
        return GPT_OSS


class Mxfp4Config(_Choosing, mxfp4.Mxfp4Config):
    def fp4moe_target(self, layer: Any, prefix: str) -> Target | None:
        return MXFP4


def _modelopt(config: Any, use_a16: bool) -> Target:
    attributes = {
        "quant_config": config,
        "use_a16": use_a16,
        "per_token_activation": False,
        "use_global_sf": False,
    }
    return Target(modelopt.ModelOptNvFp4FusedMoE, "nvfp4", attributes)


class ModelOptNvFp4Config(_Choosing, modelopt.ModelOptNvFp4Config):
    def fp4moe_target(self, layer: Any, prefix: str) -> Target | None:
        if self.is_layer_excluded(prefix):
            return None
        return _modelopt(self, self.quant_method == "W4A16_NVFP4")


class ModelOptMixedPrecisionConfig(_Choosing, modelopt.ModelOptMixedPrecisionConfig):
    def fp4moe_target(self, layer: Any, prefix: str) -> Target | None:
        if self.is_layer_excluded(prefix):
            return None
        algo = self._resolve_quant_algo(prefix)
        if algo == "NVFP4":
            return _modelopt(self.nvfp4_config, False)
        return _modelopt(self.w4a16_nvfp4_config, True) if algo == "W4A16_NVFP4" else None


class CompressedTensorsConfig(_Choosing, compressed.CompressedTensorsConfig):
    def fp4moe_target(self, layer: Any, prefix: str) -> Target | None:
        self._add_fused_moe_to_target_scheme_map()
        names = (layer.ckpt_gate_proj_name, layer.ckpt_up_proj_name, layer.ckpt_down_proj_name)
        schemes = [self.get_scheme_dict(layer, f"{prefix}.0.{name}") for name in names]
        scheme = schemes[-1]
        if scheme is None or any(other != scheme for other in schemes):
            return None
        result = self._scheme_target(scheme)
        if result is None:
            return None
        modules = [f"{prefix}.0.{name}" for name in names]
        refusal = support.transform_refusal((self.config or {}).get("transform_config"), modules)
        return dataclasses.replace(result, refusal=refusal or "")

    def _scheme_target(self, scheme: dict[str, Any]) -> Target | None:
        weight, tokens = scheme.get("weights"), scheme.get("input_activations")
        attributes: dict[str, Any]
        if self._is_mxfp4_w4a8_fp8(weight, tokens):
            attributes = {"weight_dtype": "mxfp4", "activation_key": None}
            return Target(compressed_w4a8.CompressedTensorsW4A8Mxfp4MoEMethod, "mxfp4", attributes)
        if self._is_mxfp4(weight):
            parent = compressed_mxfp4.CompressedTensorsW4A4Mxfp4MoEMethod
            return Target(parent, "mxfp4", {"group_size": 32})
        if self._is_nvfp4_format(weight) and (tokens is None or self._is_nvfp4_format(tokens)):
            attributes = {"group_size": 16, "use_a16": tokens is None, "use_global_sf": False}
            parent = compressed_nvfp4.CompressedTensorsW4A4Nvfp4MoEMethod
            return Target(parent, "nvfp4", attributes)
        return None


class QuarkConfig(_Choosing, quark.QuarkConfig):
    def fp4moe_target(self, layer: Any, prefix: str) -> Target | None:
        weight, tokens, parent = self.get_quant_method_target(prefix, type(layer))
        shared = {"has_bias": layer.moe_config.has_bias, "weight_quant_key": weight}
        shared["activation_quant_key"] = tokens
        if parent is quark_moe.QuarkNvfp4MoEMethod:
            return Target(parent, "nvfp4", {**shared, "quant_config": self, "group_size": 16})
        if parent is quark_moe.QuarkOCP_MX_MoEMethod:
            name = next(k for k, v in quark_moe._WEIGHT_QUANT_KEY_MAP.items() if v == weight)
            statics = {"static_input_scales": tokens == kFp8StaticTensorSym}
            words = {**shared, **statics, "weight_dtype": name}
            return Target(parent, "mxfp4", words) if name == "mxfp4" else None
        return None


CONFIGS: dict[str, type] = {
    "gpt_oss_mxfp4": GptOssMxfp4Config,
    "mxfp4": Mxfp4Config,
    "modelopt_fp4": ModelOptNvFp4Config,
    "modelopt_mixed": ModelOptMixedPrecisionConfig,
    "compressed-tensors": CompressedTensorsConfig,
    "quark": QuarkConfig,
}


def register() -> None:
    """Put them in the place of vLLM's."""
    for name, config in CONFIGS.items():
        register_quantization_config(name)(config)
    folder.register(CONFIGS)
