"""The package is typed: mypy reads it strictly, stubs and all."""

from __future__ import annotations

import inspect
import pydoc
import subprocess
import sys
import types
import typing
from collections.abc import Iterator
from importlib import resources
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest

import fp4moe
from fp4moe import _core, commands, results, verbs

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
errors: int = fp4moe.lint("in")["errors"]
fp4moe.lint("in")["erors"]  # error: no such key
"""


def test_the_wheel_holds_stubs_and_their_mark():
    for name in ("_core.pyi", "py.typed"):
        assert (resources.files(fp4moe) / name).is_file()


VERBS = {
    name: value
    for name, value in vars(verbs).items()
    if inspect.isfunction(value) and value.__module__ == verbs.__name__
}
NOT_ONE = {"all_devices", "diff", "messages", "verbose"}  # of explain: more than one selection


@pytest.mark.parametrize("name", VERBS)
def test_a_verb_has_a_keyword_for_each_option(name):
    verb = "quantize" if name == "quantize_checkpoint" else name.replace("_", "-")
    options = commands.options(verb)
    words = {word for word in options if not (word.startswith("no_") and word[3:] in options)}
    words -= NOT_ONE if verb == "explain" else set()
    parameters = inspect.signature(VERBS[name]).parameters
    arguments = {
        option["name"].lower() for option in _core.options(verb)["options"] if option["positional"]
    }
    assert words <= set(parameters)
    assert set(parameters) - words <= arguments | {"progress", "benchmark"}
    for word in words:
        is_required = options[word]["required"] and verb != "bench"  # there by a subcommand alone
        default = inspect.Parameter.empty if is_required else None
        assert parameters[word].default is default, word
        annotation = str(parameters[word].annotation)
        if options[word]["choices"]:
            assert annotation.startswith("Literal["), word
            assert all(repr(choice) in annotation for choice in options[word]["choices"])
    assert inspect.Parameter.VAR_KEYWORD not in {each.kind for each in parameters.values()}


def test_help_shows_the_real_signature():
    shown = pydoc.render_doc(fp4moe.explain, renderer=pydoc.plaintext)
    assert "device: " in shown and "words" not in shown
    assert "-> 'results.Lint'" in pydoc.render_doc(fp4moe.lint, renderer=pydoc.plaintext)


def mismatches(value: object, kind: Any, at: str) -> Iterator[str]:
    """Where a value is not what its type says."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return
    if typing.is_typeddict(kind):
        hints = get_type_hints(kind)
        if not isinstance(value, dict):
            yield f"{at}: {type(value).__name__} instead of {kind.__name__}"
            return
        yield from (f"{at}.{key}: not in {kind.__name__}" for key in value.keys() - hints.keys())
        yield from (f"{at}.{key}: missing" for key in kind.__required_keys__ - value.keys())
        for key in value.keys() & hints.keys():
            yield from mismatches(value[key], hints[key], f"{at}.{key}")
    elif origin is list:
        if not isinstance(value, list):
            yield f"{at}: no list"
            return
        for item in value:
            yield from mismatches(item, inner[0], f"{at}[]")
    elif origin is dict:
        if not isinstance(value, dict):
            yield f"{at}: no dictionary"
            return
        for item in value.values():
            yield from mismatches(item, inner[1], f"{at}[]")
    elif origin is Literal:
        if value not in inner:
            yield f"{at}: {value!r}"
    elif origin in (Union, types.UnionType):
        if all(list(mismatches(value, each, at)) for each in inner):
            yield f"{at}: {type(value).__name__} is none of {inner}"
    elif kind is float and isinstance(value, int) and not isinstance(value, bool):
        return
    elif not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        yield f"{at}: {type(value).__name__} instead of {kind.__name__}"


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> dict[str, list[Any]]:
    """What the verbs give, by the name of the type."""
    folder = tmp_path_factory.mktemp("typed")
    small: dict[str, Any] = {"experts": 4, "hidden": 128, "intermediate": 128}
    model, nvfp4, plain = folder / "m", folder / "n", folder / "plain"
    qwen = "qwen3-30b-a3b"
    synths = [
        fp4moe.synth(model, model="gpt-oss-20b", layers=2, **small),
        fp4moe.synth(nvfp4, model=qwen, format="nvfp4", **small),
        fp4moe.synth(plain, model=qwen, dialect="bf16", **small),
        fp4moe.synth(folder / "adapter", model=qwen, adapter_for=nvfp4),
        fp4moe.synth(folder / "bad", model=qwen, format="nvfp4", defect="nan-scale", **small),
        fp4moe.synth(folder / "gap", model=qwen, format="nvfp4", defect="missing-expert", **small),
    ]
    h100: dict[str, Any] = {"backend": "MARLIN", "policy": "latest", "device": "h100"}
    converted = fp4moe.convert(model, folder / "c", **h100)
    paths = (model, nvfp4, plain, folder / "bad", folder / "gap", folder / "c")
    return {
        "Synth": synths,
        "Convert": [converted, fp4moe.convert(model, folder / "c2", tp=2, **h100)],
        "Inspect": [fp4moe.inspect(path, tensors=True) for path in (model, nvfp4)],
        "Lint": [fp4moe.lint(path, deep=True) for path in paths],
        "Plan": [
            fp4moe.plan(path, device=device, policy=policy)
            for path in (model, nvfp4)
            for device in ("h100", "cpu")
            for policy in ("native", "latest")
        ],
        "Matrix": [fp4moe.matrix()],
        "VllmVersions": [fp4moe.vllm_versions()],
        "Layouts": [fp4moe.layouts(), fp4moe.layouts("marlin.mxfp4")],
        "Doctor": [fp4moe.doctor()],
        "Verify": [fp4moe.verify(folder / "c", deep=True)],
        "Unconvert": [fp4moe.unconvert(folder / "c", out=folder / "u")],
        "Transcode": [fp4moe.transcode(model, folder / "m.gguf", to="gguf")],
        "Quantize": [fp4moe.quantize_checkpoint(plain, folder / "q", format="nvfp4")],
        "Merge": [fp4moe.merge(nvfp4, folder / "adapter", folder / "merged")],
        "Report": [
            fp4moe.report(model, tokens=1, device=["h100"]),
            fp4moe.report(folder / "bad", device=["h100"]),
            fp4moe.report(folder / "c"),
        ],
        "Run": [fp4moe.run(model, tokens=2, check=True), fp4moe.run(model, backend="MARLIN", vllm="latest", tokens=1)],
        "Diff": [
            fp4moe.diff("MARLIN", "exact", checkpoint=model, layer=layer, tokens=2)
            for layer in (0, "all")
        ],
        "Bench": [
            fp4moe.bench("select", seconds=0.01),
            fp4moe.bench("layer", model=model, tokens=[1], seconds=0.01),
        ],
    }


def test_results_are_what_their_types_say(made):
    for verb, found in made.items():
        for value in found:
            assert list(mismatches(value, getattr(results, verb), verb)) == []


def test_a_result_of_another_kind_would_be_found():
    wrong = {"schema_version": 1, "releases": [{"version": 1}], "more": 0}
    found = list(mismatches(wrong, results.VllmVersions, "v"))
    assert "v.more: not in VllmVersions" in found
    assert "v.releases[].version: int instead of str" in found
    assert "v.releases[].date: missing" in found


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
