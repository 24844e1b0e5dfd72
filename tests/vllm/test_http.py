"""The commands of docs/vllm.md as they stand, and the example that serves a model and asks it over HTTP.

A small model is in the place of gpt-oss-20b, and a free port in that of 8000. Two servers are started: the
page's, and that of the example for the folder that the page converts.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import always, environment, has_bf16

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "vllm_serve.py"
NAME = "gpt-oss-20b"
# `make test-vllm` has done the first two. The model is made, not downloaded.
NOT_RUN = ("tools/vllm/env.sh vllm-env", "vllm-env/bin/pip install", "vllm-env/bin/hf download")
SERVE = "vllm-env/bin/python -m vllm.entrypoints.openai.api_server --model "
OPTIONS = (
    "--dtype", "bfloat16" if has_bf16() else "float32", "--enforce-eager", "--max-model-len", "64",
    "--kv-cache-memory-bytes", str(1 << 22),
)  # fmt: skip


def commands() -> list[str]:
    """Those of the page, one a line, without comments."""
    blocks = re.findall(r"^```sh\n(.*?)^```", (ROOT / "docs" / "vllm.md").read_text(), re.M | re.S)
    lines = "".join(blocks).replace("\\\n", " ").replace(f"openai/{NAME}", NAME).splitlines()
    plain = [re.sub(r"\s+#.*", "", line) for line in lines]
    return [line for line in plain if not line.startswith(NOT_RUN)]


SERVING, ASKING, CONVERTING, SERVING_THE_FOLDER = commands()


@pytest.fixture(scope="module")
def example() -> Any:
    """The example as a module."""
    found = importlib.util.spec_from_file_location("vllm_serve", EXAMPLE)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def place(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the commands are run: with the environment and the model that the page has made by then."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "vllm-env").symlink_to(sys.prefix)
    shutil.copytree(models / "qwen3-mxfp4" / "fp4", folder / NAME)
    return folder


@pytest.fixture(scope="module")
def given(cache: Path) -> dict[str, str]:
    return environment(VLLM_CACHE_ROOT=str(cache), **always())


def finished(words: list[str], place: Path, given: dict[str, str]) -> str:
    run = subprocess.run(words, cwd=place, env=given, capture_output=True, text=True, timeout=1800)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-4000:]
    return run.stdout


@pytest.fixture(scope="module")
def answers(place: Path, given: dict[str, str], example: Any) -> dict[str, Any]:
    """The page's server, asked by the page's command and by the example's function."""
    port = example.free_port()
    url = f"http://127.0.0.1:{port}"
    words = ["sh", "-c", f'exec {SERVING} "$@"', "sh", *OPTIONS, "--port", str(port)]
    with (place / "log").open("w") as log:
        server = subprocess.Popen(words, cwd=place, env=given, stdout=log, stderr=log)
    try:
        example.wait(url, server)
        asking = ASKING.replace("http://127.0.0.1:8000", url)
        found = json.loads(finished(["sh", "-c", asking], place, given))
        return {"page": found, "example": example.ask(url, NAME, "w5 w17 w99")}
    except SystemExit as error:
        raise AssertionError((place / "log").read_text()[-4000:]) from error
    finally:
        server.terminate()
        server.wait()


def test_the_page_serves_a_checkpoint_and_asks_it(answers):
    assert SERVING == f"{SERVE}{NAME}"
    assert answers["page"]["usage"]["completion_tokens"] > 0  # at random: the page names no temperature
    assert answers["page"]["choices"][0]["message"]["role"] == "assistant"
    assert re.search(r"\bw\d+( w\d+)+\b", answers["example"]), answers


def test_a_chat_request_over_http(answers, place, given):
    """The example; it serves the folder that the page makes, by the page's command."""
    finished(["sh", "-c", CONVERTING], place, given)
    begin, _, folder = SERVING_THE_FOLDER.rpartition(" ")
    assert begin + " " == SERVE and (place / folder / "config.json").is_file()
    words = [os.path.join("vllm-env", "bin", "python"), str(EXAMPLE), folder, "w5 w17 w99", *OPTIONS]
    said = finished(words, place, given)
    assert re.search(r"^ *w\d+( w\d+)+$", said, re.M), said[-4000:]
    assert answers["example"].strip() in said
