"""The plug-in's methods and experts without vLLM, on a CPU."""

from __future__ import annotations

import dataclasses
import functools
import logging
import shutil
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
from fp4moe.vllm.plugin import choice, contract, experts, folder, methods, mode, support  # noqa: E402
from fp4moe.vllm.plugin import weights  # noqa: E402
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


def test_a_token_may_have_no_expert():
    cases.check_no_expert("cpu")


def test_batched_experts():
    cases.check_batches("cpu")


@pytest.mark.parametrize("transport", [None, types.SimpleNamespace(activation_format="ragged")])
def test_a_transport_of_another_format_is_refused(monkeypatch, transport):
    monkeypatch.setattr(methods, "maybe_make_prepare_finalize", lambda **given: transport)
    sentence = "in the format (None|ragged).*--all2all-backend, or set FP4MOE_VLLM=off"
    with pytest.raises(NotImplementedError, match=sentence):
        cases.processed(Experts(2, 64, 32, Activation.SILU, "cpu"), 2)


@pytest.mark.parametrize("batched", [False, True])
def test_tokens_that_a_transport_quantized_are_refused(batched):
    layer = Experts(2, 64, 32, Activation.SILU, "cpu")
    experts = cases.processed(layer, 2, batched=batched).moe_kernel.fused_experts
    none, scales = torch.empty(0), torch.ones(1)
    given = (*[none] * 6, layer.activation, 2, None, scales, None, none, none, None, False)
    with pytest.raises(NotImplementedError, match="has quantized the tokens.*--all2all-backend"):
        experts.apply(*given)


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


class Cpu:
    """vLLM for CPUs, on whatever machine."""

    device_name = "a CPU"

    def is_cpu(self):
        return True

    def is_cuda(self):
        return False


def test_vllms_platform_says_where_a_folder_is_mapped(folders, monkeypatch):
    """vLLM for CPUs on a machine with a GPU that torch sees."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for module in (folder, support):
        monkeypatch.setattr(module, "current_platform", Cpu())
    cases.check_folder("cpu", folders)


def test_a_mapped_layer_is_not_reloaded_and_says_so_once(folders, caplog):
    choice._said.clear()
    method, layer = folders.opened("one", "cpu")
    mapped = method.fp4moe_layer
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    for _ in range(2):
        method.process_weights_after_loading(layer)
    (record,) = (record for record in caplog.records if record.levelno >= logging.WARNING)
    assert "are mapped and were not reloaded; serve the checkpoint" in record.message
    assert method.fp4moe_layer is mapped


def test_a_folder_is_mapped_where_the_other_weights_are_dummies(folders, monkeypatch):
    load = types.SimpleNamespace(load_format="dummy")
    config = types.SimpleNamespace(load_config=load, additional_config={})
    monkeypatch.setattr("vllm.config.get_current_vllm_config_or_none", lambda: config)
    cases.check_folder("cpu", folders)


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_a_folder_with_a_damaged_file_is_refused_at_start(folders, damage):
    shutil.copytree(folders.place / "one", folders.place / damage)
    (file,) = (folders.place / damage).glob("experts-*.safetensors")
    data = file.read_bytes()
    file.unlink()
    if damage == "cut":
        file.write_bytes(data[:-64])
    with pytest.raises(fp4moe.errors.Error, match=file.name):
        folders.opened(damage, "cpu")


@pytest.mark.parametrize("split", ["tp", "ep", "round"])
def test_folders_of_ranks_are_mapped(folders, split):
    cases.check_folders_of_ranks("cpu", folders, split)


@pytest.mark.parametrize(
    ("name", "words", "sentence"),
    [
        ("tp", {}, "is not this rank's"),
        ("one", {"tp": (1, 2)}, "is not this rank's"),
        ("tp", {"ep": (0, 2)}, "is not this rank's"),
        ("ep", {"ep": (0, 2), "placement": "round_robin"}, "is not this rank's"),
        ("round", {"ep": (1, 2)}, "is not this rank's"),
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
    assert "an empty path is no folder here" in folder._loading_refusal("")  # the working folder is one
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


@pytest.mark.parametrize("failure", [KeyError("weights"), StopIteration()])
def test_a_folder_of_a_layer_that_is_not_understood_is_refused_in_a_sentence(monkeypatch, failure):
    def find():
        raise failure

    layer = Experts(2, 64, 32, Activation.SILU, "cpu")
    layer.moe_config = moe_config(layer, Activation.SILU, 1)
    monkeypatch.setenv(mode.VARIABLE, "auto")
    sentence = f"does not understand this layer .{type(failure).__name__}.*serve its checkpoint"
    with pytest.raises(NotImplementedError, match=sentence):
        folder.choose_folder(layer, "layer 0", find, "", Theirs)


def test_biases_of_a_folder_are_fp4moes_own(folders, monkeypatch):
    sized = cases.standins.sized_config

    def with_bias(*sizes, **words):
        result = sized(*sizes, **words)
        result.has_bias = True
        return result

    monkeypatch.setattr(cases.standins, "sized_config", with_bias)
    for rank in range(2):
        assert folders.opened("tp", "cpu", tp=(rank, 2))


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


def chosen(
    monkeypatch, word, theirs, activation=Activation.SILU, biases=support.NO_BIASES, routing=(), **changes
):
    monkeypatch.setenv(mode.VARIABLE, word)
    layer = Experts(2, 64, 32, activation, "cpu")
    layer.moe_config = moe_config(layer, activation, 1)
    vars(layer.moe_config).update(changes)
    for name, value in dict(routing).items():
        setattr(layer, name, value)
    target = dataclasses.replace(cases.TARGET, biases=biases)
    return choice.choose(layer, "layer 0", lambda: target, theirs)


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


class Able(Theirs):
    """One with experts that run."""

    class experts_cls:  # noqa: N801
        @staticmethod
        def _supports_current_device():
            return True


@pytest.mark.parametrize(
    ("theirs", "sentence"),
    [
        (Theirs, "vLLM would have taken Theirs"),
        (Able, "vLLM would have taken Able with experts_cls"),
        (Blind, "vLLM has chosen experts_cls, which does not run on this device"),
        (refuse, "vLLM has none (No MXFP4 MoE backend supports the deployment configuration.)"),
    ],
)
def test_always_says_what_vllm_would_have_taken(monkeypatch, caplog, theirs, sentence):
    caplog.set_level(logging.INFO)
    choice._said.clear()
    assert isinstance(chosen(monkeypatch, "always", theirs), TheirMethod)
    (record,) = caplog.records
    assert record.message.endswith(f"are computed by fp4moe: its mode is always; {sentence}")


class Silent(Theirs):
    """Experts of a vLLM that does not ask them for devices."""

    class experts_cls:  # noqa: N801
        pass


class Failing(Theirs):
    """Experts that cannot say whether they run."""

    class experts_cls:  # noqa: N801
        @staticmethod
        def _supports_current_device():
            raise RuntimeError("no driver")


@pytest.mark.parametrize("theirs", [Silent, Failing])
def test_a_method_that_does_not_say_whether_it_runs_is_kept(monkeypatch, theirs):
    assert isinstance(chosen(monkeypatch, "auto", theirs), theirs)


EPLB = cases.standins.parallel_config()
EPLB.enable_eplb = True
TWO_RANKS = cases.standins.parallel_config(tp=(1, 2))
UNINTERLEAVE = {"activation": Activation.SWIGLUOAI_UNINTERLEAVE}
EVERY = {"biases": support.ON_EVERY_RANK, "moe_parallel_config": TWO_RANKS}


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
        ({"gpu": {"ordinal": 1}}, "first GPU that a process sees", "one server for each GPU"),
        ({"gpu": {}, "is_invariant": True}, "depend on the batch", "unset VLLM_BATCH_INVARIANT"),
        ({"has_bias": True}, "loads no biases of experts", "a checkpoint in MXFP4"),
        ({"has_bias": True, **EVERY}, "the sum of 2 ranks", "enable expert parallelism"),
        ({**UNINTERLEAVE, "swiglu_alpha": 1.7, "swiglu_limit": 7.0}, "needs swiglu_beta,", "FP4MOE_VLLM=off"),
        ({**UNINTERLEAVE, "swiglu_beta": 1.0}, "needs swiglu_alpha, swiglu_limit,", "FP4MOE_VLLM=off"),
        ({"activation": Activation.SITU}, "needs activation_situ_beta", "FP4MOE_VLLM=off"),
        ({"routing": {"scoring_func": "sigmoid"}}, "router for CPUs has no sigmoid", "on a GPU"),
    ],
)
def test_refusals_are_sentences(monkeypatch, caplog, changes, sentence, remedy):
    """Where vLLM has a path of its own it is taken; else its error comes, behind our reason in `auto`."""
    changes = dict(changes)
    gpu = changes.pop("gpu", None)
    if gpu is not None:
        Gpu(monkeypatch, **gpu)
    monkeypatch.setattr(support.envs, "VLLM_BATCH_INVARIANT", changes.pop("is_invariant", False))
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


ALL_CONSTANTS = {"swiglu_alpha": 1.7, "swiglu_beta": 1.0, "swiglu_limit": 7.0}


@pytest.mark.parametrize(
    "changes",
    [
        {"has_bias": True, **EVERY, "biases": support.ON_THE_FIRST_RANK},
        {"has_bias": True, "biases": support.ON_EVERY_RANK},
        {**UNINTERLEAVE, **ALL_CONSTANTS},
        {"activation": Activation.SITU, "activation_situ_beta": 2.0},
        {"routing": {"scoring_func": "sigmoid", "use_grouped_topk": True}},
        {"routing": {"scoring_func": "sigmoid", "custom_routing_function": print}},
    ],
)
def test_layers_beside_those_that_are_refused_are_computed(monkeypatch, changes):
    assert isinstance(chosen(monkeypatch, "always", Theirs, **changes), TheirMethod)


def test_results_depend_on_the_batch_on_gpus_alone(monkeypatch):
    monkeypatch.setattr(support.envs, "VLLM_BATCH_INVARIANT", True)
    assert isinstance(chosen(monkeypatch, "always", Theirs), TheirMethod)
    for platform, is_invariant in ((Cpu(), True), (Gpu(monkeypatch), False)):
        monkeypatch.setattr(experts, "current_platform", platform)
        for kind in (experts.Fp4MoeExperts, experts.Fp4MoeBatchedExperts):
            assert kind._supports_batch_invariance() == is_invariant


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
    experts.post_gemm2_hook = None  # a reset
    assert experts.post_gemm2_hook is None
    with pytest.raises(NotImplementedError, match="FP4MOE_VLLM=off"):
        experts.post_gemm2_hook = print


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("always", mode.PluginRequest("always")),
        ({"mode": "always", "threads": 4}, mode.PluginRequest("always", 4)),
        ({"mode": "always", "threads": "four"}, mode.PluginRequest("always")),
        ({"mode": "always", "threads": -1}, mode.PluginRequest("always")),
        ({"mode": "always", "threads": mode.MAX_THREADS + 1}, mode.PluginRequest("always")),
        ({"mode": "always", "threads": True}, mode.PluginRequest("always")),
        ({"mode": "always", "numerics": None}, mode.PluginRequest("always")),
        ({"mode": "always", "numerics": 1}, mode.PluginRequest("always")),
        ({"mode": "always", "numerics": "lucky"}, mode.PluginRequest("always")),
        ({"mode": "always", "numerics": "nvfp4_emulation"}, mode.PluginRequest("always")),
        ({"mode": "allways"}, mode.PluginRequest()),
        ({"thread": 4}, mode.PluginRequest()),
        (["always"], mode.PluginRequest()),
        (None, mode.PluginRequest("off")),
    ],
)
def test_additional_config(monkeypatch, caplog, given, expected):
    """It goes before the environment; what is not understood is a warning, once."""
    monkeypatch.setenv(mode.VARIABLE, "off")
    monkeypatch.setattr(mode, "_additional_config", lambda: {"fp4moe": given})
    mode._warn.cache_clear()
    assert mode.current() == mode.current() == expected
    assert len(caplog.records) == (given not in ("always", None, {"mode": "always", "threads": 4}))


def test_the_largest_options_are_understood(monkeypatch, caplog):
    given = {"threads": mode.MAX_THREADS, "numerics": "fast"}
    monkeypatch.setattr(mode, "_additional_config", lambda: {"fp4moe": given})
    assert mode.current() == mode.PluginRequest("auto", mode.MAX_THREADS, "fast")
    assert not caplog.records


def test_numerics_are_those_that_the_cpu_engine_has():
    tensors = {
        "w13": torch.zeros(2, 64, 16, dtype=torch.uint8),
        "w13_scale": torch.full((2, 64, 1), 127, dtype=torch.uint8),
        "w2": torch.zeros(2, 32, 16, dtype=torch.uint8),
        "w2_scale": torch.full((2, 32, 1), 127, dtype=torch.uint8),
    }
    description = {"format": "mxfp4", "row_order": "halves", "activation": "silu", "top_k": 1}
    options = {"engine": "cpu", "threads": 1}
    with pytest.raises(fp4moe.UsageError) as caught:
        fp4moe.Layer.from_weights(tensors, description, numerics="lucky", **options)
    known = set(caught.value.expected.removeprefix("one of ").split(", "))
    assert known - {"nvfp4_emulation"} == set(mode.NUMERICS)
    for word in mode.NUMERICS:
        layer = fp4moe.Layer.from_weights(tensors, description, numerics=word, **options)
        assert layer.info()["numerics"] == word


@pytest.mark.parametrize(
    ("need", "sentence"),
    [
        (contract.Need("vllm_standins", "ExpertsModular._supports_current_device"), "has no ExpertsModular._"),
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


def logged(init):
    @functools.wraps(init)
    def call(self):
        return init(self)

    return call


class Registered(torch.nn.Module):
    """A layer that registers what others set, by an __init__ with a decorator."""

    @logged
    def __init__(self):
        super().__init__()
        self.register_buffer("expert_map", None)
        self.register_parameter("w13_bias", None)
        self.layer_name = "layer"


class Derived(Registered):
    def __init__(self):
        super().__init__()


def test_fields_are_registered_by_an_init_that_is_wrapped():
    for name in ("expert_map", "w13_bias", "layer_name"):
        assert hasattr(Derived(), name)
        assert contract._has_field(Registered, name) and contract._has_field(Derived, name)
    assert not contract._has_field(Derived, "swiglu_limit")


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
        ({"ordinal": 1}, "start one server for each GPU, with CUDA_VISIBLE_DEVICES"),
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


def test_graphs_hold_the_tokens_of_all_data_parallel_ranks():
    layer = Experts(2, 64, 32, Activation.SILU, "cpu")
    found = cases.processed(layer, 2).moe_kernel.fused_experts
    found.moe_config.moe_parallel_config.dp_size = 4
    assert found.largest_call() == (4 * 64, 2)


class Making(TheirMethod):
    """A method whose parameters are memory as it was."""

    def create_weights(self, layer, **sizes):
        names = ("w13_weight_packed", "w2_weight_scale", "w2_weight_global_scale", "w13_input_global_scale")
        for name in names:
            dtype = torch.float8_e4m3fn if name.endswith("weight_scale") else torch.uint8
            tensor = torch.full((2, 4), 7, dtype=torch.uint8).view(dtype)
            setattr(layer, name, torch.nn.Parameter(tensor, requires_grad=False))


@pytest.mark.parametrize("unpadded", [64, 48])
def test_what_no_checkpoint_fills_is_zero_where_a_transport_wants_another_size(unpadded):
    layer = torch.nn.Module()
    moe = cases.standins.sized_config(Activation.SILU, 1, 2, 64, 32)
    moe.hidden_dim_unpadded = unpadded
    target = dataclasses.replace(cases.NVFP4, parent=Making)
    make_method(moe, target, mode.PluginRequest()).create_weights(layer, hidden_size=64)
    for name, parameter in layer.named_parameters():
        is_zero = not parameter.view(torch.uint8).any()
        assert is_zero == (unpadded == 48 and "global" not in name), name


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
    method = make_method(moe, target, mode.PluginRequest())
    method.process_weights_after_loading(layer)
    x, by, ids = torch.ones(3, 64), torch.ones(3, 1), torch.zeros(3, 1, dtype=torch.int32)
    assert cases.apply(method, layer, x, by, ids).isfinite().all()


def test_cpus_of_openmp():
    assert weights.cpus("0-3,8 10-14:2") == {0, 1, 2, 3, 8, 10, 12, 14}
    assert weights.cpus("") == set()
