"""fp4moe inside vLLM: its plug-in (entry point ``vllm.general_plugins``).

vLLM calls ``register`` in every process. Configurations of FP4 checkpoints are then subclasses of
vLLM's own; layers that vLLM cannot run on this machine, or all of them where it is asked for, are
computed by fp4moe (FP4MOE_VLLM=off|auto|always).
"""

from __future__ import annotations

import logging

logger = logging.getLogger("vllm.fp4moe")


def register() -> None:
    """Make fp4moe known to vLLM; again is no harm, and nothing is raised."""
    try:
        _register()
    except Exception as error:  # an exception here would stop vLLM
        logger.warning(
            "fp4moe: the plug-in stays off, because vLLM could not be looked at (%s: %s); "
            "FP4MOE_VLLM=off silences this",
            type(error).__name__,
            error,
        )


def _register() -> None:
    from fp4moe.vllm.plugin import mode

    if mode.from_environment() == mode.OFF:
        return
    from fp4moe.vllm.plugin import contract

    found = contract.installed_version()
    broken = contract.check()
    if broken:
        logger.warning(
            "fp4moe: the plug-in stays off, because vLLM %s is not what it was written for: %s; "
            "install a version that `fp4moe doctor` names, or set FP4MOE_VLLM=off",
            found,
            broken[0],
        )
        return
    from fp4moe.vllm.plugin import configs, linear

    configs.register()
    linear.register()
