"""Folders of fp4moe convert, of one rank and of all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import synth, tokens

import fp4moe
from fp4moe import cli, converted

EXPERTS, TOP_K = 4, 2


@pytest.fixture(scope="module")
def folders(tmp_path_factory: Any) -> Path:
    """One checkpoint, and its folders: whole, of two tensor-parallel ranks, of two with experts."""
    place = tmp_path_factory.mktemp("folders")
    shape = ("--layers", 1, "--experts", EXPERTS, "--hidden", 64, "--intermediate", 64)
    source = synth(place / "source", "--model", "gpt-oss-20b", *shape)
    for name, words in {"one": (), "tp": ("--tp", "2"), "ep": ("--ep", "2")}.items():
        outcome = cli.call(["convert", str(source), *words, "-o", str(place / name)])
        assert outcome.status == 0, outcome.err
    return place


def routes(count: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(5)
    ids = np.stack([random.permutation(EXPERTS)[:TOP_K] for _ in range(count)]).astype(np.int32)
    return ids, random.random((count, TOP_K), np.float32)


@pytest.mark.parametrize("split", ["tp", "ep"])
def test_the_parts_of_ranks_sum_up(folders: Path, split: str) -> None:
    x, (ids, weights) = tokens(9), routes(9)
    whole = converted.open_rank(folders / "one", "cpu").layer(0, engine="reference", numerics="exact")
    exact = whole.apply(x, ids, weights)
    found = np.zeros_like(exact)
    for rank in range(2):
        model = converted.open_rank(folders / split, "cpu", **{split: (rank, 2)})
        assert model.info()["converted"][split] == f"{rank}/2"
        found += model.layer(0, engine="reference", numerics="exact").apply(x, ids, weights)
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-5 * np.abs(exact).max())


@pytest.mark.parametrize(
    ("name", "words", "found"),
    [
        ("one", {"tp": (0, 2)}, "tp 0/1"),
        ("tp", {}, "tp 0/2"),
        ("tp", {"ep": (1, 2)}, "tp 1/2"),
        ("tp", {"tp": (3, 4)}, "no rank-3"),
        ("ep", {"ep": (0, 2), "placement": "round-robin"}, "linear"),
        ("tp/rank-0", {"tp": (1, 2)}, "tp 0/2"),
    ],
)
def test_another_ranks_folder_is_refused(
    folders: Path, name: str, words: dict[str, Any], found: str
) -> None:
    with pytest.raises(fp4moe.errors.InvalidInputError, match="is not this rank's") as caught:
        converted.open_rank(folders / name, "cpu", **words)
    assert caught.value.id == "converted.shard" and found in caught.value.found
    assert "fp4moe convert" in caught.value.remedy


def test_a_layer_knows_its_rank(folders: Path) -> None:
    with pytest.raises(fp4moe.errors.InvalidInputError) as caught:
        fp4moe.Layer.open(folders / "tp" / "rank-0", 0, tp=(1, 2))
    assert caught.value.id == "converted.shard"
    assert fp4moe.Layer.open(folders / "tp" / "rank-1", 0, tp=(1, 2)).info()["is_processed"]


def test_the_folder_above_the_ranks_names_them(folders: Path) -> None:
    with pytest.raises(fp4moe.errors.InvalidInputError, match="rank-0") as caught:
        fp4moe.Model.open(folders / "tp")
    assert caught.value.id == "converted.shard"
    assert converted.is_converted(folders / "tp") and not converted.is_converted(folders / "source")
    assert converted.other_files(folders / "tp") == ["rank-0/others-00001.safetensors"]
    shared = [folders / "tp" / f"rank-{rank}" / "others-00001.safetensors" for rank in range(2)]
    assert shared[0].stat().st_ino == shared[1].stat().st_ino


def test_layers_are_found_by_their_number(folders: Path) -> None:
    model = fp4moe.Model.open(folders / "one")
    assert converted.layer_number(model, "model.layers.0.mlp.experts") == 0
    with pytest.raises(fp4moe.errors.InvalidInputError, match="model.layers.7"):
        converted.layer_number(model, "model.layers.7.mlp.experts")


@pytest.mark.parametrize(
    ("backend", "device"), [("NATIVE_SM90", "h100"), ("NATIVE_SM80", "a100"), ("NATIVE_SM80", "h100")]
)
def test_folders_for_gpus_are_one_ranks_too(folders: Path, tmp_path: Path, backend: str, device: str) -> None:
    words = ["--backend", backend, "--device", device, "-o", str(tmp_path / "gpu")]
    outcome = cli.call(["convert", str(folders / "source"), *words])
    assert outcome.status == 0, outcome.err
    layout = converted.open_rank(tmp_path / "gpu", "cuda").info()["converted"]["layout"]
    assert layout == f"{backend.lower()}.mxfp4"
    with pytest.raises(fp4moe.errors.Error, match="kernels read on cpu"):
        converted.open_rank(tmp_path / "gpu", "cpu")
    with pytest.raises(fp4moe.errors.Error, match="native_sm90.* or native_sm80"):
        converted.open_rank(folders / "one", "cuda")
