"""The package is typed: mypy reads it strictly, stubs and all."""

from __future__ import annotations

import subprocess
import sys
from importlib import resources

import pytest

import fp4moe

CLIENT = """
import numpy as np
import fp4moe

layer = fp4moe.Model.open("model").layer(0, engine="cpu", tp=(0, 1))
out = layer.run(np.ones((1, layer.hidden), np.float32), np.ones((1, layer.experts), np.float32))
ids, weights = layer.route(out)
version: str = fp4moe.__version__
try:
    pass
except fp4moe.UnsupportedError as why:
    words: str = why.expected + why.id
reveal_type(layer.hidden)
layer.run(1)  # error: too few
fp4moe.Model.open(3)  # error: no path
"""


def test_the_wheel_holds_stubs_and_their_mark():
    for name in ("_core.pyi", "py.typed"):
        assert (resources.files(fp4moe) / name).is_file()


def mypy(*words: str) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("mypy")
    return subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-incremental", *words],
        capture_output=True, text=True, check=False,
    )


def test_what_callers_write_is_checked(tmp_path):
    file = tmp_path / "client.py"
    file.write_text(CLIENT)
    found = mypy("--follow-imports=silent", str(file)).stdout.splitlines()
    lines = CLIENT.splitlines()
    expected = {at + 1 for at, line in enumerate(lines) if "# error" in line}
    errors = {int(line.split(":")[1]) for line in found if ": error:" in line}
    assert errors == expected, "\n".join(found)
    assert any('Revealed type is "int"' in line or 'builtins.int' in line for line in found)
