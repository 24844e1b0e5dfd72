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


def choose(
    layer: Any, prefix: str, find: Callable[[], Target | None], theirs: Callable[[], Any]
) -> Any:
    """The method of a RoutedExperts layer; `theirs` makes vLLM's, or raises; `find` tells which that is."""
    request = mode.current()
    if request.mode == mode.OFF:
        return theirs()
    moe = layer.moe_config
    target, why_not = look(layer, find)
    if target is None and not why_not:
        return theirs()
    if target is None or why_not:
        return _leave(prefix, target, why_not, request, theirs)
    if request.mode == mode.ALWAYS:
        sentence = f"are computed by fp4moe: its mode is always; vLLM {_would(theirs)}"
        say(logging.INFO, prefix, target, sentence)
        return make_method(moe, target, request)
    try:
        method = theirs()
        refused = cannot_run(method)
        if refused is None:
            return method
    except Exception as error:
        refused = _first_line(error)
    say(logging.INFO, prefix, target, f"are computed by fp4moe: vLLM has {refused}")
    return make_method(moe, target, request)


def look(
    layer: Any, find: Callable[[], Target | None], is_mapped: bool = False
) -> tuple[Target | None, str]:
    """A layer's target, and why fp4moe does not compute it. What fails here does not stop vLLM.

    `is_mapped`: fp4moe reads the experts from a converted folder, biases and all.
    """
    try:
        target = find()
        if target is None:
            return None, ""
        biases = support.ON_THE_FIRST_RANK if is_mapped else target.biases
        why_not = support.refusal(layer, target.format, target.is_padded, biases)
        return target, target.refusal or why_not or ""
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        return None, f"the plug-in does not understand this layer ({reason}); {support.OTHERWISE}"


def _leave(
    prefix: str,
    target: Target | None,
    why_not: str,
    request: mode.PluginRequest,
    theirs: Callable[[], Any],
) -> Any:
    """vLLM's method of a layer that fp4moe does not compute, and the reason where there is none."""
    if request.mode == mode.ALWAYS:
        raise NotImplementedError(f"fp4moe: {prefix}: {why_not}")
    try:
        method = theirs()
    except Exception:
        say(logging.WARNING, prefix, target, f"are left to vLLM, which refuses them: {why_not}")
        raise
    refused = cannot_run(method)
    if refused is not None:
        say(logging.WARNING, prefix, target, f"are left to vLLM, which has {refused}: {why_not}")
    return method


def _would(theirs: Callable[[], Any]) -> str:
    """What vLLM would have done. Its methods choose when they are made, and change nothing else."""
    try:
        method = theirs()
        refused = cannot_run(method)
        if refused is not None:
            return f"has {refused}"
        experts = getattr(method, "experts_cls", None)
        with_experts = "" if experts is None else f" with {experts.__name__}"
        return f"would have taken {type(method).__name__}{with_experts}"
    except Exception as error:
        return f"has {_first_line(error)}"


def cannot_run(method: Any) -> str | None:
    """Why a method that vLLM chose without asking its oracle cannot run here; None: nothing says so."""
    experts: Any = getattr(method, "experts_cls", None)
    try:
        if getattr(experts, "_supports_current_device", lambda: True)():
            return None
    except Exception:
        return None
    return f"chosen {experts.__name__}, which does not run on this device"


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"none ({text[0] if text else type(error).__name__})"


def say(level: int, prefix: str, target: Target | None, sentence: str) -> None:
    """Once for all layers of a model that have the same reason."""
    name = "unknown" if target is None else target.parent.__name__
    key = f"{name} {sentence}"
    if key not in _said:
        _said.add(key)
        logger.log(level, "fp4moe: the experts of %s and its like (%s) %s", prefix, name, sentence)
