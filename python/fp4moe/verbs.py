"""The verbs of the command line as functions: a keyword for each option, their JSON as dictionaries.

Written by tools/make_docs.py from ``fp4moe help --json``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, cast

from fp4moe import commands, results, selection
from fp4moe.commands import Path, Progress


def inspect(path: Path, *, tensors: bool | None = None) -> results.Inspect:
    """Say what a checkpoint holds: dialect, layers, shapes."""
    return cast(results.Inspect, commands.checked("inspect", locals(), ["path"]))


def lint(
    path: Path,
    *,
    deep: bool | None = None,
    fix: Sequence[str] | None = None,
    force: bool | None = None,
    out: Path | None = None,
    threads: int | None = None,
    verbose: bool | None = None,
) -> results.Lint:
    """Find defects of a checkpoint, and repair some.

    Findings are the result, not an exception; ``fix=`` and ``out=`` repair some.
    """
    return cast(results.Lint, commands.checked("lint", locals(), ["path"]))


def explain(
    *,
    activation: str | None = None,
    activation_override: str | None = None,
    activation_quant: str | None = None,
    all2all: str | None = None,
    backend: str | None = None,
    bias: bool | None = None,
    capability: int | float | str | None = None,
    config: Path | None = None,
    dbo: bool | None = None,
    decomposed: bool | None = None,
    device: str | None = None,
    disable_inplace: bool | None = None,
    dp: int | None = None,
    env: Mapping[str, str] | Sequence[str] | None = None,
    ep: bool | int | None = None,
    eplb: bool | None = None,
    experts: int | float | str | None = None,
    format: str | None = None,
    gated: bool | None = None,
    gfx: str | None = None,
    hash_routing: bool | None = None,
    hidden: int | float | str | None = None,
    in_dtype: str | None = None,
    intermediate: int | float | str | None = None,
    lib: Sequence[str] | None = None,
    local_experts: int | float | str | None = None,
    log: Path | None = None,
    lora: bool | None = None,
    max_tokens: int | float | str | None = None,
    mode: str | None = None,
    model: str | None = None,
    pcp: int | None = None,
    platform: str | None = None,
    policy: str | None = None,
    router_logits_dtype: str | None = None,
    routing: str | None = None,
    shared_experts: bool | None = None,
    situ_beta: int | float | str | None = None,
    situ_linear_beta: int | float | str | None = None,
    skip_final_all_reduce: bool | None = None,
    sp: int | None = None,
    swiglu_alpha: int | float | str | None = None,
    swiglu_beta: int | float | str | None = None,
    swiglu_limit: int | float | str | None = None,
    top_k: int | float | str | None = None,
    tp: int | None = None,
    vllm: str | None = None,
    weight_transfer: bool | None = None,
) -> selection.Selection:
    """Say which backend a layer gets, and why not the others.

    Where nothing supports the layer, UnsupportedError has the same record as ``.record``.
    """
    return selection.select(locals())


def plan(
    path: Path | None = None,
    *,
    all2all: str | None = None,
    backend: str | None = None,
    device: str | None = None,
    dp: int | None = None,
    env: Mapping[str, str] | Sequence[str] | None = None,
    ep: int | None = None,
    format: str | None = None,
    lib: Sequence[str] | None = None,
    mode: Literal["strict", "compat"] | None = None,
    model: str | None = None,
    policy: str | None = None,
    tp: int | None = None,
    vllm: str | None = None,
) -> results.Plan:
    """Say what a model takes on each rank: sizes, padding, bytes."""
    return cast(results.Plan, commands.checked("plan", locals(), ["path"]))


def matrix(
    *,
    format: Literal["mxfp4", "nvfp4"] | None = None,
    mode: Literal["strict", "compat"] | None = None,
    policy: str | None = None,
    vllm: str | None = None,
) -> results.Matrix:
    """Tabulate what every backend can do and who gets which."""
    return cast(results.Matrix, commands.checked("matrix", locals(), []))


def vllm_versions() -> results.VllmVersions:
    """List releases of vLLM and the policy of each."""
    return cast(results.VllmVersions, commands.checked("vllm-versions", locals(), []))


def layouts(layout: str | None = None, *, places: str | None = None) -> results.Layouts:
    """List and draw the weight layouts of every backend."""
    return cast(results.Layouts, commands.checked("layouts", locals(), ["layout"]))


def doctor() -> results.Doctor:
    """Say what this build and machine have and which kernels run."""
    return cast(results.Doctor, commands.checked("doctor", locals(), []))


def convert(
    path: Path,
    out: Path | None = None,
    *,
    backend: str | None = None,
    device: str | None = None,
    dry_run: bool | None = None,
    ep: int | str | tuple[int, int] | None = None,
    experts_only: bool | None = None,
    generation: str | None = None,
    layout: str | None = None,
    max_memory: int | str | None = None,
    pad_hidden: int | None = None,
    pad_intermediate: int | None = None,
    params_dtype: Literal["bf16", "f16"] | None = None,
    placement: Literal["linear", "round-robin"] | None = None,
    policy: str | None = None,
    rank: int | None = None,
    resume: bool | None = None,
    threads: int | None = None,
    tp: int | str | tuple[int, int] | None = None,
    vllm: str | None = None,
    progress: Progress | None = None,
) -> results.Convert:
    """Write a checkpoint in a backend's layout, for one rank or all.

    One rank is ``tp=(0, 2)``; ``tp=2`` writes all. Ctrl-C is a KeyboardInterrupt that leaves
    nothing half done; ``resume=True`` goes on.
    """
    return cast(results.Convert, commands.checked("convert", locals(), ["path"]))


def unconvert(
    *path: Path,
    out: Path,
    accept_losses: bool | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> results.Unconvert:
    """Write the checkpoint that a folder was converted from.

    Of a split model one folder of each rank is needed.
    """
    return cast(results.Unconvert, commands.checked("unconvert", locals(), ["path"]))


def verify(
    path: Path,
    *,
    deep: bool | None = None,
    source: Path | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> results.Verify:
    """Prove that a converted folder is what its source gives.

    MismatchError where it is not.
    """
    return cast(results.Verify, commands.checked("verify", locals(), ["path"]))


def transcode(
    path: Path,
    out: Path | None = None,
    *,
    to: str,
    dry_run: bool | None = None,
    max_shard_size: int | str | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> results.Transcode:
    """Write a checkpoint in another dialect, bit for bit."""
    return cast(results.Transcode, commands.checked("transcode", locals(), ["path"]))


def quantize_checkpoint(
    path: Path,
    out: Path,
    *,
    format: Literal["mxfp4", "nvfp4"] | None = None,
    input_scale: int | float | str | None = None,
    max_shard_size: int | str | None = None,
    rule: str | None = None,
    separate_global_scales: bool | None = None,
    threads: int | None = None,
    to: str | None = None,
    progress: Progress | None = None,
) -> results.Quantize:
    """Quantize the experts of a BF16, F16 or F32 checkpoint."""
    return cast(results.Quantize, commands.checked("quantize", locals(), ["path"]))


def merge(
    checkpoint: Path,
    adapter: Path,
    out: Path | None = None,
    *,
    dry_run: bool | None = None,
    experts_only: bool | None = None,
    max_memory: int | str | None = None,
    max_shard_size: int | str | None = None,
    rule: str | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> results.Merge:
    """Merge a LoRA adapter into the experts of a checkpoint."""
    return cast(results.Merge, commands.checked("merge", locals(), ["checkpoint", "adapter"]))


def synth(
    out: Path,
    *,
    adapter_for: Path | None = None,
    adapter_form: Literal["per-expert", "wrapped", "swapped", "stacked", "shared"] | None = None,
    defect: str | None = None,
    dialect: str | None = None,
    experts: int | None = None,
    experts_only: bool | None = None,
    format: Literal["mxfp4", "nvfp4"] | None = None,
    grouping: Literal["per-expert", "fused"] | None = None,
    hidden: int | None = None,
    intermediate: int | None = None,
    layers: int | None = None,
    model: str | None = None,
    rank: int | None = None,
    seed: int | None = None,
    shards: int | None = None,
    threads: int | None = None,
    weight_only: bool | None = None,
    progress: Progress | None = None,
) -> results.Synth:
    """Make a seeded test checkpoint in any dialect."""
    return cast(results.Synth, commands.checked("synth", locals(), []))


def report(
    path: Path,
    out: Path | None = None,
    *,
    backend: Sequence[str] | None = None,
    bench: bool | None = None,
    device: Sequence[str] | None = None,
    ep: int | float | str | None = None,
    force: bool | None = None,
    policy: str | None = None,
    records: Path | Sequence[Path] | None = None,
    threads: int | None = None,
    tokens: int | None = None,
    tp: int | float | str | None = None,
    vllm: str | None = None,
    progress: Progress | None = None,
) -> results.Report:
    """Write one HTML page about a checkpoint: findings, scales, plans.

    Without ``out`` it gives the facts alone.
    """
    return cast(results.Report, commands.checked("report", locals(), ["path"]))


def run(
    path: Path,
    *,
    activations: str | None = None,
    adapter: Path | Sequence[Path] | None = None,
    backend: str | None = None,
    batch: int | None = None,
    check: bool | None = None,
    deadline: float | None = None,
    device: str | None = None,
    engine: str | None = None,
    ep: int | float | str | None = None,
    exchange: Literal["local", "batched", "gather", "all_to_all", "all_to_all_batched"] | None = None,
    input: Path | None = None,
    input_scale: str | None = None,
    layer: int | float | str | None = None,
    numerics: str | None = None,
    out: Path | None = None,
    placement: Literal["linear", "round-robin"] | None = None,
    policy: str | None = None,
    seed: int | None = None,
    threads: int | None = None,
    tokens: int | None = None,
    tp: int | float | str | None = None,
    vllm: str | None = None,
    weights: Literal["auto", "packed", "mapped"] | None = None,
) -> results.Run:
    """Run MoE layers on tokens, by any backend's numerics."""
    return cast(results.Run, commands.checked("run", locals(), ["path"]))


def diff(
    a: str,
    b: str,
    *,
    checkpoint: Path | None = None,
    input: Path | None = None,
    layer: int | float | str | None = None,
    seed: int | None = None,
    tokens: int | None = None,
    progress: Progress | None = None,
) -> results.Diff:
    """Compare two backends, splits, batch sizes or output files."""
    return cast(results.Diff, commands.checked("diff", locals(), ["a", "b"]))


def bench(
    benchmark: Literal["ceilings", "formats", "pack", "files", "select", "route", "layer", "plot"],
    *,
    activations: Sequence[str] | None = None,
    engine: Sequence[str] | None = None,
    format: str | None = None,
    layers: int | None = None,
    layout: str | None = None,
    megabytes: int | None = None,
    model: Path | None = None,
    numerics: Sequence[str] | None = None,
    out: Path | None = None,
    routing: str | None = None,
    scratch: Path | None = None,
    seconds: float | None = None,
    threads: str | int | Sequence[str] | Sequence[int] | None = None,
    tokens: str | int | Sequence[str] | Sequence[int] | None = None,
    warm_up: float | None = None,
) -> results.Bench:
    """Measure this machine, whole layers, codecs and conversion."""
    return cast(results.Bench, commands.checked("bench", locals(), ["benchmark"]))
