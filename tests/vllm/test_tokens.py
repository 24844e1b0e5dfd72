"""Models with FP4 experts give the tokens of their references in full precision, which vLLM runs itself."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from conftest import Outcome, always, generate, has_bf16, task

# Kinds, and whose witness has the same values.
KINDS = {
    "gpt-oss": "gpt-oss",
    "qwen3-nvfp4": "qwen3-nvfp4",
    "qwen3-modelopt": "qwen3-modelopt",
    "qwen3-mixed": "qwen3-modelopt",
    "qwen3-w4a16": "qwen3-modelopt",
    "qwen3-nvfp4a16": "qwen3-modelopt",
    "qwen3-quark-nvfp4": "qwen3-modelopt",
    "qwen3-mxfp4": "qwen3-mxfp4",
    "qwen3-quark": "qwen3-mxfp4",
    "deepseek-nvfp4": "deepseek-nvfp4",
}
# vLLM's, of all kinds.
METHODS = {
    "GptOssMxfp4MoEMethod",
    "CompressedTensorsW4A4Mxfp4MoEMethod",
    "CompressedTensorsW4A4Nvfp4MoEMethod",
    "ModelOptNvFp4FusedMoE",
    "QuarkNvfp4MoEMethod",
    "QuarkOCP_MX_MoEMethod",
}
IN_BF16 = [(kind, which) for kind in ("gpt-oss", "qwen3-nvfp4") for which in ("fp4", "witness")]
FOLDERS = ("gpt-oss", "qwen3-nvfp4", "qwen3-modelopt", "deepseek-nvfp4")


@pytest.fixture(scope="module")
def served(models: Path, cache: Path) -> dict[tuple[str, str, str], Outcome]:
    """What becomes of a kind's checkpoint, with a word for what is special; all in one process."""
    keys = [(kind, "fp4", "") for kind in KINDS]
    keys += [(kind, "witness", "") for kind in dict.fromkeys(KINDS.values())]
    keys += [(*pair, "bfloat16") for pair in IN_BF16 if has_bf16()]
    keys += [(kind, "native", "") for kind in FOLDERS]
    keys += [("gpt-oss", "fp4", "compiled"), ("gpt-oss", "native-tp2", "")]
    keys += [("gpt-oss", which, "off") for which in ("fp4", "native")]
    keys += [("gpt-oss", "fp4", "off in float32"), ("qwen3-nvfp4", "fp4", "off")]
    keys += [("gpt-oss", "native", "pt")]
    options = {
        "": {},
        "bfloat16": {"dtype": "bfloat16"},
        "compiled": {"enforce_eager": False},
        "off": {"additional_config": {"fp4moe": "off"}, "dtype": "bfloat16"},
        "off in float32": {"additional_config": {"fp4moe": "off"}},
        "pt": {"load_format": "pt"},
    }
    tasks = [task(models / kind / which, **options[word]) for kind, which, word in keys]
    return dict(zip(keys, generate(cache, tasks)))


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_the_witness(served, kind):
    found, exact = served[kind, "fp4", ""], served[KINDS[kind], "witness", ""]
    assert found.tokens == exact.tokens, found.refusal
    assert len({token for line in found.tokens for token in line}) > 8  # not one word


@pytest.mark.skipif(not has_bf16(), reason="vLLM's wheel has no BF16 kernels for this CPU")
def test_in_bf16_tokens_are_the_witness_but_for_ties(served):
    """Roundings of BF16 decide between tokens that are almost equally likely, and the rest differs then."""
    compared = 0
    for kind in ("gpt-oss", "qwen3-nvfp4"):
        found, exact = (served[kind, which, "bfloat16"] for which in ("fp4", "witness"))
        for line, pairs in enumerate(zip(found.tokens, exact.tokens)):
            for at, (one, other) in enumerate(zip(*pairs)):
                ours, theirs = found.likely[line][at], exact.likely[line][at]
                compared += 1
                if one != other:
                    gap = theirs[str(other)] - theirs.get(str(one), -100.0)
                    assert gap < 0.1, (kind, line, at, ours, theirs)
                    break
                assert abs(ours[str(one)] - theirs[str(one)]) < 0.1
    assert compared > 32


def test_the_log_says_once_who_computes_and_why(served):
    log = "".join(outcome.log for outcome in served.values())
    lines = re.findall(r"\((\w+)\) are computed by fp4moe: (.*)", log)
    assert len(lines) == len(set(lines)) and {name for name, _ in lines} == METHODS
    assert lines[0][0] == "GptOssMxfp4MoEMethod" and "No MXFP4 MoE backend" in lines[0][1]


def test_off_gives_back_what_fp4moe_adds_outside_the_experts(served):
    """Types of tokens, and kernels of linear layers."""
    refusal = served["gpt-oss", "fp4", "off in float32"].refusal
    assert "torch.float32 is not supported for quantization method" in refusal
    assert "fp4moe's mode is off" in served["qwen3-nvfp4", "fp4", "off"].refusal


# vLLM reads what the first process left, or, on a CPU, fails behind torch, which has read it.
READ_AGAIN = ("Directly load AOT compilation", "reason: 'function' object has no attribute 'finalize_loading'")


def test_compiled_graphs_give_the_same_and_again_beside_those_on_the_disk(models, cache, served):
    exact, first = served["gpt-oss", "fp4", ""], served["gpt-oss", "fp4", "compiled"]
    assert first.tokens == exact.tokens, first.refusal
    (again,) = generate(cache, [task(models / "gpt-oss" / "fp4", enforce_eager=False)])
    assert again.tokens == exact.tokens, again.refusal
    assert any(word in again.log for word in READ_AGAIN), again.log[-4000:]
    assert not any(word in first.log for word in READ_AGAIN)


def test_converted_folders_are_mapped(served):
    for kind in FOLDERS:
        found = served[kind, "native", ""]
        assert found.tokens == served[kind, "fp4", ""].tokens, found.refusal
        assert "are mapped from" in found.log and "are computed by" not in found.log


def test_folders_of_other_ranks_and_other_ways_to_load_are_refused(served):
    found = served["gpt-oss", "native-tp2", ""]
    assert "the converted folder is not this rank's" in found.refusal
    assert "set --load-format auto" in served["gpt-oss", "native", "pt"].refusal


RANKS = [("fp4", False), ("fp4", True), ("native-tp2", False), ("native-ep2", True)]


@pytest.fixture(scope="module")
def in_ranks(models: Path, cache: Path) -> dict[tuple[str, bool], Outcome]:
    """Two workers for each, spawned by one process, each on a CPU of its own."""
    first, second = sorted(os.sched_getaffinity(0))[:2]
    bind = f"{first}|{second}"  # by itself, vLLM wants a NUMA node for each rank
    ways = {"VLLM_WORKER_MULTIPROC_METHOD": "spawn", "VLLM_CPU_OMP_THREADS_BIND": bind}
    tasks = [
        task(models / "gpt-oss" / which, tensor_parallel_size=2, enable_expert_parallel=experts)
        for which, experts in RANKS
    ]
    return dict(zip(RANKS, generate(cache, tasks, **ways, **always())))


@pytest.mark.parametrize(("which", "experts"), RANKS)
def test_two_ranks_in_spawned_workers(served, in_ranks, which, experts):
    found = in_ranks[which, experts]
    assert found.tokens == served["gpt-oss", "fp4", ""].tokens, found.refusal
    assert ("are mapped from" in found.log) == which.startswith("native")


@pytest.fixture(scope="module")
def switched_off(models: Path, cache: Path) -> dict[str, Outcome]:
    """By the environment, before anything is registered."""
    whiches = ("fp4", "native")
    tasks = [task(models / "gpt-oss" / which, dtype="bfloat16") for which in whiches]
    return dict(zip(whiches, generate(cache, tasks, FP4MOE_VLLM="off")))


def test_off_leaves_vllm_as_it_is(served, switched_off):
    for found in (switched_off["fp4"], served["gpt-oss", "fp4", "off"]):
        assert "No MXFP4 MoE backend supports" in found.refusal
        assert "fp4moe:" not in found.log


def test_a_folder_needs_the_plug_in(served, switched_off):
    assert "Unknown quantization method: fp4moe" in switched_off["native"].refusal
    assert "only fp4moe reads a folder" in served["gpt-oss", "native", "off"].refusal
