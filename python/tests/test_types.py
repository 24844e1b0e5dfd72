"""The package is typed: mypy reads it strictly, stubs and all."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import resources

import pytest

import fp4moe
from fp4moe import commands, selection

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

from pathlib import Path

fp4moe.convert("in", Path("out"), backend="CPU", tp=(0, 2), max_memory="2GB", placement="linear")
fp4moe.convert("in", "out", bakend="CPU")  # error: no such word
fp4moe.convert("in", "out", placement="odd")  # error: no such choice
fp4moe.convert("in", "out", tp=(0, 1, 2))  # error: no rank
fp4moe.lint("in", deep=True, threads=4, fix=["fill-input-scale"])
fp4moe.lint("in", threads="many")  # error: no number
fp4moe.lint("in", deep="yes")  # error: a flag
fp4moe.run("in", tp=2, layer="all", adapter=[Path("a")], input=None)
fp4moe.bench("layer", tokens=[1, 16], seconds=1.5)
fp4moe.bench("everything")  # error: no such benchmark
fp4moe.quantize_checkpoint("in", "out", format="nvfp4", input_scale=0.5)
fp4moe.quantize_checkpoint("in", "out", format="fp8")  # error: no such format
backend: str | None = fp4moe.explain(device="h100", env={"A": "1"}, hidden=64, bias=True).backend
fp4moe.explain(config=Path("layer.json"), policy="native")
fp4moe.explain(config=3)  # error: no path
fp4moe.explain(all_devices=True)  # error: not one selection
fp4moe.command("lint", "in", deep=True)
"""


def test_the_wheel_holds_stubs_and_their_mark():
    for name in ("_core.pyi", "commands.pyi", "selection.pyi", "py.typed"):
        assert (resources.files(fp4moe) / name).is_file()


def functions(stub: str) -> dict[str, set[str]]:
    """The public functions of a stub, each with the names of its arguments."""
    text = (resources.files(fp4moe) / stub).read_text()
    return {
        node.name: {argument.arg for argument in node.args.args + node.args.kwonlyargs}
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    }


def test_stubs_name_every_word_of_every_verb():
    verbs = functions("commands.pyi") | functions("selection.pyi")
    for name in ("call", "command", "options"):
        del verbs[name]
    assert {"bench", "convert", "explain", "run"} <= set(verbs)
    for name, named in verbs.items():
        verb = "quantize" if name == "quantize_checkpoint" else name.replace("_", "-")
        words = set(commands.options(verb))
        if verb == "explain":
            words -= set(selection.NOT_ONE)
        assert words <= named, verb
        positional = {"path", "folder", "adapter", "a", "b", "layout", "benchmark", "progress", "out"}
        assert named - words <= positional, verb


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
