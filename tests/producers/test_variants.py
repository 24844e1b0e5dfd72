"""Legal forms of checkpoints that no fixture has (variants.py), through every command.

Each is read, and its numbers are numpy's, or refused with its reason. FP4MOE_PROGRAM is the program.
"""

from __future__ import annotations

from pathlib import Path

import checks
import cut
import numpy as np
import pytest
import variants
from gguf_files import GgufVariant
from numbers_of_fp4 import activated, bf16, mixed
from spellings import EXPERTS, HIDDEN, Variant

AnyVariant = Variant | GgufVariant
ALL = variants.variants()
READ = [each for each in ALL if not each.refused]
FAMILIES = [each for each in variants.of_families() if not each.refused]
TARGETS = ("gpt-oss", "modelopt", "compressed-tensors", "quark", "gguf")


def name(variant: AnyVariant) -> str:
    """A test's name."""
    return variant.name


def middle(variant: AnyVariant, gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    """What goes into the down projection, by the configuration's constants where it has some."""
    config = variant.config if isinstance(variant, Variant) else {}
    if variant.activation == "swigluoai":
        alpha, limit = config["swiglu_alpha"], config["swiglu_limit"]
        gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
        return np.asarray(gate / (1 + np.exp(-alpha * gate)) * (up + 1))
    if variant.activation == "situ":
        beta, linear = config["activation_situ_beta"], config["activation_situ_linear_beta"]
        bounded = beta * np.tanh(gate / beta) / (1 + np.exp(-gate))
        return np.asarray(bounded * linear * np.tanh(up / linear))
    return activated(gate, up, "swigluoai" if variant.dialect == "gpt-oss" else variant.activation)


def outputs(variant: AnyVariant, layer: int, x: np.ndarray) -> list[np.ndarray]:
    """What each expert makes of the tokens."""
    return [
        middle(variant, x @ expert["gate"].values().T, x @ expert["up"].values().T)
        @ expert["down"].values().T
        for expert in variant.tiny.experts[layer]
    ]


def logits(variant: AnyVariant, layer: int, x: np.ndarray) -> np.ndarray:
    """Of routers, which GGUF keeps in F32."""
    router = variant.tiny.routers[layer].astype(np.float32)
    router = router if variant.dialect == "gguf" else bf16(router)
    return x @ router.T.astype(np.float64)


def run(path: Path, layer: int, given: dict[str, tuple[str, list[int], bytes]]) -> np.ndarray:
    """The layer's output."""
    source, out = path.parent / "x.safetensors", path.parent / "out.safetensors"
    cut.write(source, given)
    words = ("--layer", layer, "--numerics", "exact", "--engine", "reference")
    checks.report("run", path, *words, "--input", source, "-o", out)
    tensors = cut.read(out)
    (found,) = (tensor for key, tensor in tensors.items() if "topk" not in key)
    return np.frombuffer(found[2], np.float32).reshape(found[1])


def plain(path: Path) -> dict[str, tuple[str, bytes]]:
    """Bytes by name. Writers have one way to spell a scalar's shape, and the type of E8M0 bytes."""
    return {
        key: ("U8" if dtype == "F8_E8M0" else dtype, data)
        for key, (dtype, _, data) in checks.tensors(path).items()
    }


@pytest.mark.parametrize("variant", [each for each in ALL if each.refused], ids=name)
def test_is_refused_with_its_reason(variant: AnyVariant, tmp_path: Path) -> None:
    path = variant.write(tmp_path / "in")
    checks.refuse(path, {"refused": variant.refused, "word": variant.word})


@pytest.mark.parametrize("variant", READ, ids=name)
def test_numbers_are_numpys(variant: AnyVariant, tmp_path: Path) -> None:
    path = variant.write(tmp_path / "in")
    seen = checks.report("inspect", path)
    assert [seen["dialect"], seen["format"]] == [variant.dialect, variant.tiny.format]
    assert checks.report("lint", "--deep", path)["errors"] == 0
    dice = np.random.default_rng(3)
    x = bf16(dice.standard_normal((5, HIDDEN)))
    for layer in variant.tiny.layers:
        all_of_them = outputs(variant, layer, x.astype(np.float64))
        hidden = {"hidden_states": ("F32", [5, HIDDEN], x.tobytes())}
        ids = np.array([dice.permutation(EXPERTS)[:2] for _ in range(5)], np.int32)
        weights = np.array([[0.75, 0.25]] * 5, np.float32)
        chosen = hidden | {
            "topk_ids": ("I32", [5, 2], ids.tobytes()),
            "topk_weights": ("F32", [5, 2], weights.tobytes()),
        }
        ways = [(ids, weights, chosen)]
        if variant.rule:
            scores = logits(variant, layer, x.astype(np.float64))
            ways.append((*variant.rule.choose(scores, variant.bias), hidden))
        if variant.no_rule:
            cut.write(tmp_path / "x.safetensors", hidden)
            refused = checks.call("run", path, "--input", tmp_path / "x.safetensors")
            assert "facts.routing" in refused.stderr and variant.no_rule in refused.stderr
        for experts, shares, given in ways:
            wanted = mixed(all_of_them, experts, shares)
            found = run(path, layer, given)
            assert np.linalg.norm(found - wanted) / np.linalg.norm(wanted) < 2e-6


def same_numbers(
    path: Path, there: Path, layers: tuple[int, ...], folder: Path, tokens: int = 3
) -> None:
    """Tokens and experts that are seeded are the same for both."""
    for layer in layers:
        found = []
        for model in (path, there):
            out = folder / "seeded.safetensors"
            words = ("--layer", layer, "--numerics", "exact", "--engine", "reference")
            checks.report("run", model, *words, "--tokens", tokens, "--threads", 1, "-o", out)
            found.append(cut.read(out))
        assert found[0] == found[1]


@pytest.mark.parametrize("variant", READ, ids=name)
def test_there_and_back(variant: AnyVariant, tmp_path: Path) -> None:
    """Converted and given back; transcoded and back, or a reason for it."""
    path = variant.write(tmp_path / "in")
    checks.convert_and_unconvert(path, {"format": variant.tiny.format}, tmp_path)
    for target in TARGETS:
        there = tmp_path / (target + (".gguf" if target == "gguf" else ""))
        if target == variant.dialect:
            continue
        ended = checks.call("transcode", path, "--to", target, "-o", there, "--json")
        if ended.returncode != 0:
            known = ended.returncode == 2 or "config.python_numbers" in ended.stderr
            assert known, ended.stderr
            continue
        assert checks.report("lint", there)["errors"] == 0
        same_numbers(path, there, variant.tiny.layers, tmp_path)
        back = tmp_path / f"{target}-back"
        checks.report("transcode", there, "--to", variant.dialect, "-o", back)
        assert not variant.back or plain(back) == plain(path), target


@pytest.mark.parametrize("variant", FAMILIES, ids=name)
def test_quantized_into_gguf_it_routes_as_in_safetensors(variant: Variant, tmp_path: Path) -> None:
    """Whatever a family calls its router; enough tokens that a lost bias changes some choices."""
    path = variants.unquantized(variant).write(tmp_path / "plain")
    here, there, back = tmp_path / "modelopt", tmp_path / "there.gguf", tmp_path / "back"
    words = ("quantize", path, "--format", "nvfp4")
    checks.report(*words, "--to", "modelopt", "-o", here)
    checks.report(*words, "--to", "gguf", "-o", there)
    same_numbers(here, there, variant.tiny.layers, tmp_path, tokens=32)
    checks.report("transcode", there, "--to", "modelopt", "-o", back)
    assert plain(back) == plain(here)
