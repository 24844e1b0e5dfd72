"""The example that serves a model and asks it over HTTP."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from conftest import always, environment, has_bf16

EXAMPLE = Path(__file__).parents[2] / "examples" / "vllm_serve.py"


def test_a_chat_request_over_http(models, cache):
    words = [sys.executable, str(EXAMPLE), str(models / "qwen3-mxfp4" / "fp4"), "w5 w17 w99"]
    given = environment(VLLM_CACHE_ROOT=str(cache), **always())
    run = subprocess.run(
        [*words, "--dtype", "bfloat16" if has_bf16() else "float32", "--enforce-eager", "--max-model-len", "64",
         "--kv-cache-memory-bytes", str(1 << 22)],
        env=given, capture_output=True, text=True, timeout=1800, cwd=cache,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-4000:]
    assert re.search(r"^ *w\d+( w\d+)+$", run.stdout, re.M), run.stdout[-4000:]
