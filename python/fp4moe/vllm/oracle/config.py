"""A request to the oracles: the layer, and whose rules hold on which machine."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Tuple, TypeVar, Union

import numpy as np

from fp4moe import _core, errors
from fp4moe.errors import UsageError
from fp4moe.selection import Selection

Backend = TypeVar("Backend", bound=enum.Enum)


@dataclass(frozen=True)
class Context:
    """Whose rules, and for which machine: what vLLM reads from its installation and its process.

    The default is vLLM's newest policy on this machine, with its packages and its environment.
    """

    policy: str = ""  # a date, "vllm:0.33.0", "latest", or "native"
    mode: str = "strict"  # "compat": with the reference's mistakes
    device: str = "auto"  # this machine, or one of `fp4moe explain --device`
    platform: str = ""  # or a device field by field: "cuda", "rocm", "xpu", "cpu"
    capability: str = ""  # "9.0"
    gfx: str = ""  # "gfx950"
    libraries: Sequence[str] | None = None  # absent: what the device has
    environment: Mapping[str, str] | None = None  # absent: the process's own, on this machine


@dataclass(frozen=True)
class FusedMoEParallelConfig:
    """How the layer is spread over ranks, as vLLM derives it."""

    tp_size: int = 1
    pcp_size: int = 1
    dp_size: int = 1
    ep_size: int = 1
    tp_rank: int = 0
    pcp_rank: int = 0
    dp_rank: int = 0
    ep_rank: int = 0
    sp_size: int = 1
    use_ep: bool = False
    all2all_backend: str = "allgather_reducescatter"
    enable_eplb: bool = False


@dataclass(frozen=True)
class FusedMoEConfig:
    """The layer, in vLLM's words. The defaults are gpt-oss-20b's; words are those of `explain`."""

    num_experts: int = 32  # of all ranks
    num_local_experts: int = 32
    experts_per_token: int = 4
    hidden_dim: int = 2880
    intermediate_size_per_partition: int = 2880
    activation: str = "swigluoai"
    is_act_and_mul: bool = True
    in_dtype: str = "bfloat16"
    router_logits_dtype: str = "bfloat16"
    routing_method: str = "Renormalize"
    moe_backend: str = "auto"
    is_lora_enabled: bool = False
    has_bias: bool = False
    disable_inplace: bool = True
    shared_experts: bool = False
    max_num_tokens: int = 256
    swiglu_limit: float | None = None
    swiglu_alpha: float | None = None
    swiglu_beta: float | None = None
    activation_situ_beta: float | None = None
    activation_situ_linear_beta: float | None = None
    activation_quant: str | None = None  # of the checkpoint: "mxfp8", "nvfp4", ...
    activation_override: str | None = None
    has_hash_routing: bool = False
    require_decomposed_backend: bool = False
    skip_final_all_reduce: bool = False
    enable_dbo: bool = False
    weight_transfer: bool = False
    moe_parallel_config: FusedMoEParallelConfig = field(default_factory=FusedMoEParallelConfig)

    # What routers of some methods need.
    num_expert_group: int = 0
    topk_group: int = 0
    e_score_correction_bias: Sequence[float] = ()
    routed_scaling_factor: float = 1.0
    apply_router_weight_on_input: bool = False
    expert_placement: str = "linear"

    context: Context = field(default_factory=Context)

    def replace(self, **fields: Any) -> FusedMoEConfig:
        """The same with other fields."""
        return dataclasses.replace(self, **fields)


@dataclass(frozen=True)
class ExpertsClass:
    """A class of experts of vLLM."""

    name: str
    is_monolithic: bool  # given logits, it routes by itself
    activation_format: str  # "standard" or "batched_experts"


class Selected(Tuple[Backend, Union[ExpertsClass, None]], Generic[Backend]):
    """What a selection returns: ``backend, experts_cls = select_...(config)``; ``.record`` has why."""

    record: Selection

    def __new__(
        cls, backend: Backend, experts_cls: ExpertsClass | None, record: Selection
    ) -> Selected[Backend]:
        result = super().__new__(cls, (backend, experts_cls))
        result.record = record
        return result

    @property
    def backend(self) -> Backend:
        """The member of the enumeration."""
        return self[0]

    @property
    def experts_cls(self) -> ExpertsClass | None:
        """The class, None where the reference has a function or no kernel."""
        return self[1]


def name_of(backend: object) -> str:
    """The name of a backend: of a member of an enumeration, vLLM's own too, or the name itself."""
    name = backend.value if isinstance(backend, enum.Enum) else backend
    if not isinstance(name, str):
        raise UsageError(
            "unknown backend", id="vllm.backend",
            expected="a member of the enumeration or its name", found=repr(backend),
        )  # fmt: skip
    return "None" if name == "NONE" else name


def word_of(value: Any) -> Any:
    """A field as a word: members of vLLM's enumerations and types of torch and numpy have one."""
    if isinstance(value, enum.Enum):
        return value.value if isinstance(value.value, str) else value.name
    if isinstance(value, np.dtype) or type(value).__module__ == "torch":
        return str(value).removeprefix("torch.")
    return value.item() if isinstance(value, np.generic) else value


def text_of(value: Any) -> Any:
    """A variable's value as the environment holds it."""
    return str(int(value)) if isinstance(value, (bool, int)) else value


def request(
    verb: str,
    format: str,
    config: FusedMoEConfig | None = None,
    context: Context | None = None,
    **more: Any,
) -> str:
    """A request for the compiled part."""
    words: dict[str, Any] = {"ask": verb, "format": format, **more}
    if "backend" in words:
        words["backend"] = name_of(words["backend"])
    if config is not None:
        layer = {
            name: word_of(value)
            for name, value in vars(config).items()
            if name not in ("context", "moe_parallel_config") and value is not None
        }
        layer["e_score_correction_bias"] = [float(x) for x in config.e_score_correction_bias]
        layer["parallel"] = vars(config.moe_parallel_config or FusedMoEParallelConfig())
        words["config"] = layer
        context = context or config.context
    given = context or Context()
    words["context"] = {
        name: {key: text_of(each) for key, each in value.items()}
        if isinstance(value, Mapping)
        else value
        for name, value in vars(given).items()
        if value is not None and value != ""
    }
    try:
        return json.dumps(words, default=list, allow_nan=False)
    except ValueError:
        raise UsageError(
            "a number of the request is not finite", id="vllm.ask",
            expected="finite numbers", found="NaN or infinity",
        ) from None  # fmt: skip


def ask(verb: str, format: str, *given: Any, **more: Any) -> Any:
    """The answer to `request`; fp4moe's errors where there is none."""
    return json.loads(_core.vllm_ask(request(verb, format, *given, **more)))


def select(
    format: str, members: type[Backend], none: Backend | None, config: FusedMoEConfig, entry: str = ""
) -> Selected[Backend]:
    """Ask for a selection; UnsupportedError with the record where the reference raises."""
    answer = ask("select", format, config, entry=entry)
    record = Selection(answer["record"])
    if "refused" in answer:
        why = errors.UnsupportedError(answer["refused"], id=answer["id"], line=answer["refused"])
        why.record = record
        raise why
    backend = members(record.backend) if record.backend else none
    assert backend is not None
    experts = (
        ExpertsClass(record.experts, bool(record["monolithic"]), str(record["activation_format"]))
        if record.experts
        else None
    )
    return Selected(backend, experts, record)


def kernel_classes(format: str, backend: object, context: Context | None) -> list[ExpertsClass]:
    """The classes of a backend in the order of trial."""
    return [
        ExpertsClass(one["name"], one["monolithic"], one["activation_format"])
        for one in ask("classes", format, None, context, backend=backend)
    ]
