"""The plug-in's methods and experts without vLLM, on a CPU."""

from __future__ import annotations

import logging

import pytest

torch = pytest.importorskip("torch")
from vllm_standins import Activation, Experts, TheirMethod, has_vllm, moe_config  # noqa: E402

if has_vllm():
    pytest.skip("vLLM is here: tests/vllm holds the plug-in", allow_module_level=True)

import fp4moe  # noqa: E402
import vllm_plugin_cases as cases  # noqa: E402

from fp4moe import cli  # noqa: E402
from fp4moe.vllm import plugin  # noqa: E402
from fp4moe.vllm.plugin import choice, contract, mode, support, weights  # noqa: E402

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
    with pytest.raises(NotImplementedError, match="nobody else reads a folder"):
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
    return choice.choose(layer, "layer 0", cases.TARGET, theirs)


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


def test_a_method_that_cannot_run_here_is_replaced(monkeypatch):
    class Blind(Theirs):
        class experts_cls:  # noqa: N801
            @staticmethod
            def _supports_current_device():
                return False

    assert isinstance(chosen(monkeypatch, "auto", Blind), TheirMethod)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"is_lora_enabled": True}, "LoRA"),
        ({"hidden_dim": 72}, "whole blocks of 32"),
        ({"intermediate_size_per_partition": 40}, "tensor_parallel_size"),
        ({"in_dtype": torch.float64}, "bfloat16, float16 or float32"),
        ({"activation": Activation.RELU2}, "relu2"),
    ],
)
def test_refusals_are_sentences(monkeypatch, caplog, changes, sentence):
    with pytest.raises(NotImplementedError, match=sentence):
        chosen(monkeypatch, "always", Theirs, **changes)
    assert isinstance(chosen(monkeypatch, "auto", Theirs, **changes), Theirs)
    choice._said.clear()
    with pytest.raises(NotImplementedError, match="No MXFP4"):
        chosen(monkeypatch, "auto", refuse, **changes)
    assert sentence in caplog.text


@pytest.mark.parametrize(
    ("need", "sentence"),
    [
        (contract.Need("vllm.gone", "name"), "vllm.gone cannot be imported"),
        (contract.Need("vllm.config", "gone"), "vllm.config has no gone"),
        (contract.Need("vllm_standins", "Kernel.apply", ("tokens",)), "takes no tokens"),
        (contract.Need("vllm_standins", "Kernel.__init__", ("fused_experts",)), "asks for prepare"),
    ],
)
def test_a_vllm_that_does_not_fit_is_left_alone(monkeypatch, caplog, need, sentence):
    monkeypatch.setattr(contract, "NEEDS", (need,))
    plugin.register()  # vLLM's start goes on
    (record,) = caplog.records
    assert sentence in record.message and "FP4MOE_VLLM=off" in record.message


def test_a_failure_of_the_plug_in_does_not_stop_vllm(monkeypatch, caplog):
    monkeypatch.setattr(contract, "check", lambda: 1 / 0)
    plugin.register()
    assert "stays off" in caplog.text and "ZeroDivisionError" in caplog.text
    caplog.clear()
    monkeypatch.setenv(mode.VARIABLE, "off")
    plugin.register()
    assert not caplog.records


def test_eplb_is_refused(monkeypatch):
    layer = Experts(2, 64, 32, Activation.SILU, "cpu")
    config = moe_config(layer, Activation.SILU, 1)
    config.moe_parallel_config.enable_eplb = True
    assert "EPLB" in support.refusal(config, "mxfp4")


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
        ({"engine": {"devices": [ENGINE["devices"][1] | {"ordinal": 0}]}}, "on T4: 7.5, not 8.0"),
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


def test_processors_of_openmp():
    assert weights.processors("0-3,8 10-14:2") == {0, 1, 2, 3, 8, 10, 12, 14}
    assert weights.processors("") == set()
