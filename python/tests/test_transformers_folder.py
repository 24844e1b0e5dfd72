"""Folders of fp4moe convert inside transformers: mapped, and the checkpoint's own numbers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("ml_dtypes")

import tiny_checkpoints as tiny  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

import fp4moe  # noqa: E402
from fp4moe import cli  # noqa: E402
from fp4moe.transformers import Fp4MoeConfig, register  # noqa: E402

register()

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the folders are a CPU's")


def convert(source: Path, out: Path, *words: str) -> Path:
    outcome = cli.call(["convert", str(source), *words, "-o", str(out)])
    assert outcome.status == 0, outcome.err
    return out


@pytest.fixture(scope="module", params=["gpt-oss", "qwen3-nvfp4", "deepseek-nvfp4"])
def both(request: Any, tmp_path_factory: Any) -> tuple[Path, Path]:
    """A checkpoint with files beside it, and the folder made of it."""
    place = tmp_path_factory.mktemp("model")
    source = tiny.make(place, tiny.KINDS[request.param])
    (source / "generation_config.json").write_text('{"max_new_tokens": 3}')
    (source / "tokenizer_config.json").write_text('{"chat_template": "x"}')
    return source, convert(source, place / "folder")


@pytest.fixture(scope="module")
def gpt_oss(tmp_path_factory: Any) -> Path:
    return tiny.make(tmp_path_factory.mktemp("gpt_oss"), tiny.KINDS["gpt-oss"])


def tokens() -> Any:
    return torch.randint(1, 128, (2, 24), generator=torch.Generator().manual_seed(3))


@torch.no_grad()
def test_a_folder_gives_the_checkpoints_logits(both: tuple[Path, Path]) -> None:
    source, folder = both
    exact = AutoModelForCausalLM.from_pretrained(
        source, experts_implementation="fp4moe", dtype=torch.float32
    )
    model, said = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    assert not said["missing_keys"] and not said["unexpected_keys"]
    assert torch.equal(model(tokens()).logits, exact(tokens()).logits)
    for name in ("generation_config.json", "tokenizer_config.json"):
        assert (folder / name).read_bytes() == (source / name).read_bytes()


def test_nothing_is_packed(both: tuple[Path, Path]) -> None:
    model = AutoModelForCausalLM.from_pretrained(both[1])
    layers = [module.layer for module in model.modules() if hasattr(module, "checkpoint_tensors")]
    assert layers
    for layer in layers:
        assert "the folder is in layout" in layer.info()["why"]
        with pytest.raises(fp4moe.errors.Error) as caught:
            layer.load_expert(0)  # there is no source to pack from
        assert caught.value.id == "layer.position"


def test_options_are_taken(both: tuple[Path, Path]) -> None:
    options = Fp4MoeConfig(numerics="exact", threads=1)
    model = AutoModelForCausalLM.from_pretrained(both[1], quantization_config=options)
    layer = next(m.layer for m in model.modules() if hasattr(m, "checkpoint_tensors"))
    assert layer.info()["numerics"] == "exact"


def test_it_is_not_saved_as_a_checkpoint(both: tuple[Path, Path], tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(both[1])
    with pytest.raises(fp4moe.errors.UnsupportedError, match="unconvert") as caught:
        model.save_pretrained(tmp_path / "saved")
    assert caught.value.id == "transformers.converted"


def test_transformers_alone_finds_no_weights(both: tuple[Path, Path], monkeypatch: Any) -> None:
    from transformers import modeling_utils

    monkeypatch.setattr(modeling_utils, "get_hf_quantizer", modeling_utils.get_hf_quantizer._others)
    with pytest.raises(OSError):
        AutoModelForCausalLM.from_pretrained(both[1], quantization_config=None)


@pytest.mark.parametrize(
    ("words", "id", "says"),
    [
        (("--tp", "2"), "converted.shard", "tp 0/2"),
        (("--ep", "2", "--rank", "1"), "converted.shard", "ep 1/2"),
        (("--layout", "marlin.mxfp4"), "converted.layout", "marlin.mxfp4"),
        (("--backend", "NATIVE_SM90", "--device", "h100"), "converted.layout", "native_sm90.mxfp4"),
    ],
)
def test_another_ranks_or_layouts_folder_is_refused(
    gpt_oss: Path, tmp_path: Path, words: tuple[str, ...], id: str, says: str
) -> None:
    folder = convert(gpt_oss, tmp_path / "folder", *words)
    with pytest.raises(fp4moe.errors.Error, match=says) as caught:
        AutoModelForCausalLM.from_pretrained(folder)
    assert caught.value.id == id


def test_another_instruction_sets_folder_is_refused(gpt_oss: Path, tmp_path: Path) -> None:
    here = convert(gpt_oss, tmp_path / "here")
    own = json.loads((here / "fp4moe.json").read_text())["generation"]
    other = "x86.16x32.int8" if own.startswith("arm") else "arm.4x32"
    words = ("--layout", "cpu_native.mxfp4", "--generation", other)
    folder = convert(gpt_oss, tmp_path / "folder", *words)
    with pytest.raises(fp4moe.errors.InvalidInputError, match="of another kind") as caught:
        AutoModelForCausalLM.from_pretrained(folder)
    assert caught.value.id == "converted.generation"


def test_another_models_configuration_is_refused(gpt_oss: Path, tmp_path: Path) -> None:
    folder = convert(gpt_oss, tmp_path / "folder")
    document = json.loads((folder / "config.json").read_text())
    document["num_local_experts"] = 8
    (folder / "config.json").write_text(json.dumps(document))
    with pytest.raises(fp4moe.errors.Error):
        AutoModelForCausalLM.from_pretrained(folder)


def test_experts_alone_are_no_model(gpt_oss: Path, tmp_path: Path) -> None:
    folder = convert(gpt_oss, tmp_path / "folder", "--experts-only")
    with pytest.raises(fp4moe.errors.Error, match="without --experts-only"):
        AutoModelForCausalLM.from_pretrained(folder)


def test_a_folder_may_be_moved(gpt_oss: Path, tmp_path: Path) -> None:
    folder = convert(gpt_oss, tmp_path / "folder")
    shutil.move(folder, tmp_path / "moved")
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "moved") is not None
