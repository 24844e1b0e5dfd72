"""What the plug-in is asked for: a mode, and options of its layers.

    FP4MOE_VLLM=always                                                in the environment
    --additional-config '{"fp4moe": "always"}'                        of one server
    --additional-config '{"fp4moe": {"mode": "always", "threads": 4}}'
"""

from __future__ import annotations

import functools
import logging
import os
from dataclasses import dataclass
from typing import Any

OFF, AUTO, ALWAYS = "off", "auto", "always"
MODES = (OFF, AUTO, ALWAYS)
VARIABLE = "FP4MOE_VLLM"
MAX_THREADS = 4096
# Those that engines for CPUs and GPUs compute; nvfp4_emulation is the reference engine's alone.
NUMERICS = (
    "exact", "native", "fast", "unfused", "marlin", "triton_fused", "trtllm", "fused", "grouped",
    "grouped_bf16",
)  # fmt: skip

logger = logging.getLogger("vllm.fp4moe")


@dataclass(frozen=True)
class PluginRequest:
    """A mode, and what layers are made with; the words are those of ``fp4moe.Layer``."""

    mode: str = AUTO
    threads: int = 0
    numerics: str = ""


def from_environment() -> str:
    """The mode that FP4MOE_VLLM names; auto where it names none."""
    return _checked(os.environ.get(VARIABLE) or AUTO, VARIABLE)


def current() -> PluginRequest:
    """Of the model that vLLM makes now: additional_config["fp4moe"], else the environment."""
    given = _additional_config().get("fp4moe")
    if given is None:
        return PluginRequest(from_environment())
    if isinstance(given, str):
        return PluginRequest(_checked(given, 'additional_config["fp4moe"]'))
    if not isinstance(given, dict) or not set(given) <= set(PluginRequest.__dataclass_fields__):
        known = ", ".join(PluginRequest.__dataclass_fields__)
        _warn(
            f'additional_config["fp4moe"] is not understood; give a mode ({", ".join(MODES)}), or an '
            f"object with some of {known}; it counts as auto"
        )
        return PluginRequest()
    mode = _checked(given.get("mode", from_environment()), 'additional_config["fp4moe"]["mode"]')
    threads = given.get("threads", 0)
    if type(threads) is not int or not 0 <= threads <= MAX_THREADS:
        where = 'additional_config["fp4moe"]["threads"]'
        _warn(
            f"{where} is {threads!r}; give a number from 1 to {MAX_THREADS}; "
            f"torch's number of threads is used"
        )
        threads = 0
    numerics = given.get("numerics", "")
    if numerics not in ("", *NUMERICS):
        where = 'additional_config["fp4moe"]["numerics"]'
        _warn(
            f"{where} is {numerics!r}; give one of {', '.join(NUMERICS)}; "
            f"the backend's numerics are used"
        )
        numerics = ""
    return PluginRequest(mode, threads, numerics)


def _checked(word: Any, where: str) -> str:
    if word in MODES:
        return str(word)
    _warn(f"{where} is {word!r}, which is no mode; set one of {', '.join(MODES)}; it counts as auto")
    return AUTO


@functools.cache
def _warn(sentence: str) -> None:
    """Once, and not for every layer."""
    logger.warning("fp4moe: %s", sentence)


def _additional_config() -> dict[str, Any]:
    from vllm.config import get_current_vllm_config_or_none

    config = get_current_vllm_config_or_none()
    found = None if config is None else config.additional_config
    return found if isinstance(found, dict) else {}
