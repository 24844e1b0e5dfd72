"""The plug-in's configurations and linear layers without vLLM, on a CPU."""

from __future__ import annotations

import abc
import dataclasses
import types

import pytest

torch = pytest.importorskip("torch")
from vllm_standins import Activation, Experts, has_vllm, moe_config  # noqa: E402

if has_vllm():
    pytest.skip("vLLM is here: tests/vllm holds the plug-in", allow_module_level=True)

import vllm_plugin_cases as cases  # noqa: E402
import vllm_standins  # noqa: E402

from fp4moe.vllm import plugin  # noqa: E402
from fp4moe.vllm.plugin import configs, contract, experts, folder, linear, mode  # noqa: E402
from fp4moe.vllm.plugin.methods import Fp4MoeMethod  # noqa: E402

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="layers would be on the GPU")

KERNELS = {16: linear.Fp4MoeNvFp4LinearKernel, 32: linear.Fp4MoeMxFp4LinearKernel}
# What a checkpoint's global scale is when vLLM's method hands the layer to its kernel: it multiplies.
FACTORS = {"mxfp4": None, "modelopt": 0.037, "compressed-tensors": 1 / 27}
PREFIX = "model.layers.0.mlp.experts"


def fp4_linear(factor: float | None, dtype: torch.dtype) -> tuple[torch.nn.Module, torch.Tensor]:
    """A linear layer as vLLM's method of it has it, and its weight by the definition."""
    random = torch.Generator().manual_seed(4)
    codes = torch.randint(0, 256, (48, 32), dtype=torch.uint8, generator=random)
    if factor is None:
        scales = torch.randint(119, 123, (48, 2), dtype=torch.uint8, generator=random)
        floats = torch.exp2(scales.float() - 127)
    else:
        scales = (torch.rand((48, 4), generator=random) + 0.5).to(torch.float8_e4m3fn)
        floats = scales.float()
    pairs = torch.stack((codes & 15, codes >> 4), -1).long()
    blocks = cases.E2M1[pairs].flatten(-2).reshape(48, floats.shape[1], -1) * floats[..., None]
    layer = torch.nn.Module()
    layer.weight = torch.nn.Parameter(codes, requires_grad=False)
    layer.weight_scale = torch.nn.Parameter(scales, requires_grad=False)
    if factor is not None:
        layer.weight_global_scale = torch.nn.Parameter(torch.tensor(factor), requires_grad=False)
    layer.params_dtype = dtype
    return layer, blocks.flatten(-2).double() * (1 if factor is None else factor)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", FACTORS)
def test_fp4_linear_layers_compute_with_their_dequantized_weights(name, dtype):
    layer, weight = fp4_linear(FACTORS[name], dtype)
    kernel = KERNELS[32 if name == "mxfp4" else 16](None)
    kernel.process_weights_after_loading(layer)
    random = torch.Generator().manual_seed(5)
    x, bias = (torch.randn(*shape, generator=random).to(dtype) for shape in ((5, 64), (48,)))
    exact = x.double() @ weight.T + bias.double()
    apart = (kernel.apply_weights(layer, x, bias).double() - exact).norm() / exact.norm()
    assert apart < (1e-5 if dtype is torch.float32 else 2**-7), float(apart)
    assert layer.weight.dtype == dtype and layer.weight_scale is None


@pytest.mark.parametrize("kernel", KERNELS.values())
def test_linear_layers_are_vllms_in_mode_off(monkeypatch, kernel):
    monkeypatch.delenv(mode.VARIABLE, raising=False)
    assert kernel.is_supported() == (True, None)
    for word in ("auto", "always"):
        monkeypatch.setattr(mode, "_additional_config", lambda word=word: {"fp4moe": word})
        assert kernel.is_supported() == (True, None)
    monkeypatch.setattr(mode, "_additional_config", lambda: {"fp4moe": "off"})
    assert kernel.is_supported() == (False, "fp4moe's mode is off")
    monkeypatch.setattr(mode, "_additional_config", dict)
    monkeypatch.setenv(mode.VARIABLE, "off")
    assert kernel.is_supported() == (False, "fp4moe's mode is off")


def routed() -> Experts:
    layer = Experts(2, 64, 32, Activation.SILU, "cpu")
    layer.moe_config = moe_config(layer, Activation.SILU, 1)
    return layer


def test_types_of_tokens_are_vllms_in_mode_off(monkeypatch):
    monkeypatch.setenv(mode.VARIABLE, "auto")
    ours = [torch.bfloat16, torch.float16, torch.float32]
    assert configs.GptOssMxfp4Config().get_supported_act_dtypes() == ours
    monkeypatch.setenv(mode.VARIABLE, "off")
    assert configs.GptOssMxfp4Config().get_supported_act_dtypes() == [torch.bfloat16]


def test_a_type_of_ours_is_refused_once_the_mode_is_known_to_be_off(monkeypatch):
    """vLLM asks a configuration for types before it says what additional_config is."""
    model = types.SimpleNamespace(dtype=torch.float32)
    known = types.SimpleNamespace(additional_config={"fp4moe": "off"}, model_config=model)
    monkeypatch.setenv(mode.VARIABLE, "auto")
    config = configs.GptOssMxfp4Config()
    assert torch.float32 in config.get_supported_act_dtypes()
    monkeypatch.setattr("vllm.config.get_current_vllm_config_or_none", lambda: known)
    with pytest.raises(ValueError, match=r"torch.float32 is not supported .* \(fp4moe's mode is off\)"):
        config.get_quant_method(routed(), PREFIX)
    model.dtype = torch.bfloat16
    with pytest.raises(NotImplementedError, match="No MXFP4 MoE backend"):  # vLLM's own
        config.get_quant_method(routed(), PREFIX)
    model.dtype, known.additional_config = torch.float32, {"fp4moe": "auto"}
    method = config.get_quant_method(routed(), PREFIX)
    assert isinstance(method, Fp4MoeMethod) and type(method).__name__ == "GptOssMxfp4MoEMethod"


class Runnable:
    """A method of vLLM's that runs; its kernels take BF16."""

    def __init__(self, kernel: object = None) -> None:
        self.kernel, self.created = kernel, False

    def create_weights(self, layer: torch.nn.Module, **sizes: int) -> None:
        self.created = True


class UnquantizedLinearMethod(Runnable):
    pass


class BaseKVCacheMethod(Runnable):
    pass


class QuarkKVCacheMethod(BaseKVCacheMethod):
    pass


class Scheme:
    """What compressed-tensors and Quark hang on a linear layer."""

    def __init__(self, kernel: object) -> None:
        self.kernel = kernel


def serving(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, method: Runnable) -> configs.QuarkConfig:
    """A configuration for a model with tokens of a type; vLLM has a method for its layers."""
    model = types.SimpleNamespace(dtype=dtype)
    known = types.SimpleNamespace(additional_config={}, model_config=model)
    monkeypatch.setattr("vllm.config.get_current_vllm_config_or_none", lambda: known)
    monkeypatch.setattr(vllm_standins.TheirConfig, "get_quant_method", lambda *given: method)
    monkeypatch.setenv(mode.VARIABLE, "auto")
    return configs.QuarkConfig()


VLLMS_WORDS = r"torch.float32 is not supported for quantization method theirs. Supported dtypes: \["


def test_experts_of_vllms_do_not_get_a_type_of_ours(monkeypatch):
    """Where vLLM would run, but not with these tokens, fp4moe computes."""
    monkeypatch.setattr(configs.QuarkConfig, "fp4moe_target", lambda *given: cases.TARGET)
    config = serving(monkeypatch, torch.float32, Runnable())
    assert isinstance(config.get_quant_method(routed(), PREFIX), Fp4MoeMethod)
    monkeypatch.setattr(configs.QuarkConfig, "fp4moe_target", lambda *given: None)  # INT8, say
    with pytest.raises(ValueError, match=VLLMS_WORDS):
        config.get_quant_method(routed(), PREFIX)
    refused = dataclasses.replace(cases.TARGET, refusal="transforms")
    monkeypatch.setattr(configs.QuarkConfig, "fp4moe_target", lambda *given: refused)
    with pytest.raises(ValueError, match=VLLMS_WORDS):
        config.get_quant_method(routed(), PREFIX)
    config = serving(monkeypatch, torch.bfloat16, Runnable())
    assert isinstance(config.get_quant_method(routed(), PREFIX), Runnable)


def test_linear_layers_of_vllms_do_not_get_a_type_of_ours(monkeypatch):
    """INT8, FP8 and the like; vLLM chooses kernels when it makes the weights."""
    layer = torch.nn.Module()
    method = serving(monkeypatch, torch.float32, Runnable(object())).get_quant_method(layer, "q_proj")
    with pytest.raises(ValueError, match=VLLMS_WORDS):
        method.create_weights(layer, input_size=64)
    layer.scheme = Scheme(object())
    with pytest.raises(ValueError, match=VLLMS_WORDS):
        method.create_weights(layer, input_size=64)
    method = serving(monkeypatch, torch.bfloat16, Runnable()).get_quant_method(layer, "q_proj")
    method.create_weights(layer, input_size=64)
    assert method.created


@pytest.mark.parametrize("kernel", KERNELS.values())
@pytest.mark.parametrize("is_on_the_layer", [False, True])
def test_linear_layers_with_our_kernels_get_every_type(monkeypatch, kernel, is_on_the_layer):
    layer = torch.nn.Module()
    if is_on_the_layer:
        layer.scheme = Scheme(kernel(None))
    given = Runnable(None if is_on_the_layer else kernel(None))
    method = serving(monkeypatch, torch.float32, given).get_quant_method(layer, "q_proj")
    method.create_weights(layer, input_size=64)
    assert method is given and method.created


@pytest.mark.parametrize("given", [None, UnquantizedLinearMethod(), QuarkKVCacheMethod()])
def test_layers_without_quantized_weights_get_every_type(monkeypatch, given):
    layer = torch.nn.Module()
    method = serving(monkeypatch, torch.float32, given).get_quant_method(layer, "q_proj")
    assert method is given
    if given is not None:
        method.create_weights(layer, input_size=64)


class GptOssRoutedExperts(Experts):
    """Loaded by gpt-oss's own loader."""


@pytest.mark.parametrize(
    ("kind", "biases"), [(GptOssRoutedExperts, "first"), (Experts, "every")]
)
def test_biases_of_quark_are_loaded_once_by_gpt_oss_alone(monkeypatch, kind, biases):
    layer = kind(2, 64, 32, Activation.SILU, "cpu")
    layer.moe_config = moe_config(layer, Activation.SILU, 1)
    config = configs.QuarkConfig()
    parent = configs.quark_moe.QuarkOCP_MX_MoEMethod
    config.get_quant_method_target = lambda *given: ("mx", None, parent)
    monkeypatch.setattr(configs.quark_moe, "_WEIGHT_QUANT_KEY_MAP", {"mxfp4": "mx"})
    assert config.fp4moe_target(layer, PREFIX).biases == biases


def test_off_in_the_environment_goes_before_additional_config(monkeypatch):
    found: list[str] = []
    for module in (configs, linear):
        monkeypatch.setattr(module, "register", lambda: found.append("registered"))
    monkeypatch.setattr(contract, "NEEDS", ())
    for request in ({"fp4moe": "always"}, {"fp4moe": {"mode": "auto"}}):
        monkeypatch.setattr(mode, "_additional_config", lambda request=request: request)
        monkeypatch.setenv(mode.VARIABLE, "off")
        plugin.register()
        assert not found
    monkeypatch.setenv(mode.VARIABLE, "auto")
    plugin.register()
    assert found == ["registered", "registered"]


def transformed(**applied: object) -> configs.CompressedTensorsConfig:
    """The configuration of a checkpoint with one transform."""
    groups = {"u": {"type": "hadamard", "apply": [applied]}}
    return configs.CompressedTensorsConfig({"transform_config": {"config_groups": groups}})


@pytest.mark.parametrize("location", ["input", "output", "somewhere"])
@pytest.mark.parametrize(
    "targets", [["Linear"], ["re:.*down_proj$"], [f"{PREFIX}.0.up_proj"], "re:.*mlp.*"]
)
def test_experts_behind_a_transform_are_refused(monkeypatch, location, targets):
    config = transformed(location=location, targets=targets, ignore="lm_head")
    monkeypatch.setenv(mode.VARIABLE, "always")
    with pytest.raises(NotImplementedError, match=f"rotates each {location}.*folded") as caught:
        config.get_quant_method(routed(), PREFIX)
    assert "FP4MOE_VLLM=off" in str(caught.value)


@pytest.mark.parametrize(
    "applied",
    [
        {"location": "weight_input", "targets": ["Linear"]},
        {"location": "q_attn", "targets": ["Qwen3MoeAttention"]},
        {"location": "input", "targets": ["re:.*o_proj$", "lm_head"]},
        {"location": "input", "targets": ["Linear"], "ignore": ["re:.*experts.*"]},
    ],
)
def test_other_transforms_do_not_concern_experts(monkeypatch, applied):
    monkeypatch.setenv(mode.VARIABLE, "always")
    assert isinstance(transformed(**applied).get_quant_method(routed(), PREFIX), Fp4MoeMethod)
    plain = configs.CompressedTensorsConfig({"transform_config": None})
    assert isinstance(plain.get_quant_method(routed(), PREFIX), Fp4MoeMethod)


def test_a_folder_of_experts_that_are_refused_is_not_mapped(tmp_path, monkeypatch):
    monkeypatch.setenv(mode.VARIABLE, "auto")
    target = dataclasses.replace(cases.TARGET, refusal="transforms; set FP4MOE_VLLM=off")
    with pytest.raises(NotImplementedError, match="transforms; serve its checkpoint, and set FP4MOE"):
        folder.choose_folder(routed(), PREFIX, lambda: target, str(tmp_path), routed)


def test_registration_puts_our_classes_in_the_place_of_vllms(monkeypatch):
    found: dict[str, type] = {}
    kinds: list[tuple[type, str]] = []
    for module in (configs, folder):
        monkeypatch.setattr(
            module,
            "register_quantization_config",
            lambda name: lambda config: found.setdefault(name, config),
        )
    monkeypatch.setattr(linear, "_registered", [])
    monkeypatch.setattr(
        linear, "register_linear_kernel", lambda kernel, platform, kind: kinds.append((kernel, kind))
    )
    monkeypatch.setattr(contract, "NEEDS", ())
    monkeypatch.setenv(mode.VARIABLE, "auto")
    for _ in range(2):
        plugin.register()
    assert found == {**configs.CONFIGS, "fp4moe": folder.FolderConfig}
    assert kinds == [(KERNELS[16], "nvfp4"), (KERNELS[32], "mxfp4")]


class Unfinished(abc.ABC):
    """Experts from a vLLM that asks for more."""

    @abc.abstractmethod
    def sum_up(self) -> None: ...


def test_a_class_of_ours_that_vllm_asks_more_of_keeps_the_plug_in_off(monkeypatch, caplog):
    monkeypatch.setattr(contract, "NEEDS", ())
    assert contract.check() == []
    monkeypatch.setattr(experts, "Fp4MoeExperts", Unfinished)
    monkeypatch.setenv(mode.VARIABLE, "auto")
    plugin.register()
    (record,) = caplog.records
    assert "stays off" in record.message and "Unfinished lacks sum_up" in record.message
