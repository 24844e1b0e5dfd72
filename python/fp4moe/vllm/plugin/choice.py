"""Whose method a layer gets: vLLM's or fp4moe's, and the one line of the log that says so.

    off      vLLM's
    auto     fp4moe's where vLLM has none that runs on this machine
    always   fp4moe's wherever it can; else an error with the reason
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from fp4moe.vllm.plugin import mode, support
from fp4moe.vllm.plugin.methods import Target, make_method

logger = logging.getLogger("vllm.fp4moe")
_said: set[str] = set()


def choose(layer: Any, prefix: str, target: Target | None, theirs: Callable[[], Any]) -> Any:
    """The method of a RoutedExperts layer; `theirs` makes vLLM's, or raises."""
    wish = mode.current()
    if target is None or wish.mode == mode.OFF:
        return theirs()
    moe = layer.moe_config
    why_not = support.refusal(moe, target.format, target.is_padded)
    if wish.mode == mode.ALWAYS:
        if why_not is not None:
            raise NotImplementedError(f"fp4moe: {prefix}: {why_not}")
        say(logging.INFO, prefix, target, "are computed by fp4moe: its mode is always")
        return make_method(moe, target, wish)
    refused: str | None
    try:
        method = theirs()
    except Exception as error:
        if why_not is not None:
            say(logging.WARNING, prefix, target, f"are left to vLLM, which refuses them: {why_not}")
            raise
        refused = _first_line(error)
    else:
        refused = cannot_run(method)
        if refused is None or why_not is not None:
            return method
    say(logging.INFO, prefix, target, f"are computed by fp4moe: vLLM has {refused}")
    return make_method(moe, target, wish)


def cannot_run(method: Any) -> str | None:
    """Why a method that vLLM chose without asking its oracle cannot run here; None: it can."""
    experts = getattr(method, "experts_cls", None)
    if experts is None or experts._supports_current_device():
        return None
    return f"chosen {experts.__name__}, which does not run on this device"


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"none ({text[0] if text else type(error).__name__})"


def say(level: int, prefix: str, target: Target, sentence: str) -> None:
    """Once for all layers of a model that have the same reason."""
    key = f"{target.parent.__name__} {sentence}"
    if key not in _said:
        _said.add(key)
        name = target.parent.__name__
        logger.log(level, "fp4moe: the experts of %s and its like (%s) %s", prefix, name, sentence)
