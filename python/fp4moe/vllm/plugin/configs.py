"""vLLM's configurations of FP4 checkpoints, as subclasses under their own names.

Each says which method of vLLM's a layer has (`Target`); the rest is vLLM's.
"""

from __future__ import annotations

import dataclasses
import functools
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
from fp4moe.vllm.plugin import folder, linear, mode, support
from fp4moe.vllm.plugin.choice import choose
from fp4moe.vllm.plugin.methods import Target

GPT_OSS = Target(
    mxfp4.GptOssMxfp4MoEMethod, "mxfp4", {"weight_dtype": "gpt_oss_mxfp4"}, is_padded=True,
    biases=support.ON_THE_FIRST_RANK,
)  # fmt: skip
MXFP4 = Target(
    mxfp4.Mxfp4MoEMethod, "mxfp4", {"weight_dtype": "mxfp4", "activation_key": None},
    biases=support.ON_EVERY_RANK,
)  # fmt: skip


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

    def _dtype_refusal(self) -> str:
        """vLLM's own refusal of the model's type of tokens; empty where it takes the type without us."""
        from vllm.config import get_current_vllm_config_or_none

        config = get_current_vllm_config_or_none()
        dtype = getattr(getattr(config, "model_config", None), "dtype", None)
        theirs = list(super().get_supported_act_dtypes())  # type: ignore[misc]
        if dtype not in support.DTYPES or dtype in theirs:
            return ""
        name = self.get_name()  # type: ignore[attr-defined]
        return f"{dtype} is not supported for quantization method {name}. Supported dtypes: {theirs}"

    def _theirs(self, layer: Any, prefix: str) -> Any:
        """vLLM's method, refused where it would be given a type of tokens that fp4moe alone takes."""
        method = super().get_quant_method(layer, prefix)  # type: ignore[misc]
        refusal = self._dtype_refusal()
        if not refusal or method is None or _takes_any_type(method):
            return method
        if isinstance(layer, RoutedExperts):
            raise ValueError(refusal)
        return _refused_with_kernels_of_vllm(method, layer, refusal)

    def get_quant_method(self, layer: Any, prefix: str) -> Any:
        if not self.fp4moe_is_folder and mode.current().mode == mode.OFF and self._dtype_refusal():
            # vLLM asked for types before additional_config was known.
            raise ValueError(f"{self._dtype_refusal()} (fp4moe's mode is off)")

        def theirs() -> Any:
            return self._theirs(layer, prefix)

        def find() -> Target | None:
            return self.fp4moe_target(layer, prefix)

        if not isinstance(layer, RoutedExperts):
            return theirs()
        if self.fp4moe_is_folder:
            return folder.choose_folder(layer, prefix, find, self.fp4moe_folder, theirs)
        return choose(layer, prefix, find, theirs)


def _takes_any_type(method: Any) -> bool:
    """True if a method of vLLM's multiplies by no quantized weights."""
    names = [base.__name__ for base in type(method).__mro__]
    return any(word in name for word in ("Unquantized", "KVCache") for name in names)


def _refused_with_kernels_of_vllm(method: Any, layer: Any, refusal: str) -> Any:
    """The method of a linear layer, which raises unless the kernel that it chooses is ours."""
    create = method.create_weights

    @functools.wraps(create)
    def checked(*sizes: Any, **attributes: Any) -> None:
        create(*sizes, **attributes)
        holders = (method, getattr(layer, "scheme", None))
        kernels = [value for holder in holders for value in getattr(holder, "__dict__", {}).values()]
        if not any(isinstance(kernel, linear.Dequantized) for kernel in kernels):
            raise ValueError(refusal)

    method.create_weights = checked
    return method


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
            parent = compressed_w4a8.CompressedTensorsW4A8Mxfp4MoEMethod
            return Target(parent, "mxfp4", attributes, biases=support.ON_EVERY_RANK)
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
            biases = support.ON_THE_FIRST_RANK if _is_gpt_oss(layer) else support.ON_EVERY_RANK
            return Target(parent, "mxfp4", words, biases=biases) if name == "mxfp4" else None
        return None


def _is_gpt_oss(layer: Any) -> bool:
    """True if a layer is loaded by gpt-oss's own loader."""
    return any(base.__name__.startswith("GptOss") for base in type(layer).__mro__)


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
