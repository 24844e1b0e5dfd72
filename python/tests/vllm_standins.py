"""Stand-ins for the few classes of vLLM that the plug-in's methods and experts touch.

They hold what those classes promise: the kernel prepares nothing, calls the experts with vLLM's
arguments, and finalizes by what the experts ask for. For machines without vLLM.
"""

from __future__ import annotations

import enum
import importlib.util
import sys
import types
from typing import Any

import torch


class ActivationFormat(enum.Enum):
    Standard = "standard"
    BatchedExperts = "batched_experts"


class Activation(enum.Enum):
    SILU = "silu"
    SWIGLUOAI = "swigluoai"
    SWIGLUOAI_UNINTERLEAVE = "swigluoai_uninterleave"
    SITU = "situ"
    RELU2 = "relu2"

    @property
    def is_gated(self) -> bool:
        return not self.value.endswith("_no_mul")


class ExpertsModular:
    def __init__(
        self, moe_config: Any, quant_config: Any, max_num_tokens: Any = None, num_dispatchers: Any = None
    ) -> None:
        self.moe_config, self.quant_config = moe_config, quant_config
        self.max_num_tokens, self.num_dispatchers = max_num_tokens, num_dispatchers


class Prepare:
    activation_format = ActivationFormat.Standard


class BatchedPrepare:
    """Tokens of each expert together, as an all-to-all would bring them."""

    activation_format = ActivationFormat.BatchedExperts
    CAPACITY = 16

    def max_num_tokens_per_rank(self) -> int:
        return self.CAPACITY

    def num_dispatchers(self) -> int:
        return 1

    def prepare(
        self, x: torch.Tensor, ids: torch.Tensor, experts: int, defer_input_quant: bool
    ) -> tuple[Any, Any, torch.Tensor]:
        if defer_input_quant:  # as all of vLLM's do
            raise NotImplementedError("BatchedPrepare does not support defer_input_quant=True.")
        return _dispatch(x, ids, experts)


class Kernel:
    def __init__(self, prepare_finalize: Any, fused_experts: Any) -> None:
        self.prepare_finalize, self.fused_experts = prepare_finalize, fused_experts
        self.is_monolithic = False

    def apply(
        self, hidden_states: Any, w1: Any, w2: Any, topk_weights: Any, topk_ids: Any, **others: Any
    ) -> torch.Tensor:
        others.pop("shared_experts")
        others.pop("shared_experts_input")
        experts, activation = self.fused_experts, others["activation"]
        x, meta = hidden_states, None
        batched = experts.activation_format() == ActivationFormat.BatchedExperts
        if batched:
            x, meta, places = self.prepare_finalize.prepare(
                hidden_states, topk_ids, w1.shape[0],
                defer_input_quant=experts.expects_unquantized_inputs,
            )  # fmt: skip
        count, tokens, n, k, top_k = experts.moe_problem_size(x, w1, w2, topk_ids)
        shapes = experts.workspace_shapes(
            tokens, n, k, top_k, others["global_num_experts"], count, meta, activation
        )
        output = x.new_empty(shapes[2])
        experts.apply(
            output=output, hidden_states=x, w1=w1, w2=w2, topk_weights=topk_weights,
            topk_ids=topk_ids, a1q_scale=None, a2_scale=None, workspace13=x.new_empty(shapes[0]),
            workspace2=x.new_empty(shapes[1]), expert_tokens_meta=meta, **others,
        )  # fmt: skip
        if not batched:
            return output
        rows = output.reshape(-1, k)[places].float() * topk_weights.float()[..., None]
        return rows.sum(1).to(hidden_states.dtype)


def _dispatch(x: torch.Tensor, ids: torch.Tensor, experts: int) -> tuple[Any, Any, torch.Tensor]:
    """[experts, capacity, hidden], the counts, and the row of each (token, choice)."""
    capacity = BatchedPrepare.CAPACITY
    batch = torch.full((experts, capacity, x.shape[1]), float("nan"), dtype=x.dtype, device=x.device)
    counts = [0] * experts
    places = torch.zeros_like(ids, dtype=torch.int64)
    for token, choices in enumerate(ids.tolist()):
        for choice, expert in enumerate(choices):
            batch[expert, counts[expert]] = x[token]
            places[token, choice] = expert * capacity + counts[expert]
            counts[expert] += 1
    numbers = torch.tensor(counts, dtype=torch.int32, device=x.device)
    return batch, types.SimpleNamespace(expert_num_tokens=numbers), places


class MethodBase:
    def __init__(self, moe: Any) -> None:
        self.moe, self.moe_kernel, self.moe_quant_config = moe, None, None

    def maybe_roundup_sizes(
        self, hidden_size: int, intermediate: int, act_dtype: Any, parallel: Any
    ) -> tuple[int, int]:
        return hidden_size, intermediate


class TheirMethod(MethodBase):
    """What the plug-in subclasses; its __init__ refuses, as vLLM's does where it has no backend."""

    def __init__(self, moe: Any) -> None:
        raise NotImplementedError("No MXFP4 MoE backend supports the deployment configuration.")


class TheirConfig:
    """A configuration of a checkpoint's quantization; vLLM has no method for its layers."""

    def get_name(self) -> str:
        return "theirs"

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        return [torch.bfloat16]

    def get_quant_method(self, layer: Any, prefix: str) -> Any:
        return TheirMethod(layer.moe_config)


class TheirCompressedConfig(TheirConfig):
    """compressed-tensors': all experts are in MXFP4."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config

    def _add_fused_moe_to_target_scheme_map(self) -> None:
        pass

    def get_scheme_dict(self, layer: Any, layer_name: str) -> dict[str, Any]:
        return {"weights": "mxfp4", "input_activations": None}

    def _is_mxfp4_w4a8_fp8(self, weight: Any, tokens: Any) -> bool:
        return False

    def _is_mxfp4(self, weight: Any) -> bool:
        return bool(weight == "mxfp4")


class LinearKernel:
    """A kernel of linear layers; vLLM's method of the layer has it."""

    def __init__(self, config: Any) -> None:
        self.config = config


def dispatch_cpu_unquantized_gemm(layer: Any, remove_weight: bool) -> None:
    layer.cpu_linear = torch.nn.functional.linear


class Loader:
    """vLLM's loader of whole models."""


class PlatformEnum(enum.Enum):
    CPU = "cpu"
    CUDA = "cuda"


class Platform:
    device_name = "a device"

    def is_cpu(self) -> bool:
        return not torch.cuda.is_available()

    def is_cuda(self) -> bool:
        return torch.cuda.is_available()


def has_vllm() -> bool:
    """Whether vLLM itself is installed."""
    found = sys.modules.get("vllm")
    return importlib.util.find_spec("vllm") is not None if found is None else bool(found.__spec__)


def install() -> None:
    """Put the modules where imports find them."""
    fused = "vllm.model_executor.layers.fused_moe"
    quantization = "vllm.model_executor.layers.quantization"
    compressed = f"{quantization}.compressed_tensors"
    moe = f"{compressed}.compressed_tensors_moe"
    result: dict[str, dict[str, Any]] = {
        "vllm": {},
        "vllm.config": {"get_current_vllm_config_or_none": lambda: None},
        "vllm.envs": {"VLLM_BATCH_INVARIANT": False},
        "vllm.platforms": {"current_platform": Platform(), "PlatformEnum": PlatformEnum},
        "vllm.model_executor": {},
        "vllm.model_executor.layers": {},
        "vllm.model_executor.layers.utils": {
            "dispatch_cpu_unquantized_gemm": dispatch_cpu_unquantized_gemm
        },
        "vllm.model_executor.kernels": {},
        "vllm.model_executor.kernels.linear": {
            "MxFp4LinearKernel": LinearKernel,
            "NvFp4LinearKernel": LinearKernel,
            "register_linear_kernel": lambda kernel_class, platform, kernel_type: None,
        },
        fused: {"FusedMoEMethodBase": MethodBase, "RoutedExperts": Routed},
        quantization: {"register_quantization_config": lambda name: lambda config: config},
        f"{quantization}.base_config": {"QuantizationConfig": TheirConfig},
        compressed: {},
        f"{compressed}.compressed_tensors": {"CompressedTensorsConfig": TheirCompressedConfig},
        moe: {},
        f"{moe}.compressed_tensors_moe_w4a4_mxfp4": named("CompressedTensorsW4A4Mxfp4MoEMethod"),
        f"{moe}.compressed_tensors_moe_w4a4_nvfp4": named("CompressedTensorsW4A4Nvfp4MoEMethod"),
        f"{moe}.compressed_tensors_moe_w4a8_mxfp4": named("CompressedTensorsW4A8Mxfp4MoEMethod"),
        f"{quantization}.modelopt": {
            "ModelOptNvFp4Config": TheirConfig,
            "ModelOptMixedPrecisionConfig": TheirConfig,
            **named("ModelOptNvFp4FusedMoE"),
        },
        f"{quantization}.mxfp4": {
            "GptOssMxfp4Config": TheirConfig,
            "Mxfp4Config": TheirConfig,
            **named("GptOssMxfp4MoEMethod", "Mxfp4MoEMethod"),
        },
        f"{quantization}.quark": {},
        f"{quantization}.quark.quark": {"QuarkConfig": TheirConfig},
        f"{quantization}.quark.quark_moe": {
            "_WEIGHT_QUANT_KEY_MAP": {},
            **named("QuarkNvfp4MoEMethod", "QuarkOCP_MX_MoEMethod"),
        },
        f"{quantization}.utils": {},
        f"{quantization}.utils.quant_utils": {"kFp8StaticTensorSym": object()},
        "vllm.model_executor.model_loader": {
            "DefaultModelLoader": Loader,
            "register_model_loader": lambda name: lambda loader: loader,
            "_LOAD_FORMAT_TO_MODEL_LOADER": {},
        },
        f"{fused}.modular_kernel": {
            "FusedMoEExpertsModular": ExpertsModular,
            "FusedMoEActivationFormat": ActivationFormat,
            "FusedMoEKernel": Kernel,
        },
        f"{fused}.all2all_utils": {"maybe_make_prepare_finalize": prepare},
        f"{fused}.config": {"FUSED_MOE_UNQUANTIZED_CONFIG": object()},
        f"{fused}.topk_weight_and_reduce": {
            "TopKWeightAndReduceNoOP": type("NoOP", (), {}),
            "TopKWeightAndReduceDelegate": type("Delegate", (), {}),
        },
    }
    for name, contents in result.items():
        module = sys.modules.setdefault(name, types.ModuleType(name))
        module.__path__ = []  # type: ignore[attr-defined]
        for key, value in contents.items():
            setattr(module, key, value)
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)


def named(*names: str) -> dict[str, type]:
    """Methods of vLLM's that refuse, by their names."""
    return {name: type(name, (TheirMethod,), {}) for name in names}


def prepare(moe: Any, **others: Any) -> Any:
    return BatchedPrepare() if moe.is_batched else Prepare()


def moe_config(layer: Any, activation: Activation, top_k: int, *, batched: bool = False) -> Any:
    """A FusedMoEConfig of a layer's parameters."""
    experts, hidden, half = layer.w2_weight.shape
    return sized_config(activation, top_k, experts, hidden, 2 * half, is_batched=batched)


def parallel_config(tp: tuple[int, int] = (0, 1), ep: tuple[int, int] = (0, 1)) -> Any:
    """A FusedMoEParallelConfig of one rank."""
    return types.SimpleNamespace(
        enable_eplb=False, tp_rank=tp[0], tp_size=tp[1], ep_rank=ep[0], ep_size=ep[1], dp_size=1
    )


def sized_config(
    activation: Activation, top_k: int, experts: int, hidden: int, intermediate: int, *,
    tp: tuple[int, int] = (0, 1), ep: tuple[int, int] = (0, 1), is_batched: bool = False,
) -> Any:  # fmt: skip
    """A FusedMoEConfig of one rank; sizes are the whole model's."""
    parallel = parallel_config(tp, ep)
    return types.SimpleNamespace(
        activation=activation, experts_per_token=top_k, num_local_experts=experts // ep[1],
        num_experts=experts, hidden_dim=hidden, hidden_dim_unpadded=hidden,
        intermediate_size_per_partition=intermediate // tp[1], has_bias=False,
        is_lora_enabled=False, moe_parallel_config=parallel, in_dtype=torch.bfloat16,
        max_num_tokens=64, max_capture_size=64, is_batched=is_batched,
    )  # fmt: skip


class Routed(torch.nn.Module):
    """A RoutedExperts layer without parameters, as one of a converted folder is."""

    ckpt_gate_proj_name, ckpt_up_proj_name, ckpt_down_proj_name = "gate_proj", "up_proj", "down_proj"
    use_grouped_topk, scoring_func, custom_routing_function = False, "softmax", None

    def __init__(self, activation: Activation, experts: int, name: str) -> None:
        super().__init__()
        self.activation = activation
        self.global_num_experts = experts
        self.apply_router_weight_on_input = False
        self.expert_map: torch.Tensor | None = None
        self.layer_name = name

    def _expert_routing_tables(self) -> None:
        return None

    def has_only(self, chosen: list[int], device: str) -> None:
        """Of all experts, this rank has these."""
        positions = torch.full((self.global_num_experts,), -1, dtype=torch.int32, device=device)
        for position, expert in enumerate(chosen):
            positions[expert] = position
        self.expert_map = positions


class Experts(Routed):
    """One of random MXFP4 weights, as vLLM's loader leaves it."""

    def __init__(
        self, experts: int, hidden: int, intermediate: int, activation: Activation,
        device: str, seed: int = 1, bias: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(activation, experts, f"model.layers.{seed}.mlp.experts.{id(self)}")
        result = torch.Generator().manual_seed(seed)

        def codes(*shape: int) -> torch.Tensor:
            return torch.randint(0, 256, shape, dtype=torch.uint8, generator=result)

        rows = 2 * intermediate
        tensors = {
            "w13_weight": codes(experts, rows, hidden // 2),
            "w2_weight": codes(experts, hidden, intermediate // 2),
            "w13_weight_scale": codes(experts, rows, hidden // 32) % 3 + 119,
            "w2_weight_scale": codes(experts, hidden, intermediate // 32) % 3 + 119,
        }
        if bias:
            tensors["w13_bias"] = torch.randn(experts, rows, generator=result).bfloat16()
            tensors["w2_bias"] = torch.randn(experts, hidden, generator=result).bfloat16()
        for name, tensor in tensors.items():
            parameter = torch.nn.Parameter(tensor.to(device), requires_grad=False)
            self.register_parameter(name, parameter)

    def part(self, chosen: list[int], seed: int) -> Experts:
        """The experts of one rank, with the map of all to them."""
        device = str(self.w2_weight.device)
        result = Experts(len(chosen), 64, 32, self.activation, device, seed)
        for name, parameter in list(self.named_parameters()):
            result.register_parameter(name, torch.nn.Parameter(parameter[chosen], requires_grad=False))
        result.global_num_experts = self.global_num_experts
        result.has_only(chosen, device)
        return result

    def halves(self) -> list[Experts]:
        """The same experts on two tensor-parallel ranks: rows of w13, columns of w2, one bias."""
        device, rows = str(self.w2_weight.device), self.w13_weight.shape[1]
        result = []
        for rank in range(2):
            part = Experts(1, 64, 32, self.activation, device, seed=40 + rank)
            part.global_num_experts = self.global_num_experts
            for name, parameter in list(self.named_parameters()):
                tensor = parameter.data
                if name.startswith("w13"):
                    # Gate and up one after the other, or interleaved.
                    groups = 1 if self.activation is Activation.SWIGLUOAI else 2
                    split = tensor.unflatten(1, (groups, rows // groups)).chunk(2, dim=2)[rank]
                    tensor = split.flatten(1, 2)
                elif name != "w2_bias":
                    tensor = tensor.chunk(2, dim=-1)[rank]
                elif rank != 0:  # vLLM adds it once
                    tensor = torch.zeros_like(tensor)
                tensor = tensor.contiguous()
                part.register_parameter(name, torch.nn.Parameter(tensor, requires_grad=False))
            result.append(part)
        return result


class NvFp4Experts(Routed):
    """One of random NVFP4 weights, as ModelOpt's names it, or llm-compressor's."""

    def __init__(
        self, experts: int, hidden: int, intermediate: int, device: str, *, is_packed: bool, seed: int = 5
    ) -> None:
        super().__init__(Activation.SILU, experts, f"model.layers.{seed}.mlp.experts.{id(self)}")
        random = torch.Generator().manual_seed(seed)
        rows = {"w13": (2 * intermediate, hidden), "w2": (hidden, intermediate)}
        for matrix, (count, columns) in rows.items():
            shape = (experts, count, columns)
            codes = torch.randint(0, 256, (*shape[:2], columns // 2), dtype=torch.uint8, generator=random)
            scales = torch.rand((*shape[:2], columns // 16), generator=random) + 0.5
            factors = (torch.rand(experts, generator=random) + 0.5) / 64
            if matrix == "w13":
                factors = factors[:, None].expand(-1, 2).contiguous()  # of gate and of up
            tensors = {
                f"{matrix}_weight{'_packed' if is_packed else ''}": codes,
                f"{matrix}_weight_scale": scales.to(torch.float8_e4m3fn),
                f"{matrix}_weight_{'global_scale' if is_packed else 'scale_2'}": (
                    1 / factors if is_packed else factors
                ),
            }
            for name, tensor in tensors.items():
                parameter = torch.nn.Parameter(tensor.to(device), requires_grad=False)
                self.register_parameter(name, parameter)
