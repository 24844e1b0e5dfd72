"""What the plug-in is asked for: a mode, and options of its layers.

    FP4MOE_VLLM=always                                                in the environment
    --additional-config '{"fp4moe": "always"}'                        of one server
    --additional-config '{"fp4moe": {"mode": "always", "threads": 4}}'
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import Any

OFF, AUTO, ALWAYS = "off", "auto", "always"
MODES = (OFF, AUTO, ALWAYS)
VARIABLE = "FP4MOE_VLLM"

logger = logging.getLogger("vllm.fp4moe")


@dataclass(frozen=True)
class Wish:
    """A mode, and what layers are made with; the words are those of ``fp4moe.Layer``."""

    mode: str = AUTO
    threads: int = 0
    numerics: str = ""


def from_environment() -> str:
    """The mode that FP4MOE_VLLM names; auto where it names none."""
    return _checked(os.environ.get(VARIABLE) or AUTO, VARIABLE)


def current() -> Wish:
    """Of the model that vLLM makes now: additional_config["fp4moe"], else the environment."""
    given = _additional_config().get("fp4moe")
    if given is None:
        return Wish(from_environment())
    if isinstance(given, str):
        return Wish(_checked(given, 'additional_config["fp4moe"]'))
    if not isinstance(given, dict) or not set(given) <= set(Wish.__dataclass_fields__):
        known = ", ".join(Wish.__dataclass_fields__)
        logger.warning(
            'fp4moe: additional_config["fp4moe"] is not understood; give a mode (%s), or an object '
            "with some of %s; it counts as auto",
            ", ".join(MODES),
            known,
        )
        return Wish()
    mode = _checked(given.get("mode", from_environment()), 'additional_config["fp4moe"]["mode"]')
    return Wish(mode, int(given.get("threads", 0)), str(given.get("numerics", "")))


def _checked(word: Any, where: str) -> str:
    if word in MODES:
        return str(word)
    logger.warning(
        "fp4moe: %s is %r, which is no mode; set one of %s; it counts as auto",
        where,
        word,
        ", ".join(MODES),
    )
    return AUTO


def _additional_config() -> dict[str, Any]:
    from vllm.config import get_current_vllm_config_or_none

    config = get_current_vllm_config_or_none()
    found = None if config is None else config.additional_config
    return found if isinstance(found, dict) else {}
