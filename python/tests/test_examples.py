"""The examples and the pages' own blocks run as they stand."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SERVERS = ("vllm_serve.py",)  # tests/vllm runs it
EXAMPLES = sorted(
    file for file in (ROOT / "examples").glob("*.py") if file.name not in SERVERS
)
NEEDS = ("torch", "transformers")
IN_MEMORY = ("vllm_layer.cpp", "vllm_layer.py", "weights_in_memory.c", "weights_in_memory.cpp")
WHOLE_PAGES = ("docs/tutorial.md",)  # commands and Python, in their order
PYTHON_PAGES = ("README.md", "docs/python.md", "docs/machine.md", "docs/from-vllm.md")

pytestmark = pytest.mark.skipif(not EXAMPLES, reason="examples are not part of this installation")


def skip_without(text: str) -> None:
    for package in NEEDS:
        needed = re.search(rf"^(?:import|from) (?:fp4moe\.)?{package}\b", text, re.M)
        if needed and importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")


def run(words: list[str], folder: Path) -> str:
    done = subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def blocks(page: str) -> list[tuple[str, str]]:
    return re.findall(r"^```(sh|python)\n(.*?)^```$", (ROOT / page).read_text(), re.S | re.M)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_says_something(
    example: Path, checkpoint: Path, tmp_path: Path
) -> None:
    skip_without(example.read_text())
    wanted = [str(checkpoint)] if "CHECKPOINT" in example.read_text() else []
    assert run([sys.executable, str(example), *wanted], tmp_path).strip()


def code_lines(file: Path) -> int:
    """Lines that are neither empty nor comments."""
    text = file.read_text()
    if file.suffix == ".py":
        tree = ast.parse(text)
        if ast.get_docstring(tree) is not None:
            tree.body.pop(0)
        lines = text.splitlines()[tree.body[0].lineno - 1 :]
    else:
        lines = re.sub(r"/\*.*?\*/", "", text, flags=re.S).splitlines()
    return sum(bool(line.strip()) and not line.strip().startswith(("# ", "//")) for line in lines)


@pytest.mark.parametrize("example", IN_MEMORY)
def test_a_layer_from_memory_takes_thirty_lines(example: str) -> None:
    assert 15 < code_lines(ROOT / "examples" / example) <= 30


@pytest.mark.parametrize("page", WHOLE_PAGES)
def test_a_page_runs_from_its_first_command_to_its_last(page: str, tmp_path: Path) -> None:
    found = blocks(page)
    python = "\n".join(text for language, text in found if language == "python")
    skip_without(python)
    # One script: Python keeps its names from block to block, commands run between them.
    script = ["import subprocess, sys"]
    commands = 0
    for language, text in found:
        if language == "python":
            script.append(text)
            continue
        for line in text.splitlines():
            if line.startswith("fp4moe "):
                words = shlex.split(line, comments=True)[1:]
                script.append(
                    f"subprocess.run([sys.executable, '-m', 'fp4moe', *{words!r}], check=True)"
                )
                commands += 1
    assert commands > 10 and len(python.splitlines()) > 20
    (tmp_path / "page.py").write_text("\n".join(script))
    assert "MARLIN" in run([sys.executable, "page.py"], tmp_path)


@pytest.mark.parametrize("page", PYTHON_PAGES)
def test_the_python_of_a_page_runs(page: str, tmp_path: Path) -> None:
    if not (ROOT / page).exists():
        pytest.skip(f"{page} is not here")
    found = "\n".join(text for language, text in blocks(page) if language == "python")
    assert found, page
    skip_without(found)
    (tmp_path / "page.py").write_text(found)
    run([sys.executable, "page.py"], tmp_path)
