"""What the verbs give back: the objects of ``fp4moe ... --json`` as typed dictionaries.

A key that is there only sometimes belongs to a class that is not total. Tests compare every class
with what the program prints.
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from fp4moe.result_parts import Answer as Answer
from fp4moe.result_parts import Machine as Machine
from fp4moe.result_parts import Problem as Problem
from fp4moe.result_parts import Release as Release
from fp4moe.result_parts import Tolerance as Tolerance


class InspectOtherLayer(TypedDict):
    prefix: str
    number: int
    what: str


class ReportDevice(TypedDict):
    device: str
    explain: Answer
    plan: Answer


class ReportNumerics(TypedDict):
    backend: str
    diff: Answer


class ReportBench(TypedDict):
    layer: Answer | None
    records: list[dict[str, Any]]


class _Synth(TypedDict):
    schema_version: int
    command: str
    out: str
    layers: int
    seed: int
    bytes: int


class Synth(_Synth, total=False):
    model: str
    dialect: str
    format: str
    experts: int
    hidden: int
    intermediate: int
    defect: str
    shards: int
    seconds: float
    adapter_for: str
    form: str
    rank: int
    tensors: int


class InspectConfig(TypedDict, total=False):
    model_type: str
    layers: int
    experts: int
    top_k: int
    hidden: int
    intermediate: int
    swiglu_limit: float


class InspectLayer(TypedDict):
    format: str
    experts: int
    hidden: int
    intermediate: int
    row_order: str
    has_bias: bool
    has_input_scale: bool
    prefix: str
    numbers: list[int]


class InspectBytes(TypedDict):
    experts: int
    other: int
    files: int


class InspectFile(TypedDict):
    path: str
    bytes: int


class InspectTensor(TypedDict):
    name: str
    dtype: str
    shape: list[int]
    bytes: int
    file: str


_Recognized = TypedDict("_Recognized", {"recognized": bool, "recognised": bool})  # the latter: the old spelling


class _Inspect(_Recognized):
    schema_version: int
    config: InspectConfig
    layers: list[InspectLayer]
    other_layers: list[InspectOtherLayer]
    bytes: InspectBytes
    weights: int
    bits_per_weight: float
    types: dict[str, dict[str, int]]
    files: list[InspectFile]
    problems: list[Problem]


class Inspect(_Inspect, total=False):
    dialect: str
    format: str
    grouping: str
    evidence: str
    tensors: list[InspectTensor]


class _LintFinding(TypedDict):
    code: str
    severity: str
    file: str
    fact: str


class LintFinding(_LintFinding, total=False):
    layer: int
    expert: int
    tensor: str
    remedy: str
    fix: str


class LintFix(TypedDict):
    changes: list[dict[str, Any]]
    rescaled_scales: int
    rounded_scales: int
    worst_relative_change: float


class _Lint(TypedDict):
    schema_version: int
    path: str
    dialect: str
    errors: int
    warnings: int
    notes: int
    layers: int
    experts: int
    bytes_read: int
    seconds: float
    counts: dict[str, int]
    findings: list[LintFinding]


class Lint(_Lint, total=False):
    fix: LintFix


class PlanLayer(TypedDict):
    format: str
    experts: int
    hidden: int
    intermediate: int
    gated: bool
    has_bias: bool
    activation: str


class PlanSplit(TypedDict):
    ranks: int
    tp: int
    ep: int
    dp: int
    all2all: str
    rule: str
    intermediate_divided: int
    intermediate_most: int
    intermediate_least: int
    empty_ranks: int
    experts_most: int
    experts_least: int


class PlanBackend(TypedDict):
    backend: str
    chosen: bool
    refused: str | None
    layout: str
    before: dict[str, Any]
    after: dict[str, Any]
    padding_percent: dict[str, Any]
    buffers: list[dict[str, Any]]
    bytes: dict[str, Any]
    work_ratio: float
    memory_ratio: float
    transient_bytes: dict[str, Any]
    fits: bool | None


class PlanWire(TypedDict):
    exchange: str
    activations: str
    used: bool
    dispatch_bytes: float
    combine_bytes: float
    worst_dispatch_bytes: float
    worst_combine_bytes: float
    call_bytes: int


class _Plan(TypedDict):
    schema_version: int
    model: str
    policy: str
    mode: str
    device: str
    device_bytes: int
    layer: PlanLayer
    layers: int
    split: PlanSplit
    no_choice: str | None
    nearest_miss: str | None
    backends: list[PlanBackend]
    wire: list[PlanWire]
    splits_that_fit: list[str]
    notes: list[str]


class Plan(_Plan, total=False):
    vllm: Release | None


class VllmVersionsRelease(TypedDict):
    version: str
    date: str
    branched: str | None
    mxfp4: dict[str, Any]
    nvfp4: dict[str, Any]
    differs: str
    layouts: str


class VllmVersions(TypedDict):
    schema_version: int
    releases: list[VllmVersionsRelease]


class LayoutsLayout(TypedDict):
    layout: str
    generation: str
    format: str
    reads: str
    note: str
    order: str
    codes: str
    scales: str
    backends: list[str]


class Layouts(TypedDict):
    schema_version: int
    command: str
    layouts: list[LayoutsLayout]


class Doctor(TypedDict):
    schema_version: int
    healthy: bool
    build: dict[str, Any]
    machine: Machine
    platforms: list[dict[str, Any]]
    automatic_device: dict[str, Any]
    libraries: list[Any]
    vllm: dict[str, Any] | None
    threads: int
    kernels: list[dict[str, Any]]
    cuda_engine: dict[str, Any]
    environment: list[Any]


class ConvertLayer(TypedDict):
    index: int
    prefix: str
    file: str
    experts: int
    hidden: int
    hidden_padded: int
    intermediate: int
    intermediate_padded: int
    tensors: list[dict[str, Any]]


class _Convert(TypedDict):
    schema_version: int
    command: str
    out: str


class Convert(_Convert, total=False):
    layout: str
    generation: str
    backend: str
    dialect: str
    tp: str
    ep: str
    placement: str
    expert_bytes: int
    other_bytes: int
    threads: int
    memory_bytes: int
    layers: list[ConvertLayer]
    dry_run: bool
    device_warnings: list[str]
    vllm: Release | None
    files: int
    resumed_files: int
    linked_files: int
    damaged_files: int
    losses: list[str]
    warnings: list[str]
    seconds: float
    ranks: list[dict[str, Any]]


class Unconvert(TypedDict):
    schema_version: int
    command: str
    out: str
    dialect: str
    layers: int
    experts: int
    bytes: int
    files: int
    exact: bool
    losses: list[str]
    seconds: float


class Verify(TypedDict):
    schema_version: int
    command: str
    path: str
    layout: str
    generation: str
    backend: str
    layers: int
    files: int
    tensors: int
    bytes: int
    deep: bool
    findings: list[Problem]
    more_findings: int
    seconds: float


Transcode = TypedDict(
    "Transcode",
    {
        "schema_version": int,
        "command": str,
        "from": str,
        "to": str,
        "format": str,
        "layers": int,
        "experts": int,
        "expert_bytes": int,
        "other_bytes": int,
        "exact_scales": int,
        "files": int,
        "threads": int,
        "seconds": float,
        "notes": list[str],
        "out": str,
        "dry_run": bool,
    },
)


class Quantize(TypedDict):
    schema_version: int
    command: str
    out: str
    to: str
    format: str
    rule: str
    layers: int
    experts: int
    input_bytes: int
    expert_bytes: int
    other_bytes: int
    files: int
    threads: int
    seconds: float
    errors: dict[str, dict[str, Any]]
    notes: list[str]


class Merge(TypedDict):
    schema_version: int
    command: str
    out: str
    dry_run: bool
    dialect: str
    format: str
    rule: str
    experts: int
    all_experts: int
    raised_global_scales: int
    changed_bytes: int
    copied_bytes: int
    files: int
    threads: int
    seconds: float
    rounding_rms: float
    change_rms: float
    layers: list[dict[str, Any]]
    notes: list[str]


class _Report(TypedDict):
    schema_version: int
    command: str
    path: str
    name: str
    kind: Literal["checkpoint", "converted"]
    version: str
    date: str
    inspect: Answer
    scales: dict[str, Any]
    devices: list[ReportDevice]
    numerics: list[ReportNumerics]
    bench: ReportBench | None


class Report(_Report, total=False):
    lint: Answer
    verify: Answer


class _RunLayer(TypedDict):
    layer: int
    backend: str
    policy: str
    vllm: Release | None
    why: str
    layout: str
    engine: str
    kernel: str
    numerics: str
    activations: str
    routing: str
    monolithic: bool
    tokens: int
    hidden: int
    top_k: int
    weight_bytes: int
    load_seconds: float
    us: float
    allowed: Tolerance
    warnings: list[str]


class RunLayer(_RunLayer, total=False):
    rel_error: float
    cosine: float
    within_numerics: bool


class Run(TypedDict):
    schema_version: int
    command: str
    path: str
    input: str
    ranks: int
    exchange: str
    output: str
    layers: list[RunLayer]


class DiffDifference(TypedDict):
    elements: int
    unequal: int
    largest_value: float
    largest_difference: float
    rel_error: float
    rms_error: float
    cosine: float
    one_has_nan: bool
    first: dict[str, int] | None
    farthest: dict[str, int] | None


class DiffLayer(TypedDict):
    layer: int | None
    a: RunLayer
    b: RunLayer
    difference: DiffDifference
    allowed: Tolerance
    stage: str
    verdict: str


class _Diff(TypedDict):
    schema_version: int
    command: str


class Diff(_Diff, total=False):
    a: RunLayer
    b: RunLayer
    difference: DiffDifference
    allowed: Tolerance
    stage: str
    verdict: str
    layers: list[DiffLayer]
    within_numerics: bool


class _Bench(TypedDict):
    schema_version: int


class Bench(_Bench, total=False):
    machine: Machine
    device: dict[str, Any]
    ceilings: dict[str, Any]
    ceilings_by_threads: list[dict[str, Any]]
    results: list[dict[str, Any]]
    output: str
    series: int


class MatrixPolicy(TypedDict):
    policy: str
    format: str
    mode: str
    choices: list[dict[str, Any]]
    kernels: list[dict[str, Any]]


class Matrix(TypedDict):
    schema_version: int
    policies: list[MatrixPolicy]
