"""vLLM in processes of its own, and the models that it serves."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
INSIDE = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}  # fewer processes that import vLLM


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
    shared = {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    shared["FP4MOE_TEST_HIDES_AMX"] = "1"
    shared["OMP_WAIT_POLICY"] = "passive"
    shared["PYTHONDONTWRITEBYTECODE"] = ""  # compiling vLLM's modules takes as long as running them
    return {**os.environ, **shared, **changes}


@dataclass
class Outcome:
    """What became of a model: tokens and the likeliest of each place, or vLLM's exception; its log."""

    log: str
    tokens: Any = None
    likely: Any = None
    refusal: str = ""


def task(folder: Path, **options: Any) -> dict[str, Any]:
    """A model with options of `LLM`: float32, not compiled, unless they say otherwise."""
    return {"model": str(folder), "options": {"dtype": "float32", "enforce_eager": True, **options}}


def generate(cache: Path, tasks: list[dict[str, Any]], **changes: str) -> list[Outcome]:
    """What becomes of each task, one after the other in one process."""
    kept = {"VLLM_CACHE_ROOT": str(cache), "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor")}
    given = environment(**{**INSIDE, **kept, **changes})
    with tempfile.NamedTemporaryFile("r") as file:
        words = [sys.executable, str(HERE / "generate.py"), json.dumps(tasks), file.name]
        run = subprocess.run(
            words, env=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=cache
        )
        found = [json.loads(line) for line in file]
    assert len(found) == len(tasks), run.stdout[-12000:]
    return [Outcome(log, **each) for log, each in zip(run.stdout.split("RESULT"), found)]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all kinds of models.py."""
    given = os.environ.get("FP4MOE_VLLM_MODELS")
    if given:
        return Path(given)
    folder = tmp_path_factory.mktemp("models")
    subprocess.run([sys.executable, str(HERE / "models.py"), str(folder)], env=environment(), check=True)
    return folder


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where vLLM keeps compiled graphs."""
    return tmp_path_factory.mktemp("cache")
