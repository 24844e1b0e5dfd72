"""vLLM in processes of its own, and the models that it serves."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


def has_bf16() -> bool:
    """Whether vLLM's BF16 kernels run: its wheel for Arm has BF16 instructions and no others."""
    return platform.machine() != "aarch64" or " bf16" in Path("/proc/cpuinfo").read_text()


def has_amx() -> bool:
    """Whether vLLM has FP4 experts of its own here, so that `auto` leaves them to it."""
    return " amx_tile" in Path("/proc/cpuinfo").read_text()


def always() -> dict[str, str]:
    """Variables where AMX cannot be hidden: processes that vLLM starts by itself."""
    return {"FP4MOE_VLLM": "always"} if has_amx() else {}


def environment(**changes: str) -> dict[str, str]:
    """This process's, for a vLLM that asks nobody and writes only where it is told."""
    shared = {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    shared["FP4MOE_TEST_HIDES_AMX"] = "1"
    return {**os.environ, **shared, **changes}


def generate(cache: Path, tasks: list[dict[str, Any]], **changes: str) -> list[Any]:
    """The tokens of each task, in float32 unless it says otherwise, or the log where one fails.

    `generate.likely` then holds what generate.py tells of probabilities.
    """
    for task in tasks:
        task["options"] = {"dtype": "float32", **task.get("options", {})}
    words = [sys.executable, str(HERE / "generate.py"), json.dumps(tasks)]
    found = environment(VLLM_CACHE_ROOT=str(cache), **changes)
    run = subprocess.run(words, env=found, capture_output=True, text=True, cwd=cache)
    lines = [line.partition("TOKENS ")[2] for line in run.stdout.splitlines() if "TOKENS " in line]
    assert len(lines) == len(tasks), run.stdout[-6000:] + run.stderr[-6000:]
    generate.log = run.stdout + run.stderr
    told = [json.loads(line) for line in lines]
    generate.likely = [each["likely"] for each in told]
    return [each["tokens"] for each in told]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all kinds of models.py."""
    given = os.environ.get("FP4MOE_VLLM_MODELS")
    if given:
        return Path(given)
    folder = tmp_path_factory.mktemp("models")
    subprocess.run([sys.executable, str(HERE / "models.py"), str(folder)], check=True)
    return folder


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where vLLM keeps compiled graphs."""
    return tmp_path_factory.mktemp("cache")
