"""The plug-in's methods and experts without vLLM, on a CPU."""

from __future__ import annotations

import logging
import types

import pytest

torch = pytest.importorskip("torch")
from vllm_standins import Activation, Experts, NvFp4Experts, TheirMethod  # noqa: E402
from vllm_standins import has_vllm, moe_config  # noqa: E402

if has_vllm():
    pytest.skip("vLLM is here: tests/vllm holds the plug-in", allow_module_level=True)

import fp4moe  # noqa: E402
import vllm_plugin_cases as cases  # noqa: E402

from fp4moe import cli  # noqa: E402
from fp4moe.vllm import plugin  # noqa: E402
from fp4moe.vllm.plugin import choice, contract, mode, support, weights  # noqa: E402
from fp4moe.vllm.plugin.methods import make_method  # noqa: E402

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="layers would be on the GPU")


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", [Activation.SILU, Activation.SWIGLUOAI])
def test_a_layer_computes_its_definition(activation, bias):
    cases.check_layer("cpu", activation, bias)


def test_router_weights_on_the_input_are_not_applied_twice():
    cases.check_weights_on_the_input("cpu")


def test_ranks_sum_up():
    cases.check_expert_maps("cpu")


def test_a_token_may_have_nobody():
    cases.check_nobody("cpu")


def test_batched_experts():
    cases.check_batches("cpu")


def test_weights_are_loaded_again():
    cases.check_reload("cpu")


@pytest.mark.parametrize("activation", [Activation.SILU, Activation.SWIGLUOAI])
def test_tensor_parallel_ranks_sum_up(activation):
    cases.check_tensor_parallel("cpu", activation)


@pytest.mark.parametrize("is_packed", [False, True])
def test_nvfp4_of_both_dialects(is_packed):
    cases.check_nvfp4("cpu", is_packed)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return cases.Folders(tmp_path_factory.mktemp("folders"))


def test_a_converted_folder_is_mapped(folders):
    cases.check_folder("cpu", folders)


@pytest.mark.parametrize("split", ["tp", "ep"])
def test_folders_of_ranks_are_mapped(folders, split):
    cases.check_folders_of_ranks("cpu", folders, split)


@pytest.mark.parametrize(
    ("name", "words", "sentence"),
    [
        ("tp", {}, "is not this rank's"),
        ("one", {"tp": (1, 2)}, "is not this rank's"),
        ("tp", {"ep": (0, 2)}, "is not this rank's"),
    ],
)
def test_folders_of_other_ranks_are_refused(folders, name, words, sentence):
    with pytest.raises(fp4moe.errors.InvalidInputError, match=sentence) as caught:
        folders.opened(name, "cpu", **words)
    assert "fp4moe convert" in caught.value.remedy


def test_a_folder_of_another_layout_is_refused(folders):
    words = ["--layout", "native_sm90.mxfp4", "-o", str(folders.place / "gpu")]
    assert cli.call(["convert", str(folders.source), *words]).status == 0
    with pytest.raises(fp4moe.errors.InvalidInputError, match="kernels that are not used here") as why:
        folders.opened("gpu", "cpu")
    assert why.value.remedy


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"hidden_dim": 512}, "hidden"),
        ({"experts_per_token": 2}, "top_k"),
        ({"activation": Activation.SILU}, "activation"),
        ({"swiglu_limit": 5.0}, "limit"),
        ({"num_experts": 16, "num_local_experts": 16}, "experts"),
    ],
)
def test_a_folder_of_another_model_is_refused(folders, monkeypatch, change, word):
    sized = cases.standins.sized_config

    def other(*sizes, **words):
        result = sized(*sizes, **words)
        vars(result).update(change)
        return result

    monkeypatch.setattr(cases.standins, "sized_config", other)
    with pytest.raises(fp4moe.errors.InvalidInputError, match=f"do not agree on {word}") as caught:
        folders.opened("one", "cpu")
    assert caught.value.id == "converted.size" and caught.value.remedy


def test_a_folder_needs_the_plug_in_on(folders, monkeypatch):
    monkeypatch.setenv(mode.VARIABLE, "off")
    with pytest.raises(NotImplementedError, match="only fp4moe reads a folder"):
        folders.opened("one", "cpu")


def test_a_folder_is_loaded_from_the_disk_by_its_index(folders, monkeypatch):
    """Another loader of vLLM's would read the experts' files, too."""
    with pytest.raises(NotImplementedError, match="/absent is no folder here.*download it"):
        folders.opened("absent", "cpu")
    load = types.SimpleNamespace(load_format="runai_streamer")
    config = types.SimpleNamespace(load_config=load, additional_config={})
    monkeypatch.setattr("vllm.config.get_current_vllm_config_or_none", lambda: config)
    with pytest.raises(NotImplementedError, match="not loaded as runai_streamer; set --load-format auto"):
        folders.opened("one", "cpu")


def test_a_folder_that_is_not_computed_is_no_checkpoint_for_vllm(folders, monkeypatch):
    monkeypatch.setattr(support, "refusal", lambda *given: f"no LoRA; {support.OTHERWISE}")
    for word in ("auto", "always"):
        monkeypatch.setenv(mode.VARIABLE, word)
        with pytest.raises(NotImplementedError, match="serve its checkpoint, and set FP4MOE_VLLM=off"):
            folders.opened("one", "cpu")


def test_every_activation_of_the_table_makes_a_layer():
    for name in weights.CONSTANTS:
        result = 1 if name.endswith("_no_mul") else 2
        codes = torch.zeros(2, result * 32, 16, dtype=torch.uint8)
        tensors = {
            "w13": codes,
            "w13_scale": torch.full((2, result * 32, 1), 127, dtype=torch.uint8),
            "w2": torch.zeros(2, 32, 16, dtype=torch.uint8),
            "w2_scale": torch.full((2, 32, 1), 127, dtype=torch.uint8),
        }
        order = {"swigluoai": "interleaved"}.get(name, "halves") if result == 2 else "single"
        description = {"format": "mxfp4", "row_order": order, "activation": name, "top_k": 1}
        assert fp4moe.Layer.from_weights(tensors, description).experts == 2


def chosen(monkeypatch, word, theirs, activation=Activation.SILU, **changes):
    monkeypatch.setenv(mode.VARIABLE, word)
    layer = Experts(2, 64, 32, activation, "cpu")
    layer.moe_config = moe_config(layer, activation, 1)
    vars(layer.moe_config).update(changes)
    return choice.choose(layer, "layer 0", lambda: cases.TARGET, theirs)


def refuse():
    raise NotImplementedError("No MXFP4 MoE backend supports the deployment configuration.")


class Theirs:
    """A method of vLLM's that runs."""


def test_modes(monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    choice._said.clear()
    assert isinstance(chosen(monkeypatch, "auto", Theirs), Theirs)
    assert isinstance(chosen(monkeypatch, "off", Theirs), Theirs)
    assert isinstance(chosen(monkeypatch, "always", Theirs), TheirMethod)
    assert isinstance(chosen(monkeypatch, "auto", refuse), TheirMethod)
    assert "vLLM has none (No MXFP4 MoE backend" in caplog.text
    with pytest.raises(NotImplementedError, match="No MXFP4"):
        chosen(monkeypatch, "off", refuse)
    assert isinstance(chosen(monkeypatch, "sometimes", Theirs), Theirs)
    assert "set one of off, auto, always" in caplog.text


class Blind(Theirs):
    """One that vLLM chose without asking."""

    class experts_cls:  # noqa: N801
        @staticmethod
        def _supports_current_device():
            return False


def test_a_method_that_cannot_run_here_is_replaced(monkeypatch):
    assert isinstance(chosen(monkeypatch, "auto", Blind), TheirMethod)


EPLB = cases.standins.parallel_config()
EPLB.enable_eplb = True


@pytest.mark.parametrize(
    ("changes", "sentence", "remedy"),
    [
        ({"is_lora_enabled": True}, "LoRA", "FP4MOE_VLLM=off"),
        ({"moe_parallel_config": EPLB}, "EPLB", "without --enable-eplb"),
        ({"hidden_dim": 72}, "whole blocks of 32", "FP4MOE_VLLM=off"),
        ({"intermediate_size_per_partition": 40}, "size of 40 for each rank", "tensor_parallel_size"),
        ({"in_dtype": torch.float64}, "bfloat16, float16 or float32", "FP4MOE_VLLM=off"),
        ({"activation": Activation.RELU2}, "activation relu2", "FP4MOE_VLLM=off"),
        ({"activation_slope": 0.1}, "activation_slope = 0.1", "FP4MOE_VLLM=off"),
        ({"moe_parallel_config": None}, "does not understand this layer", "FP4MOE_VLLM=off"),
        ({"gpu": {"is_nvidia": False}}, "no engine for a GPU", "FP4MOE_VLLM=off"),
        ({"gpu": {"engine": "T4"}}, "do not run on T4: 7.5, not 8.0", "FP4MOE_VLLM=off"),
        ({"gpu": {"ordinal": 1}}, "first GPU that a process sees", "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_refusals_are_sentences(monkeypatch, caplog, changes, sentence, remedy):
    """Where vLLM has a path of its own it is taken; else its error comes, behind our reason in `auto`."""
    changes = dict(changes)
    gpu = changes.pop("gpu", None)
    if gpu is not None:
        Gpu(monkeypatch, **gpu)
    with pytest.raises(NotImplementedError, match=sentence) as caught:
        chosen(monkeypatch, "always", Theirs, **changes)
    assert remedy in str(caught.value)
    for word in ("auto", "off"):
        assert isinstance(chosen(monkeypatch, word, Theirs, **changes), Theirs)
    assert not caplog.records
    choice._said.clear()
    for word in ("off", "auto"):
        assert sentence not in caplog.text
        with pytest.raises(NotImplementedError, match="No MXFP4"):
            chosen(monkeypatch, word, refuse, **changes)
    (record,) = caplog.records
    assert sentence in record.message and remedy in record.message


def test_a_method_of_vllms_that_cannot_run_is_told_with_the_reason(monkeypatch, caplog):
    choice._said.clear()
    assert isinstance(chosen(monkeypatch, "auto", Blind, is_lora_enabled=True), Blind)
    assert "does not run on this device" in caplog.text and "LoRA" in caplog.text


def test_a_failing_look_at_a_layer_leaves_it_to_vllm(monkeypatch, caplog):
    def find():
        raise KeyError("weights")

    layer = Experts(2, 64, 32, Activation.SILU, "cpu")
    layer.moe_config = moe_config(layer, Activation.SILU, 1)
    for word in ("auto", "off"):
        monkeypatch.setenv(mode.VARIABLE, word)
        assert isinstance(choice.choose(layer, "layer 0", find, Theirs), Theirs)
    monkeypatch.setenv(mode.VARIABLE, "always")
    with pytest.raises(NotImplementedError, match="KeyError: 'weights'.*FP4MOE_VLLM=off"):
        choice.choose(layer, "layer 0", find, Theirs)


def test_a_model_that_sums_outputs_itself_is_refused():
    layer = Experts(2, 64, 32, Activation.SILU, "cpu")
    experts = cases.processed(layer, 2).moe_kernel.fused_experts
    assert experts.post_gemm2_hook is None
    with pytest.raises(NotImplementedError, match="FP4MOE_VLLM=off"):
        experts.post_gemm2_hook = print


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("always", mode.Wish("always")),
        ({"mode": "always", "threads": 4}, mode.Wish("always", 4)),
        ({"mode": "always", "threads": "four"}, mode.Wish("always")),
        ({"mode": "always", "threads": -1}, mode.Wish("always")),
        ({"mode": "allways"}, mode.Wish()),
        ({"thread": 4}, mode.Wish()),
        (["always"], mode.Wish()),
        (None, mode.Wish("off")),
    ],
)
def test_additional_config(monkeypatch, caplog, given, expected):
    """It goes before the environment; what is not understood is a warning, once."""
    monkeypatch.setenv(mode.VARIABLE, "off")
    monkeypatch.setattr(mode, "_additional_config", lambda: {"fp4moe": given})
    mode._warn.cache_clear()
    assert mode.current() == mode.current() == expected
    assert len(caplog.records) == (given not in ("always", None, {"mode": "always", "threads": 4}))


@pytest.mark.parametrize(
    ("need", "sentence"),
    [
        (contract.Need("vllm.gone", "name"), "vllm.gone cannot be imported"),
        (contract.Need("vllm.config", "gone"), "vllm.config has no gone"),
        (contract.Need("vllm_standins", "Kernel.apply", ("tokens",)), "takes no tokens"),
        (contract.Need("vllm_standins", "Routed", fields=("name",)), "Routed has no name"),
        (contract.Need("vllm_standins", "Kernel.__init__", ("fused_experts",)), "asks for prepare"),
    ],
)
def test_a_vllm_that_does_not_fit_is_left_alone(monkeypatch, caplog, need, sentence):
    monkeypatch.setattr(contract, "NEEDS", (need,))
    plugin.register()  # vLLM's start goes on
    (record,) = caplog.records
    assert sentence in record.message and "FP4MOE_VLLM=off" in record.message


def test_fields_are_declared_or_set():
    for name in ("expert_map", "has_only", "parameters"):  # by __init__, in the class, in its base
        assert contract._missing(contract.Need("vllm_standins", "Routed", fields=(name,))) == ""


def test_a_failure_of_the_plug_in_does_not_stop_vllm(monkeypatch, caplog):
    monkeypatch.setattr(contract, "check", lambda: 1 / 0)
    plugin.register()
    assert "stays off" in caplog.text and "ZeroDivisionError" in caplog.text
    caplog.clear()
    monkeypatch.setenv(mode.VARIABLE, "off")
    plugin.register()
    assert not caplog.records


ENGINE = {
    "built": True,
    "devices": [
        {"ordinal": 0, "name": "A100", "used": True, "kernels": "sm80", "why_not": ""},
        {"ordinal": 1, "name": "T4", "used": False, "kernels": "", "why_not": "7.5, not 8.0"},
    ],
}


class Gpu:
    """A machine with a GPU, and what fp4moe says of it."""

    device_name = "a GPU"

    def __init__(self, monkeypatch, *, engine=ENGINE, ordinal=0, is_nvidia=True):
        self.is_nvidia = is_nvidia
        if engine == "T4":
            engine = {"devices": [ENGINE["devices"][1] | {"ordinal": 0}]}
        monkeypatch.setattr(support, "current_platform", self)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: ordinal)
        monkeypatch.setattr(fp4moe, "doctor", lambda: {"cuda_engine": engine})
        monkeypatch.setattr(support, "device_refusal", support.device_refusal.__wrapped__)

    def is_cpu(self):
        return False

    def is_cuda(self):
        return self.is_nvidia


@pytest.mark.parametrize("family", ["sm90", "sm80"])
def test_gpus_are_those_that_the_library_has_kernels_for(monkeypatch, family):
    Gpu(monkeypatch, engine={"devices": [ENGINE["devices"][0] | {"kernels": family}]})
    assert support.device_refusal() is None


@pytest.mark.parametrize(
    ("machine", "sentence"),
    [
        ({"engine": "T4"}, "on T4: 7.5, not 8.0"),
        ({"engine": {"why_not": {"message": "no kernels", "remedy": "make cuda"}}}, "(make cuda)"),
        ({"engine": {"why_not": {"message": "no driver"}}}, "does not run: no driver; set FP4MOE"),
        ({"engine": {"devices": []}}, "sees no device 0"),
        ({"ordinal": 1}, "CUDA_VISIBLE_DEVICES"),
        ({"is_nvidia": False}, "no engine for a GPU"),
    ],
)
def test_other_gpus_are_refused_in_a_sentence(monkeypatch, machine, sentence):
    Gpu(monkeypatch, **machine)
    assert sentence in support.device_refusal()
    assert support.OTHERWISE in support.device_refusal()


def test_graphs_hold_the_largest_call():
    layer = Experts(2, 64, 32, Activation.SILU, "cpu")
    assert cases.processed(layer, 2).moe_kernel.fused_experts.largest_call() == (64, 2)
    other = Experts(2, 64, 32, Activation.SILU, "cpu")
    batched = cases.processed(other, 2, batched=True).moe_kernel.fused_experts
    assert batched.largest_call() == (2 * 16, 1)


@pytest.mark.parametrize(
    "layer",
    [Experts(2, 64, 32, Activation.SILU, "cpu"), NvFp4Experts(2, 64, 32, "cpu", is_packed=True)],
)
def test_dummy_weights_make_a_layer(layer):
    """vLLM fills what names no value at random, also scales with numbers below zero."""
    weights.name_dummy_scales(layer)
    for name, parameter in layer.named_parameters():
        value = getattr(parameter, "dummy_weight_value", None)
        assert (value is None) == ("scale" not in name)
        if value is not None:
            parameter.data.fill_(value)
    moe = cases.standins.sized_config(Activation.SILU, 1, 2, 64, 32)
    target = cases.NVFP4 if isinstance(layer, NvFp4Experts) else cases.TARGET
    method = make_method(moe, target, mode.Wish())
    method.process_weights_after_loading(layer)
    x, by, ids = torch.ones(3, 64), torch.ones(3, 1), torch.zeros(3, 1, dtype=torch.int32)
    assert cases.apply(method, layer, x, by, ids).isfinite().all()


def test_processors_of_openmp():
    assert weights.processors("0-3,8 10-14:2") == {0, 1, 2, 3, 8, 10, 12, 14}
    assert weights.processors("") == set()
