"""How transformers comes to know fp4moe.

A quantizer is chosen by `quant_method` in config.json, and transformers refuses a
`quantization_config` argument of another class than that method's. A checkpoint's method is how
its files are written; fp4moe is how they are run. So the choice itself is extended: where fp4moe
is asked for, it is the quantizer, and remembers what the checkpoint said. A folder that `fp4moe
convert` made asks for it by its `quant_method`.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from transformers import modeling_utils
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
from transformers.quantizers import auto

from fp4moe import converted
from fp4moe.transformers.config import METHOD, Fp4MoeConfig, is_folder, is_fp4
from fp4moe.transformers.experts import plain_experts_forward
from fp4moe.transformers.quantizer import Fp4MoeQuantizer

# FP4 without being asked: what register(replace_mxfp4=...) was last told.
_replaces = {"fp4": False}


def register(*, replace_mxfp4: bool | None = None) -> None:
    """Make fp4moe known to transformers; again is no harm.

    With `replace_mxfp4=True`, every checkpoint whose config.json announces MXFP4 or NVFP4 in a form
    that fp4moe reads is run by it unless another `quantization_config` is given; False ends that.
    """
    if replace_mxfp4 is not None:
        _replaces["fp4"] = replace_mxfp4
    auto.AUTO_QUANTIZATION_CONFIG_MAPPING[METHOD] = Fp4MoeConfig
    auto.AUTO_QUANTIZER_MAPPING[METHOD] = Fp4MoeQuantizer
    ALL_EXPERTS_FUNCTIONS.register(METHOD, plain_experts_forward)
    loading: Any = modeling_utils
    if not isinstance(loading.get_hf_quantizer, _Choice):
        loading.get_hf_quantizer = _Choice(loading.get_hf_quantizer)


class _Choice:
    """transformers' choice of a quantizer, where fp4moe is not asked for."""

    def __init__(self, others: Any) -> None:
        self._others = others

    def __call__(self, config: Any, quantization_config: Any, *args: Any, **kwargs: Any) -> Any:
        stored = _stored(config)
        if not _is_wanted(config, quantization_config, stored):
            return self._others(config, quantization_config, *args, **kwargs)
        request = quantization_config if quantization_config is not None else Fp4MoeConfig()
        if is_folder(stored):  # its files have names that only fp4moe knows
            if Path(config.name_or_path).is_dir():
                converted.other_files(config.name_or_path)
            config.transformers_weights = converted.INDEX
            request, stored = copy.copy(request), converted.source_of(stored)
            request.is_folder = True
        for holder in (config, config.get_text_config(decoder=True)):
            if getattr(holder, "quantization_config", None) is not None:
                del holder.quantization_config
        return self._others(config, request.adopting(stored), *args, **kwargs)


def _is_wanted(config: Any, given: Any, stored: dict[str, Any] | None) -> bool:
    if given is not None:
        return isinstance(given, Fp4MoeConfig)
    if is_folder(stored):
        return True
    text = config.get_text_config(decoder=True)
    asked = getattr(text, "_experts_implementation", None) == METHOD
    return is_fp4(stored) and (asked or _replaces["fp4"])


def _stored(config: Any) -> dict[str, Any] | None:
    """`quantization_config` of config.json, of the whole model or of its text part."""
    for holder in (config, config.get_text_config(decoder=True)):
        found = getattr(holder, "quantization_config", None)
        if found is not None:
            return dict(found) if isinstance(found, dict) else found.to_dict()
    return None
