"""fp4moe inside transformers: the same numbers as the dequantized model, in FP4."""

from __future__ import annotations

import copy
import json
import logging
import os
import pickle
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("ml_dtypes")

import tiny_checkpoints as tiny  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402
from transformers.distributed import DistributedConfig  # noqa: E402

import fp4moe  # noqa: E402
from fp4moe.transformers import Fp4MoeConfig, Fp4MoeExperts, register  # noqa: E402

# docs/cpu.md: what 16-bit activations cost a layer, relative to the exact result.
LAYER_ERROR = 5e-5


@pytest.fixture(scope="module", params=sorted(tiny.KINDS))
def kind(request: Any) -> Any:
    return tiny.KINDS[request.param]


@pytest.fixture(scope="module")
def checkpoint(kind: Any, tmp_path_factory: Any) -> Path:
    return tiny.make(tmp_path_factory.mktemp("checkpoint"), kind)


@pytest.fixture(scope="module")
def gpt_oss(tmp_path_factory: Any) -> Path:
    return tiny.make(tmp_path_factory.mktemp("gpt_oss"), tiny.KINDS["gpt-oss"])


def load(path: Path, **kwargs: Any) -> Any:
    return AutoModelForCausalLM.from_pretrained(path, experts_implementation="fp4moe", **kwargs)


def tokens(rows: int, columns: int, seed: int = 3) -> Any:
    return torch.randint(1, 128, (rows, columns), generator=torch.Generator().manual_seed(seed))


def relative(found: Any, exact: Any) -> float:
    return float((found - exact).norm() / exact.norm())


@torch.no_grad()
def test_logits_are_those_of_the_dequantized_model(checkpoint: Path, kind: Any) -> None:
    ours, theirs = load(checkpoint, dtype=torch.float32), tiny.witness(checkpoint, kind)
    found, exact = ours(tokens(2, 24)).logits, theirs(tokens(2, 24)).logits
    layers = len(ours.model.layers)
    assert relative(found, exact) <= 4 * layers * LAYER_ERROR
    top = exact.topk(2).values
    clear = top[..., 0] - top[..., 1] > 4 * layers * LAYER_ERROR * exact.abs().max()
    assert clear.float().mean() > 0.9
    assert torch.equal(found.argmax(-1)[clear], exact.argmax(-1)[clear])


@torch.no_grad()
def test_a_layer_in_bf16_is_within_its_rounding(checkpoint: Path, kind: Any) -> None:
    ours = load(checkpoint).model.layers[1].mlp.experts
    theirs = tiny.witness(checkpoint, kind, torch.float64).model.layers[1].mlp.experts
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(33, 64, generator=generator).bfloat16()
    index = torch.stack([torch.randperm(4, generator=generator)[:2] for _ in range(33)])
    weights = torch.rand(33, 2, generator=generator).bfloat16()
    found = ours(x, index, weights)
    assert found.dtype == torch.bfloat16 and found.shape == x.shape
    assert relative(found.double(), theirs(x.double(), index, weights.double())) <= 2**-8


def test_generate_gives_the_tokens_of_the_dequantized_model(checkpoint: Path, kind: Any) -> None:
    ours, theirs = load(checkpoint, dtype=torch.float32), tiny.witness(checkpoint, kind)
    prompt = tokens(1, 7)
    options: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False}
    exact = theirs.generate(prompt, **options, output_logits=True, return_dict_in_generate=True)
    margins = [row.topk(2).values.diff().abs().min() for row in exact.logits]
    assert min(margins) > 1e-3, "the seed gives near ties; choose another"
    assert torch.equal(ours.generate(prompt, **options), exact.sequences)


@torch.no_grad()
def test_padded_rows_of_a_batch_give_what_they_give_alone(checkpoint: Path) -> None:
    model = load(checkpoint, dtype=torch.float32)
    long, short = tokens(1, 9), tokens(1, 5, seed=8)
    padded = torch.cat([torch.zeros(1, 4, dtype=torch.long), short], 1)
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[1, :4] = 0
    places = (mask.cumsum(1) - 1).clamp(min=0)
    both = model(torch.cat([long, padded]), attention_mask=mask, position_ids=places).logits
    assert relative(both[0], model(long).logits[0]) <= 1e-5
    assert relative(both[1, 4:], model(short).logits[0]) <= 1e-5


def test_nothing_is_missing_left_over_or_on_meta(checkpoint: Path, caplog: Any) -> None:
    logging.getLogger("transformers").propagate = True
    with caplog.at_level(logging.WARNING):
        model, said = load(checkpoint, output_loading_info=True)
    assert not said["missing_keys"] and not said["unexpected_keys"]
    assert not said["mismatched_keys"]
    assert not [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    everything = [*model.parameters(), *model.buffers()]
    assert not any(tensor.is_meta for tensor in everything)
    experts = [module for module in model.modules() if isinstance(module, Fp4MoeExperts)]
    assert len(experts) == 2
    assert not [name for name, _ in model.named_parameters() if ".experts." in name]


def test_save_pretrained_writes_what_was_read(checkpoint: Path, tmp_path: Path) -> None:
    model = load(checkpoint)
    model.save_pretrained(tmp_path / "saved")
    before, after = tiny.tensors(checkpoint), tiny.tensors(tmp_path / "saved")
    assert before.keys() == after.keys()
    for name, array in before.items():
        if array.dtype != after[name].dtype and ".experts." not in name:
            array = array.astype(after[name].dtype)  # transformers keeps some in float32
        assert array.dtype == after[name].dtype and array.shape == after[name].shape, name
        assert array.tobytes() == after[name].tobytes(), name
    read = [(path / "config.json").read_text() for path in (checkpoint, tmp_path / "saved")]
    stored = [json.loads(text)["quantization_config"] for text in read]
    assert stored[0] == stored[1]
    again = load(tmp_path / "saved")
    with torch.no_grad():
        assert torch.equal(again(tokens(1, 6)).logits, model(tokens(1, 6)).logits)


def test_stock_transformers_reads_what_was_saved(gpt_oss: Path, tmp_path: Path) -> None:
    load(gpt_oss).save_pretrained(tmp_path / "saved")
    kind = tiny.KINDS["gpt-oss"]
    before, after = tiny.witness(gpt_oss, kind), tiny.witness(tmp_path / "saved", kind)
    with torch.no_grad():
        assert torch.equal(before(tokens(1, 6)).logits, after(tokens(1, 6)).logits)


@torch.no_grad()
def test_shards_and_links_like_those_of_the_hub_are_read(kind: Any, tmp_path: Path) -> None:
    result = tiny.make(tmp_path, kind, shard="60KB")
    assert len(list(result.glob("*.safetensors"))) > 1
    exact = load(result)(tokens(1, 6)).logits
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "0123"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for number, file in enumerate(sorted(result.iterdir())):
        file.rename(blobs / str(number))
        (snapshot / file.name).symlink_to(Path("..") / ".." / "blobs" / str(number))
    assert torch.equal(load(snapshot)(tokens(1, 6)).logits, exact)


def test_an_index_is_a_file(tmp_path: Path) -> None:
    result = tiny.make(tmp_path, tiny.KINDS["gpt-oss"], shard="60KB")
    (result / "a.index.json").mkdir()
    os.mkfifo(result / "b.index.json")
    assert load(result)(tokens(1, 6)).logits.isfinite().all()


def test_a_shard_limit_of_save_pretrained_is_kept(gpt_oss: Path, tmp_path: Path) -> None:
    load(gpt_oss).save_pretrained(tmp_path / "saved", max_shard_size="60KB")
    assert len(list((tmp_path / "saved").glob("*.safetensors"))) > 1
    before, after = tiny.tensors(gpt_oss), tiny.tensors(tmp_path / "saved")
    assert {name: array.tobytes() for name, array in before.items()} == {
        name: array.tobytes() for name, array in after.items()
    }


def test_a_checkpoint_is_saved_over_itself(gpt_oss: Path, tmp_path: Path) -> None:
    shutil.copytree(gpt_oss, tmp_path / "same")
    model = load(tmp_path / "same")
    model.save_pretrained(tmp_path / "same")
    model.save_pretrained(tmp_path / "other")
    before = {name: array.tobytes() for name, array in tiny.tensors(gpt_oss).items()}
    for folder in ("same", "other"):
        found = tiny.tensors(tmp_path / folder)
        assert before == {name: array.tobytes() for name, array in found.items()}


def test_modelopt_may_say_it_in_a_file_of_its_own(tmp_path: Path) -> None:
    result = tiny.make(tmp_path, tiny.KINDS["qwen3-modelopt"])
    exact = load(result)(tokens(1, 5)).logits
    document = json.loads((result / "config.json").read_text())
    del document["quantization_config"]
    (result / "config.json").write_text(json.dumps(document))
    model = AutoModelForCausalLM.from_pretrained(result, quantization_config=Fp4MoeConfig())
    assert torch.equal(model(tokens(1, 5)).logits, exact)
    model.save_pretrained(tmp_path / "saved")
    assert torch.equal(load(tmp_path / "saved")(tokens(1, 5)).logits, exact)


def test_a_damaged_checkpoint_is_refused_in_words(gpt_oss: Path, tmp_path: Path) -> None:
    name = "model.layers.1.mlp.experts.down_proj_scales"
    shutil.copytree(gpt_oss, tmp_path / "nan")
    found = load_file(gpt_oss / "model.safetensors")
    found[name][2, 5, 1] = 255  # NaN
    save_file(found, tmp_path / "nan" / "model.safetensors")
    with pytest.raises(fp4moe.InvalidInputError):
        load(tmp_path / "nan")
    shutil.copytree(gpt_oss, tmp_path / "missing")
    del found[name]
    save_file(found, tmp_path / "missing" / "model.safetensors")
    with pytest.raises(fp4moe.InvalidInputError, match="down_proj"):
        load(tmp_path / "missing")
    shutil.copytree(gpt_oss, tmp_path / "short")
    data = (gpt_oss / "model.safetensors").read_bytes()
    (tmp_path / "short" / "model.safetensors").write_bytes(data[:5000])
    with pytest.raises(fp4moe.InvalidInputError, match="model.safetensors"):
        load(tmp_path / "short")


def test_a_configuration_object_asks_for_it_too(gpt_oss: Path) -> None:
    options = Fp4MoeConfig(threads=1, weights="mapped")
    mapped = AutoModelForCausalLM.from_pretrained(gpt_oss, quantization_config=options)
    with torch.no_grad():
        assert torch.equal(mapped(tokens(1, 6)).logits, load(gpt_oss)(tokens(1, 6)).logits)


def test_checkpoints_are_left_alone_until_somebody_asks(gpt_oss: Path) -> None:
    def has_ours() -> bool:
        model = AutoModelForCausalLM.from_pretrained(gpt_oss)
        return any(isinstance(module, Fp4MoeExperts) for module in model.modules())

    assert not has_ours()
    register(replace_mxfp4=True)
    try:
        assert has_ours()
        register()  # again is no harm, and changes nothing
        assert has_ours()
    finally:
        register(replace_mxfp4=False)
    assert not has_ours()


def test_a_plain_model_is_not_quantized_silently(gpt_oss: Path) -> None:
    model = load(gpt_oss.parent / "bf16")
    with pytest.raises(fp4moe.UnsupportedError, match="quantize_experts") as caught:
        model(tokens(1, 3))
    assert caught.value.id == "transformers.plain"


def test_a_plain_checkpoint_is_refused_by_the_quantizer(gpt_oss: Path) -> None:
    with pytest.raises(fp4moe.InvalidInputError) as caught:
        AutoModelForCausalLM.from_pretrained(
            gpt_oss.parent / "bf16", quantization_config=Fp4MoeConfig()
        )
    assert caught.value.id == "dialect.unquantized"


def test_other_devices_are_refused_in_words(gpt_oss: Path) -> None:
    for place in ({"": "meta"}, {"": torch.device("cuda", 0)}, {"": 0}):
        with pytest.raises(fp4moe.UnsupportedError, match="CPU") as caught:
            load(gpt_oss, device_map=place)
        assert caught.value.id == "transformers.device"
    assert load(gpt_oss, device_map="cpu").device.type == "cpu"


def test_experts_run_on_the_processor_where_there_is_a_gpu(gpt_oss: Path, monkeypatch: Any) -> None:
    exact = load(gpt_oss).model.layers[0].mlp.experts.layer.info()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    options = Fp4MoeConfig().layer_options()
    assert options["device"].startswith("cpu-")
    found = fp4moe.Model.open(gpt_oss).layer(0, **options).info()
    assert (found["engine"], found["kernel"]) == ("cpu", exact["kernel"])
    on_gpu = Fp4MoeConfig(numerics="exact").layer_options("cuda")
    assert (on_gpu["engine"], on_gpu["device"], on_gpu["numerics"]) == ("cuda", "auto", "exact")


def test_experts_go_where_the_models_tensors_go(gpt_oss: Path) -> None:
    model = load(gpt_oss)
    experts = model.model.layers[0].mlp.experts
    opened: list[str] = []

    def opens(place: str) -> fp4moe.Layer:
        opened.append(place)
        return fp4moe.Model.open(gpt_oss).layer(0)

    experts.attach(opens)
    first = experts.layer
    model.to("cpu").to(torch.float32)
    assert opened == ["cpu"] and experts.layer is first
    # A machine without a GPU: what `.to("cuda")` asks of every module.
    experts._apply(lambda _: torch.empty(0, device="meta"))
    assert opened == ["cpu"]

    def moved(number: int) -> Any:
        return lambda _: SimpleNamespace(device=torch.device("cuda", number))

    with pytest.raises(fp4moe.UnsupportedError) as caught:
        experts._apply(moved(1))
    assert caught.value.id == "transformers.device"
    assert experts.layer is first
    experts._apply(moved(0))
    assert opened == ["cpu", "cuda"] and experts.layer is not first
    x, index, weights = torch.zeros(1, 64), torch.zeros(1, 2, dtype=torch.long), torch.ones(1, 2)
    with pytest.raises(fp4moe.UnsupportedError, match="model.to") as caught:
        experts(x, index, weights)
    assert caught.value.id == "transformers.device"


def test_a_gradient_is_refused_not_zero(gpt_oss: Path) -> None:
    model = load(gpt_oss)
    loss = model(tokens(1, 5), labels=tokens(1, 5)).loss  # outside no_grad, and fine
    with pytest.raises(fp4moe.UnsupportedError) as caught:
        loss.backward()
    assert caught.value.id == "transformers.gradient"
    assert not model.hf_quantizer.is_trainable


def test_several_processes_are_refused(gpt_oss: Path) -> None:
    config = AutoConfig.from_pretrained(gpt_oss)
    config.distributed_config = DistributedConfig(tp_size=2)
    with pytest.raises(fp4moe.UnsupportedError) as caught:
        load(gpt_oss, config=config)
    assert caught.value.id == "transformers.distributed"


@pytest.mark.parametrize(("kind", "change"), [("qwen3-nvfp4", {"hidden_act": "mish"}), ("gpt-oss", {"swiglu_alpha": 1.0})])
def test_another_activation_is_refused(tmp_path: Path, kind: str, change: dict[str, object]) -> None:
    result = tiny.make(tmp_path / "a", tiny.KINDS[kind], **change)
    with pytest.raises((fp4moe.UnsupportedError, fp4moe.InvalidInputError)) as caught:
        load(result)
    assert caught.value.id in ("transformers.activation", "facts.activation")


@torch.no_grad()
def test_another_limit_of_the_activation_is_computed(tmp_path: Path) -> None:
    kind = tiny.KINDS["gpt-oss"]
    result = tiny.make(tmp_path, kind, swiglu_limit=0.5)
    found, exact = (
        model(tokens(1, 9)).logits
        for model in (load(result, dtype=torch.float32), tiny.witness(result, kind))
    )
    assert relative(found, exact) <= 8 * LAYER_ERROR


@torch.no_grad()
def test_a_limit_of_the_text_part_is_computed(tmp_path: Path) -> None:
    kind = tiny.KINDS["gpt-oss"]
    result = tiny.make(tmp_path, kind, swiglu_limit=0.5)
    config, exact = AutoConfig.from_pretrained(result), tiny.witness(result, kind)(tokens(1, 9))
    document = json.loads((result / "config.json").read_text())
    document["llm_config"] = {"swiglu_limit": document.pop("swiglu_limit")}
    (result / "config.json").write_text(json.dumps(document))
    found = load(result, config=config, dtype=torch.float32)(tokens(1, 9))
    assert relative(found.logits, exact.logits) <= 8 * LAYER_ERROR

    config.swiglu_limit = document["swiglu_limit"] = 7.0  # the experts are computed with 0.5
    (result / "config.json").write_text(json.dumps(document))
    with pytest.raises(fp4moe.UnsupportedError) as caught:
        load(result, config=config)
    assert caught.value.id == "transformers.activation"


def test_copies_share_weights_and_pickles_are_refused(gpt_oss: Path) -> None:
    model = load(gpt_oss)
    clone = copy.deepcopy(model)
    with torch.no_grad():
        assert torch.equal(clone(tokens(1, 4)).logits, model(tokens(1, 4)).logits)
    assert clone.model.layers[0].mlp.experts.layer is model.model.layers[0].mlp.experts.layer
    with pytest.raises(fp4moe.UsageError) as caught:
        pickle.dumps(model.model.layers[0].mlp.experts)
    assert caught.value.id == "transformers.pickle"


def test_no_tokens_give_no_rows(gpt_oss: Path) -> None:
    experts = load(gpt_oss).model.layers[0].mlp.experts
    empty = experts(torch.empty(0, 64), torch.empty(0, 2).long(), torch.empty(0, 2))
    assert empty.shape == (0, 64)


@torch.no_grad()
def test_a_compiled_model_gives_the_same_logits(gpt_oss: Path) -> None:
    model = load(gpt_oss, dtype=torch.float32)
    exact = model(tokens(1, 8)).logits
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert relative(compiled(tokens(1, 8)).logits, exact) <= 1e-5
