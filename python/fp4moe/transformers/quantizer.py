"""The quantizer: experts out before transformers loads, FP4 experts in when it has loaded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers.core_model_loading import revert_weight_conversion
from transformers.quantizers.base import HfQuantizer

from fp4moe import Model, errors
from fp4moe.errors import InvalidInputError, UnsupportedError
from fp4moe.transformers.activation import check_activation, configured_limit
from fp4moe.transformers.claims import check_modelopt, check_quark, check_transforms
from fp4moe.transformers.config import METHOD, Fp4MoeConfig
from fp4moe.transformers.experts import Fp4MoeExperts, Open
from fp4moe.transformers.linear import (
    Names,
    QuantizedLinear,
    check_scales,
    find_linears,
    ignored_keys,
    module_of,
    take_weight,
)
from fp4moe.transformers.source import Source

Facts = dict[str, Any]
Tensors = dict[str, torch.Tensor]


class Fp4MoeQuantizer(HfQuantizer):
    """Runs the routed experts of a checkpoint by fp4moe; all else stays transformers' own."""

    requires_calibration = False
    quantization_config: Fp4MoeConfig

    def __init__(self, quantization_config: Fp4MoeConfig, **kwargs: Any) -> None:
        super().__init__(quantization_config, **kwargs)
        self.pre_quantized = True  # whatever config.json says: the files decide
        self.source: Source | None = None
        self._linears: list[tuple[QuantizedLinear, str, nn.Linear]] = []
        self._dtype = torch.bfloat16
        self._place = "cpu"

    def validate_environment(self, *args: Any, device_map: Any = None, **kwargs: Any) -> None:
        """All of a model is on the CPU, or all of it on the first GPU."""
        places = device_map.values() if isinstance(device_map, dict) else [device_map]
        kinds = {_place(place) for place in places}
        if len(kinds) > 1 or not kinds <= {"cpu", "cuda"}:
            raise UnsupportedError(
                "fp4moe's experts run on the CPU or on the first GPU inside transformers",
                id="transformers.device",
                expected='device_map="cpu", or "cuda" where torch has a GPU',
                found=", ".join(sorted({str(place) for place in places})),
            )
        self._place = kinds.pop() if kinds else "cpu"

    def update_device_map(self, device_map: Any) -> Any:
        """What is left to transformers ("auto") is decided: the CPU."""
        return None if device_map is None else {"": self._place}

    def _process_model_before_weight_loading(
        self, model: Any, checkpoint_files: list[str] | None = None, **kwargs: Any
    ) -> Any:
        if not checkpoint_files:
            raise InvalidInputError(
                "FP4 experts are read from a checkpoint's files",
                id="transformers.files",
                expected="a checkpoint with safetensors files",
                found="a state_dict or nothing",
            )
        if getattr(model.config, "distributed_config", None) is not None:
            raise UnsupportedError(
                "fp4moe's experts are not spread over processes inside transformers",
                id="transformers.distributed",
                expected="one process",
                found="a distributed_config, tp_plan or tp_size",
            )
        self._dtype = kwargs.get("dtype") or model.dtype
        is_folder = self.quantization_config.is_folder
        self.source = Source(checkpoint_files, self._place if is_folder else None)
        self._adopt_modelopt()
        facts = {int(layer["index"]): layer for layer in self.source.model.info()["layers"]}
        ignored = set(model._keys_to_ignore_on_load_unexpected or ())
        names = Names(model)
        for name, module in _numbered(model).values():
            layer = facts.get(_number(name))
            if layer is None:
                self._check_plain(name)
                continue
            self._check(name, module, layer)
            model.set_submodule(name, Fp4MoeExperts(layer, _tensors_of(self.source, layer)))
            ignored.add(rf"(^|\.){re.escape(name)}\.")
        if not any(isinstance(module, Fp4MoeExperts) for module in model.modules()):
            raise UnsupportedError(
                "no experts of this model are ones that fp4moe can stand for",
                id="transformers.model",
                expected="modules that transformers' experts_implementation applies to, "
                "for the checkpoint's MoE layers",
                found=type(model).__name__,
            )
        if any(experts_modules(model)) and model.config._experts_implementation == METHOD:
            # What is left in full precision runs as it would without being asked for.
            model.set_experts_implementation(model.get_correct_experts_implementation(None))
        self._take_linears(model, names)
        taken = {name for linear, own, _ in self._linears for name in (linear.name, own)}
        model._keys_to_ignore_on_load_unexpected = ignored | ignored_keys(taken)
        return model

    def _take_linears(self, model: Any, names: Names) -> None:
        """Quantized modules outside the experts, once all of theirs is known to be applied."""
        assert self.source is not None
        stored = self.quantization_config.stored
        check_transforms(stored)
        inside = [_prefix(layer) for layer in self._layers()]
        linears = find_linears(self.source, inside)
        check_scales(self.source, linears, inside, names)
        self._linears = [(linear, *module_of(model, linear, names)) for linear in linears]
        check_quark(stored, self._linears)
        beside = self.source.document("hf_quant_config.json").get("quantization")
        check_modelopt((stored, beside), self._linears)
        for linear, _, module in self._linears:
            linear.check(module)
            take_weight(module)

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        assert self.source is not None
        numbers = {int(layer["index"]): at for at, layer in enumerate(self._layers())}
        for name, module in model.named_modules():
            if isinstance(module, Fp4MoeExperts):
                opens = opener(self.source.model, numbers[_number(name)], self.quantization_config)
                module.attach(opens, self._place)
        for linear, _, module in self._linears:
            weight = linear.dequantize().to(self._place, self._dtype)
            module.weight = nn.Parameter(weight, requires_grad=False)
        self._settle_types(model)
        return model

    def _settle_types(self, model: Any) -> None:
        """Some releases of transformers leave weights that they rename in the checkpoint's type."""
        kept = set(getattr(model, "_keep_in_fp32_modules", None) or ())
        kept |= set(getattr(model, "_keep_in_fp32_modules_strict", None) or ())
        floats = (torch.bfloat16, torch.float16, torch.float32)
        for name, parameter in model.named_parameters():
            is_kept = any(part in kept for part in name.split("."))
            if parameter.dtype in floats and parameter.dtype != self._dtype and not is_kept:
                parameter.data = parameter.data.to(self._dtype)

    def _layers(self) -> list[Facts]:
        assert self.source is not None
        return list(self.source.model.info()["layers"])

    def _adopt_modelopt(self) -> None:
        """ModelOpt may say all in a file of its own; what is saved says it in config.json."""
        assert self.source is not None
        beside = self.source.document("hf_quant_config.json").get("quantization")
        if self.quantization_config.stored is None and isinstance(beside, dict):
            ignored = {"ignore": beside["exclude_modules"]} if "exclude_modules" in beside else {}
            stored = {"quant_method": "modelopt", **beside, **ignored}
            self.quantization_config = self.quantization_config.adopting(stored)

    def _check_plain(self, name: str) -> None:
        """Experts that are not in FP4 must be there in full precision: weights are never invented."""
        assert self.source is not None
        pattern = re.compile(rf"(^|\.){_number(name)}\.(\w+\.)?experts\.")
        if not any(pattern.search(tensor) for tensor in self.source.names()):
            raise InvalidInputError(
                "the checkpoint has no experts for a layer of the model",
                id="transformers.layer",
                tensor=name,
                expected="tensors of its experts, in FP4 or in full precision",
                found="none",
            )

    def _check(self, name: str, module: Any, layer: Facts) -> None:
        assert self.source is not None
        if "error" in layer:
            raise errors.from_json(layer["error"])
        sizes = {"experts": module.num_experts, "has_bias": module.has_bias}
        for word, found in sizes.items():
            if layer[word] != found:
                raise InvalidInputError(
                    f"model and checkpoint do not agree on {word}",
                    id="transformers.shape",
                    tensor=name,
                    expected=f"{found}, as the model's code has it",
                    found=f"{layer[word]}",
                )
        if getattr(module, "has_post_expert_norm", False):
            raise UnsupportedError(
                "the model normalizes each expert's output, which fp4moe does not do",
                id="transformers.norm",
                tensor=name,
                expected="experts without a norm",
                found=type(module).__name__,
            )
        limit = configured_limit(self.source.document("config.json"))
        check_activation(module, str(layer["activation"]), limit, name)

    def get_state_dict_and_metadata(self, model: Any) -> tuple[dict[str, Any], dict[str, str]]:
        """The model's tensors, and those of experts as they were in the checkpoint."""
        if self.source is not None and self.source.is_converted:
            raise UnsupportedError(
                "experts in a converted folder are not in the checkpoint's form",
                id="transformers.converted",
                path=str(self.source.folder),
                expected="a model that was loaded from the checkpoint",
                found="one loaded from a folder of fp4moe convert",
                remedy="copy the folder, or write the checkpoint: fp4moe unconvert",
            )
        state: dict[str, Any] = model.state_dict()
        for module in model.modules():
            if isinstance(module, Fp4MoeExperts):
                state.update(_unchanged(model, module.checkpoint_tensors()))
        for linear, own, _ in self._linears:
            state.pop(f"{own}.weight", None)
            state.update(_unchanged(model, linear.tensors()))
        return state, dict(self.source.metadata) if self.source is not None else {}

    def is_serializable(self, *args: Any, **kwargs: Any) -> bool:
        """`save_pretrained` writes the checkpoint's own dialect."""
        return True

    @property
    def is_trainable(self) -> bool:
        """FP4 experts have no gradient."""
        return False

    @property
    def is_compileable(self) -> bool:
        """torch.compile works; the experts are one call in the graph."""
        return True

    def _dequantize(self, model: Any, dtype: Any = None) -> Any:
        raise UnsupportedError(
            "a loaded model's FP4 experts are not dequantized",
            id="transformers.dequantize",
            expected="experts in FP4",
            found="dequantize()",
            remedy="load again with transformers' own quantization_config and dequantize=True",
        )


def _place(request: Any) -> str:
    """The place that a request names: "cpu", "cuda" (the first GPU), or what was given."""
    if request in (None, "cpu", "auto", "balanced", "balanced_low_0", "sequential"):
        return "cpu"
    first = request in (0, "cuda", "cuda:0") or request == torch.device("cuda", 0)
    if first and torch.cuda.is_available():
        return "cuda"
    return "cpu" if request == torch.device("cpu") else str(request)


def opener(model: Model, number: int, options: Fp4MoeConfig) -> Open:
    """What opens a layer of a model on "cpu" or "cuda"."""
    return lambda place: model.layer(number, **options.layer_options(place))


def experts_modules(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Modules that `experts_implementation` applies to, by what its decorator gives them."""
    marks = ("has_gate", "has_bias", "is_transposed", "is_concatenated", "num_experts")
    for name, module in model.named_modules():
        if all(hasattr(module, mark) for mark in marks) and _number(name) >= 0:
            yield name, module


def _numbered(model: nn.Module) -> dict[int, tuple[str, Any]]:
    """Experts by their block's number, which is what a checkpoint's layers have in common."""
    result: dict[int, tuple[str, Any]] = {}
    for name, module in experts_modules(model):
        other = result.setdefault(_number(name), (name, module))[0]
        if other != name:
            raise UnsupportedError(
                "two modules could be the experts of one layer of the checkpoint",
                id="transformers.model",
                tensor=name,
                expected="one module for each number",
                found=other,
            )
    return result


def _unchanged(model: Any, tensors: Tensors) -> Tensors:
    """What is to be saved, once it is known that transformers will not rename it."""
    renamed = set(revert_weight_conversion(model, tensors)) - set(tensors)
    if renamed:
        raise UnsupportedError(
            "transformers would save expert tensors under other names",
            id="transformers.names",
            tensor=min(renamed),
            expected="the names of the checkpoint",
            found=f"{len(renamed)} others",
            remedy="copy the checkpoint's own files",
        )
    return tensors


def _number(name: str) -> int:
    """The block's number: the last one in a module's name."""
    found = re.findall(r"(?:^|\.)(\d+)(?=\.|$)", name)
    return int(found[-1]) if found else -1


def _prefix(layer: Facts) -> str:
    return f"{layer['prefix']}experts."


def _tensors_of(source: Source, layer: Facts) -> Any:
    def read() -> dict[str, torch.Tensor]:
        return {name: source.tensor(name) for name in source.names(_prefix(layer))}

    return read
