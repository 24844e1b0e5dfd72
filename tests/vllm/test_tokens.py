"""Models with FP4 experts give the tokens of their references in full precision, which vLLM runs itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from conftest import always, generate, has_bf16

EAGER = {"enforce_eager": True}
INSIDE = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}  # fewer processes that import vLLM
# Kinds, and whose witness has the same values.
KINDS = {
    "gpt-oss": "gpt-oss",
    "qwen3-nvfp4": "qwen3-nvfp4",
    "qwen3-modelopt": "qwen3-modelopt",
    "qwen3-mixed": "qwen3-modelopt",
    "qwen3-mxfp4": "qwen3-mxfp4",
    "qwen3-quark": "qwen3-mxfp4",
}


def task(models: Path, kind: str, which: str, **options: Any) -> dict[str, Any]:
    return {"model": str(models / kind / which), "options": options}


def spawned() -> dict[str, str]:
    """Variables for two workers, each on a processor of its own."""
    first, second = sorted(os.sched_getaffinity(0))[:2]
    bind = f"{first}|{second}"  # by itself, vLLM wants a NUMA node for each rank
    ways = {"VLLM_WORKER_MULTIPROC_METHOD": "spawn", "VLLM_CPU_OMP_THREADS_BIND": bind}
    return {**ways, **INSIDE, **always()}


@pytest.fixture(scope="module")
def served(models: Path, cache: Path) -> dict[tuple[str, str], Any]:
    """Tokens of all models, in one process."""
    pairs = [(kind, "fp4") for kind in KINDS]
    pairs += [(kind, "witness") for kind in dict.fromkeys(KINDS.values())]
    found = generate(cache, [task(models, *pair, **EAGER) for pair in pairs], **INSIDE)
    return dict(zip(pairs, found)) | {("log", ""): generate.log}


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_the_witness(served, kind):
    assert served[kind, "fp4"] == served[KINDS[kind], "witness"]
    assert len({token for line in served[kind, "fp4"] for token in line}) > 8  # not one word


@pytest.mark.skipif(not has_bf16(), reason="vLLM's wheel has no BF16 kernels for this CPU")
def test_in_bf16_tokens_are_the_witness_but_for_ties(models, cache):
    """Roundings of BF16 decide between tokens that are almost equally likely, and the rest differs then."""
    pairs = [(kind, which) for kind in ("gpt-oss", "qwen3-nvfp4") for which in ("fp4", "witness")]
    tasks = [task(models, *pair, **EAGER, dtype="bfloat16") for pair in pairs]
    tokens = generate(cache, tasks, **INSIDE)
    compared = 0
    for ours in (0, 2):
        for line, exact in enumerate(tokens[ours + 1]):
            found = tokens[ours][line]
            for at, (one, other) in enumerate(zip(found, exact)):
                likely = [generate.likely[which][line][at] for which in (ours, ours + 1)]
                compared += 1
                if one != other:
                    gap = likely[1][str(other)] - likely[1].get(str(one), -100.0)
                    assert gap < 0.1, (pairs[ours], line, at, likely)
                    break
                assert abs(likely[0][str(one)] - likely[1][str(one)]) < 0.1
    assert compared > 32


def test_the_log_says_once_who_computes_and_why(served):
    lines = [line for line in served["log", ""].splitlines() if "are computed by fp4moe" in line]
    assert len(lines) == 5  # one for each of vLLM's methods
    assert "GptOssMxfp4MoEMethod" in lines[0] and "No MXFP4 MoE backend" in lines[0]


def test_compiled_graphs_give_the_same_and_again_from_the_disk(models, cache, served):
    for _ in range(2):  # the second process reads the first one's graphs
        (found,) = generate(cache, [task(models, "gpt-oss", "fp4")], **INSIDE)
        assert found == served["gpt-oss", "fp4"]


@pytest.mark.parametrize("experts", [False, True])
def test_two_ranks_in_spawned_workers(models, cache, served, experts):
    options = {"tensor_parallel_size": 2, "enable_expert_parallel": experts, **EAGER}
    tasks = [task(models, "gpt-oss", "fp4", **options)]
    (found,) = generate(cache, tasks, **spawned())
    assert found == served["gpt-oss", "fp4"]


def test_converted_folders_are_mapped(models, cache, served):
    pairs = [(kind, "native") for kind in ("gpt-oss", "qwen3-nvfp4", "qwen3-modelopt")]
    found = generate(cache, [task(models, *pair, **EAGER) for pair in pairs], **INSIDE)
    for (kind, _), tokens in zip(pairs, found):
        assert tokens == served[kind, "fp4"]
    assert "are mapped from" in generate.log and "are computed by" not in generate.log


@pytest.mark.parametrize("experts", [False, True])
def test_two_ranks_map_their_own_folders(models, cache, served, experts):
    which = "native-ep2" if experts else "native-tp2"
    options = {"tensor_parallel_size": 2, "enable_expert_parallel": experts, **EAGER}
    (found,) = generate(cache, [task(models, "gpt-oss", which, **options)], **spawned())
    assert found == served["gpt-oss", "fp4"]


def test_folders_of_other_ranks_are_refused(models, cache):
    with pytest.raises(AssertionError, match="the converted folder is not this rank's"):
        generate(cache, [task(models, "gpt-oss", "native-tp2", **EAGER)], **INSIDE)


def test_a_folder_needs_the_plug_in(models, cache):
    with pytest.raises(AssertionError, match="Unknown quantization method: fp4moe"):
        generate(cache, [task(models, "gpt-oss", "native", **EAGER)], FP4MOE_VLLM="off", **INSIDE)


def test_off_leaves_vllm_as_it_is(models, cache):
    with pytest.raises(AssertionError, match="No MXFP4 MoE backend supports"):
        tasks = [task(models, "gpt-oss", "fp4", **EAGER, dtype="bfloat16")]
        generate(cache, tasks, FP4MOE_VLLM="off", **INSIDE)
