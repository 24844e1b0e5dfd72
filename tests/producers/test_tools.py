"""Checkpoints that other people's tools make on the spot, through every command.

tools.json says for each tool which tiny models it quantizes and what must come of them. A tool has
an environment of its own and makes its checkpoints once (build/producers), in which
quantize_TOOL.py also keeps what transformers computes with the numbers that the tool's own code
makes of the files. FP4MOE_PROGRAM is the program, FP4MOE_PRODUCERS names some of the tools.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import checks
import pytest

torch = pytest.importorskip("torch")
from safetensors.torch import load_file, save_file  # noqa: E402

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CACHE = Path(os.environ.get("FP4MOE_PRODUCERS_FOLDER", ROOT / "build" / "producers"))
TOOLS: dict[str, dict[str, Any]] = json.loads((HERE / "tools.json").read_text())["tools"]
CHOSEN = os.environ.get("FP4MOE_PRODUCERS", " ".join(TOOLS)).split()
ALL = [(tool, name) for tool in CHOSEN for name in TOOLS[tool]]
READ = [(tool, name) for tool, name in ALL if "refused" not in TOOLS[tool][name]]


def environment(tool: str) -> str:
    """The Python that has the tool: this one, or one of its own."""
    requirements = HERE / f"requirements-{tool}.txt"
    if not requirements.is_file():
        return sys.executable
    folder = CACHE / f"venv-{tool}"
    result = subprocess.run([ROOT / "tools" / "venv.sh", folder, requirements], check=False,
                          capture_output=True, text=True)
    if "No matching distribution" in result.stderr:
        machine = f"{platform.machine()} with Python {platform.python_version()}"
        pytest.skip(f"{tool} cannot be installed on {machine}: {result.stderr.strip()}")
    assert result.returncode == 0, result.stderr
    return str(folder / "bin" / "python")


def made_by(tool: str) -> Path:
    """The folder of a tool's checkpoints, made when its script or its environment is another."""
    total = hashlib.sha256(" ".join(TOOLS[tool]).encode())
    for name in ("tiny.py", f"quantize_{tool}.py", f"requirements-{tool}.txt"):
        if (HERE / name).is_file():
            total.update((HERE / name).read_bytes())
    folder = CACHE / tool / total.hexdigest()[:16]
    if folder.is_dir():
        return folder
    python = environment(tool)
    shutil.rmtree(CACHE / tool, ignore_errors=True)
    unfinished = CACHE / tool / "unfinished"
    unfinished.mkdir(parents=True)
    offline = {"HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1", "TOKENIZERS_PARALLELISM": "0"}
    done = subprocess.run([python, HERE / f"quantize_{tool}.py", unfinished, *TOOLS[tool]],
                          check=False, capture_output=True, text=True, cwd=unfinished,
                          env={**os.environ, **offline})
    assert done.returncode == 0, done.stderr[-3000:]
    unfinished.rename(folder)
    return folder


def result(tool: str, name: str) -> tuple[Path, dict[str, Any]]:
    """A checkpoint, and what must come of it."""
    folder = made_by(tool)
    failed = folder / f"{name}.failed"
    assert not failed.is_file(), failed.read_text()[-2000:]
    single = folder / f"{name}.gguf"
    return single if single.is_file() else folder / name, TOOLS[tool][name]


def witness_of(path: Path) -> dict[str, Any]:
    """What transformers computed with the tool's numbers."""
    stem = path.with_suffix("") if path.suffix == ".gguf" else path
    return dict(load_file(stem.parent / f"{stem.name}.witness.safetensors"))


@pytest.mark.parametrize(("tool", "name"), ALL)
def test_inspect_and_lint(tool: str, name: str) -> None:
    path, row = result(tool, name)
    (checks.refuse if "refused" in row else checks.inspect_and_lint)(path, row)


@pytest.mark.parametrize(("tool", "name"), READ)
def test_transcode_there_and_back(tool: str, name: str, tmp_path: Path) -> None:
    path, row = result(tool, name)
    checks.there_and_back(path, row, tmp_path)


@pytest.mark.parametrize(("tool", "name"), READ)
def test_convert_and_unconvert(tool: str, name: str, tmp_path: Path) -> None:
    path, row = result(tool, name)
    checks.convert_and_unconvert(path, row, tmp_path)


@pytest.mark.parametrize(("tool", "name"), READ)
def test_run_gives_the_tools_numbers(tool: str, name: str, tmp_path: Path) -> None:
    path, row = result(tool, name)
    seen = witness_of(path)
    layers = [key.removesuffix(".out") for key in seen if key.endswith(".out")]
    assert len(layers) == row["layers"]
    for layer in layers:
        given = tmp_path / "x.safetensors"
        parts = ("hidden_states", "topk_ids", "topk_weights")
        save_file({part: seen[f"{layer}.{part}"] for part in parts}, given)
        number = re.findall(r"\.(\d+)\.", layer)[-1]
        out = tmp_path / "out.safetensors"
        checks.report("run", path, "--layer", number, "--numerics", "exact", "--engine",
                      "reference", "--input", given, "-o", out)
        (found,) = load_file(out).values()
        wanted = seen[f"{layer}.out"]
        assert float((found - wanted).norm() / wanted.norm()) < 2e-6, layer


@pytest.mark.parametrize(("tool", "name"), [each for each in READ if each[0] != "gguf"])
def test_transformers_gives_the_tools_logits(tool: str, name: str) -> None:
    import fp4moe.transformers  # registers the name
    from transformers import AutoModelForCausalLM

    assert fp4moe.transformers
    path, row = result(tool, name)
    options = {"experts_implementation": "fp4moe", "dtype": torch.float32}
    if "transformers" in row:
        with pytest.raises(Exception, match=re.escape(row["transformers"])):
            AutoModelForCausalLM.from_pretrained(path, **options)
        return
    if "no_logits" in row:
        pytest.skip(row["no_logits"])
    seen = witness_of(path)
    model = AutoModelForCausalLM.from_pretrained(path, **options).eval()
    with torch.no_grad():
        found = model(seen["input_ids"]).logits.float()
    assert float((found - seen["logits"]).norm() / seen["logits"].norm()) < 2e-4
