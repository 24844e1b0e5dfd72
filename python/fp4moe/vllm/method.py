"""vLLM's layer methods on weights in memory: create, load, process, apply.

>>> import types
>>> from fp4moe.vllm.method import Mxfp4MoEMethod
>>> from fp4moe.vllm.oracle import Context, FusedMoEConfig
>>> config = FusedMoEConfig(num_experts=8, num_local_experts=8, experts_per_token=2, hidden_dim=128,
...                         intermediate_size_per_partition=128, context=Context(device="h100"))
>>> method, layer = Mxfp4MoEMethod(config), types.SimpleNamespace()
>>> method.create_weights(layer)
>>> method.mxfp4_backend.value, layer.w13_weight.shape
('TRITON', (8, 256, 64))
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from fp4moe.errors import UsageError
from fp4moe.vllm.oracle import arrays, mxfp4, nvfp4
from fp4moe.vllm.oracle.config import ExpertsClass, FusedMoEConfig, ask
from fp4moe.vllm.oracle.kernels import FusedMoEQuantConfig, KernelWeights, MoEKernel

# Of a parameter; numpy has no BF16, so biases there are float32.
TORCH_TYPES = {"u8": "uint8", "bf16": "bfloat16", "f32": "float32", "f8_e4m3": "float8_e4m3fn"}
NUMPY_TYPES = {"u8": "uint8", "bf16": "float32", "f32": "float32", "f8_e4m3": "uint8"}


class _Method:
    """What both methods share."""

    FORMAT = ""

    def __init__(
        self,
        moe: FusedMoEConfig,
        backend: Any,
        experts_cls: ExpertsClass | None,
        engine: str,
        threads: int,
        names: str,
    ) -> None:
        self.moe = moe
        self.experts_cls = experts_cls
        self.moe_kernel: MoEKernel | None = None
        self.weights: KernelWeights | None = None
        self._backend = backend
        self._engine, self._threads, self._names = engine, threads, names
        self._sizes = ask("buffers", self.FORMAT, moe, backend=backend, names=names)

    @property
    def skip_forward_padding(self) -> bool:
        """The kernel's quantizer pads tokens by itself."""
        return bool(self._sizes["skip_forward_padding"])

    @property
    def is_monolithic(self) -> bool:
        """The kernel is given logits and routes by itself."""
        return self.experts_cls is not None and self.experts_cls.is_monolithic

    def maybe_roundup_sizes(self) -> tuple[int, int]:
        """Hidden and intermediate size of the parameters."""
        return int(self._sizes["hidden"]), int(self._sizes["intermediate"])

    def create_weights(self, layer: Any) -> None:
        """Set zeroed parameters on the layer: torch's on a module of torch, else numpy's."""
        torch = sys.modules.get("torch")
        is_module = torch is not None and isinstance(layer, torch.nn.Module)
        for buffer in self._sizes["buffers"]:
            shape, dtype = tuple(buffer["shape"]), buffer["dtype"]
            if is_module:
                assert torch is not None
                result = torch.zeros(shape, dtype=getattr(torch, TORCH_TYPES[dtype]))
                parameter = torch.nn.Parameter(result, requires_grad=False)
                layer.register_parameter(buffer["name"], parameter)
            else:
                setattr(layer, buffer["name"], np.zeros(shape, NUMPY_TYPES[dtype]))

    def get_fused_moe_quant_config(self, layer: Any) -> FusedMoEQuantConfig | None:
        """Of the processed weights; None before."""
        return None if self.weights is None else self._quant_config(self.weights)

    def _quant_config(self, weights: KernelWeights) -> FusedMoEQuantConfig:
        raise NotImplementedError

    def apply(self, layer: Any, x: Any, topk_weights: Any, topk_ids: Any, out: Any = None) -> Any:
        """Tokens [T, H] through the experts that they were routed to."""
        return self._ready().apply(x, topk_weights, topk_ids, out)

    def apply_monolithic(self, layer: Any, x: Any, router_logits: Any, out: Any = None) -> Any:
        """Tokens [T, H] through the experts that their logits choose."""
        return self._ready().apply_monolithic(x, router_logits, out)

    def _ready(self) -> MoEKernel:
        if self.moe_kernel is None:
            raise UsageError(
                "a layer is applied before its weights are processed", id="vllm.order",
                expected="create_weights(), then process_weights_after_loading()", found="neither",
            )  # fmt: skip
        return self.moe_kernel

    def _parameter(self, layer: Any, name: str) -> Any:
        found = getattr(layer, name, None)
        if found is None and not name.endswith("_bias"):
            raise UsageError(
                "weights are processed before they are created", id="vllm.order", tensor=name,
                expected="create_weights() first", found="no parameter",
            )  # fmt: skip
        return found

    def _options(self) -> dict[str, Any]:
        hidden = self.moe.hidden_dim
        block = 32 if self.FORMAT == "mxfp4" else 16
        return {
            "is_act_and_mul": self.moe.is_act_and_mul,
            "tp_size": max(1, self.moe.moe_parallel_config.tp_size),
            "threads": max(1, self._threads),
            "hidden": hidden if hidden % block == 0 else 0,
            "takes_external": True,
        }


class Mxfp4MoEMethod(_Method):
    """Mxfp4MoEMethod and GptOssMxfp4MoEMethod: rows of w13 are interleaved for swigluoai."""

    FORMAT = "mxfp4"

    def __init__(self, moe: FusedMoEConfig, *, engine: str = "auto", threads: int = 0) -> None:
        """Choose the backend; UnsupportedError where there is none."""
        self.mxfp4_backend, experts = mxfp4.select_mxfp4_moe_backend(moe)
        super().__init__(moe, self.mxfp4_backend, experts, engine, threads, "")

    def process_weights_after_loading(self, layer: Any) -> None:
        """Pack the parameters and make the kernel; again whenever they changed."""
        if self.experts_cls is None:
            return
        convert = (
            mxfp4.convert_gpt_oss_weight_to_mxfp4_moe_kernel_format
            if self.moe.activation == "swigluoai"
            else mxfp4.convert_weight_to_mxfp4_moe_kernel_format
        )
        names = (
            "w13_weight", "w2_weight", "w13_weight_scale", "w2_weight_scale", "w13_bias", "w2_bias",
        )  # fmt: skip
        weights = convert(
            self.mxfp4_backend,
            layer,
            *(self._parameter(layer, name) for name in names),
            context=self.moe.context,
            **self._options(),
        )
        self.moe_kernel = mxfp4.make_mxfp4_moe_kernel(
            self._quant_config(weights),
            self.moe,
            self.experts_cls,
            self.mxfp4_backend,
            weights=weights,
            engine=self._engine,
            threads=self._threads,
        )
        self.weights = weights

    def _quant_config(self, weights: KernelWeights) -> FusedMoEQuantConfig:
        return mxfp4.make_mxfp4_moe_quant_config(
            self.mxfp4_backend,
            w1_scale=weights["w13_weight_scale"],
            w2_scale=weights["w2_weight_scale"],
            w1_bias=weights["w13_bias"],
            w2_bias=weights["w2_bias"],
            config=self.moe,
        )


class NvFp4MoEMethod(_Method):
    """ModelOptNvFp4FusedMoE, or with names="compressed-tensors" that one's method."""

    FORMAT = "nvfp4"

    def __init__(
        self,
        moe: FusedMoEConfig,
        activation_key: str | None = "nvfp4",
        *,
        names: str = "modelopt",
        engine: str = "auto",
        threads: int = 0,
    ) -> None:
        """Choose the backend; ``activation_key`` None: the checkpoint quantizes weights alone."""
        moe = moe.replace(activation_quant=activation_key or "none")
        self.nvfp4_backend, experts = nvfp4.select_nvfp4_moe_backend(
            moe, activation_key=activation_key
        )
        self._has_inputs = activation_key is not None
        super().__init__(moe, self.nvfp4_backend, experts, engine, threads, names)

    def process_weights_after_loading(self, layer: Any) -> None:
        """Pack the parameters and make the kernel; again whenever they changed."""
        packs = self._names == "compressed-tensors"

        def factor(modelopt: str, packed: str) -> Any:
            found = arrays.plain(self._parameter(layer, packed if packs else modelopt))
            return 1.0 / found if packs else found

        suffix = "_packed" if packs else ""
        weights = nvfp4.convert_to_nvfp4_moe_kernel_format(
            self.nvfp4_backend,
            layer,
            self._parameter(layer, f"w13_weight{suffix}"),
            self._parameter(layer, "w13_weight_scale"),
            factor("w13_weight_scale_2", "w13_weight_global_scale"),
            factor("w13_input_scale", "w13_input_global_scale") if self._has_inputs else None,
            self._parameter(layer, f"w2_weight{suffix}"),
            self._parameter(layer, "w2_weight_scale"),
            factor("w2_weight_scale_2", "w2_weight_global_scale"),
            factor("w2_input_scale", "w2_input_global_scale") if self._has_inputs else None,
            context=self.moe.context,
            **self._options(),
        )
        if self.experts_cls is not None:
            self.moe_kernel = nvfp4.make_nvfp4_moe_kernel(
                self._quant_config(weights),
                self.moe,
                self.experts_cls,
                self.nvfp4_backend,
                weights=weights,
                engine=self._engine,
                threads=self._threads,
            )
        self.weights = weights

    def _quant_config(self, weights: KernelWeights) -> FusedMoEQuantConfig:
        return nvfp4.make_nvfp4_moe_quant_config(
            self.nvfp4_backend,
            weights["w13_scale"],
            weights["w2_scale"],
            weights["w13_scale_2"],
            weights["w2_scale_2"],
            weights["a13_scale"],
            weights["a2_scale"],
            config=self.moe,
        )
