"""Selections as values: what is chosen, why not the others, and what nothing supports."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

import fp4moe

GPT_OSS = {"model": "gpt-oss-20b", "policy": "2026-04-24"}


def test_a_selection_is_the_record_with_its_main_parts_as_attributes() -> None:
    choice = fp4moe.explain(device="h100", **GPT_OSS)
    assert choice.backend == "TRITON" == choice["backend"]
    assert choice.device == "h100" and choice.policy == "2026-04-24"
    assert choice.would_run[0] == "TRITON" and "MARLIN" in choice.would_run
    assert (
        isinstance(choice, Mapping)
        and dict(choice) == choice.raw
        and len(choice) == len(choice.raw)
    )
    assert choice["device"]["capability"] == "9.0"
    assert repr(choice) == "<fp4moe.Selection TRITON on h100, policy 2026-04-24>"


def test_refusals_say_what_a_kernel_needs_and_what_is_there() -> None:
    choice = fp4moe.explain(device="h100", **GPT_OSS)
    (first, *_) = choice.why_not("FLASHINFER_TRTLLM_MXFP4_BF16")
    assert (first.code, first.requirement) == ("capability", "needs capability 10.x")
    assert first.fact == "this device is 9.0"
    assert str(first).startswith("FLASHINFER_TRTLLM_MXFP4_BF16: needs capability 10.x; this device")
    assert choice.why_not("TRITON") == [] and choice.why_not("MARLIN") == []
    assert fp4moe.explain(device="b200", **GPT_OSS).backend == first.backend


def test_a_selection_says_in_a_sentence_what_to_do() -> None:
    choice = fp4moe.explain(device="mi355x", model="openai/gpt-oss-120b", policy="2026-08-22")
    assert choice.summary.startswith("vLLM of 2026-08-22 runs gpt-oss-120b (mxfp4) on mi355x with")
    first = choice.to_change[0]
    assert (first.backend, first.steps) == ("AITER_MXFP4_BF16", ("set VLLM_ROCM_USE_AITER=1",))
    assert str(first) == "AITER_MXFP4_BF16: set VLLM_ROCM_USE_AITER=1"
    with pytest.raises(fp4moe.UnsupportedError, match="does not divide by the ranks"):
        fp4moe.explain(device="h100", model="gpt-oss-120b", policy="2026-08-22", tp=7)


def test_this_machine_can_always_compute_by_itself() -> None:
    choice = fp4moe.explain(model="qwen3-30b-a3b")
    assert choice.backend in ("CPU", "NATIVE_SM90", "NATIVE_SM80") and choice.policy == "native"


def test_what_nothing_supports_is_an_error_with_the_whole_record() -> None:
    with pytest.raises(fp4moe.UnsupportedError) as why:
        fp4moe.explain(device="cpu-arm", model="gpt-oss-20b", policy="2026-08-22")
    record = why.value.record
    assert isinstance(record, fp4moe.Selection) and record.backend is None
    assert why.value.code == 4 and why.value.id == "choice.backend"
    assert any("amx" in refusal.requirement for refusal in record.refusals)
    assert isinstance(why.value, RuntimeError)


def test_words_are_those_of_the_command_line() -> None:
    wide = fp4moe.explain(device="b200", model="deepseek-v3", policy="2026-04-24", tp=8, ep=True)
    assert "ep_size=8" in wide["layer"]["parallel"]
    plain = fp4moe.explain(device="h100", bias=False, hidden=2880, lib=["flashinfer"], **GPT_OSS)
    assert plain["layer"]["has_bias"] == "false" and plain["device"]["libraries"] == ["flashinfer"]
    steered = fp4moe.explain(device="mi355x", env={"VLLM_ROCM_USE_AITER": 1}, **GPT_OSS)
    assert steered["environment"] == {"VLLM_ROCM_USE_AITER": "1"}
    without = fp4moe.explain(device="h100", lib=["-triton_kernels"], **GPT_OSS)
    assert "triton_kernels" not in without["device"]["libraries"]


def test_wrong_words_name_the_right_ones() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'devise'"):
        fp4moe.explain(devise="h100")
    with pytest.raises(fp4moe.UsageError, match="h100") as why:
        fp4moe.explain(device="h10")
    assert why.value.id == "device.unknown" and "did you mean" in why.value.remedy
    with pytest.raises(TypeError, match="unexpected keyword argument 'all_devices'"):
        fp4moe.explain(all_devices=True)
    with pytest.raises(TypeError, match="bias: expected True or False, found str"):
        fp4moe.explain(bias="yes")
    with pytest.raises(TypeError, match="device: expected a text, number or path, found list"):
        fp4moe.explain(device=["h100"])
    with pytest.raises(fp4moe.UsageError):
        fp4moe.explain(tp=0)


def test_a_release_of_vllm_stands_for_its_policy() -> None:
    choice = fp4moe.explain(device="h100", model="deepseek-v3", vllm="0.33.0")
    assert (choice.policy, choice.backend) == ("vllm-0.33.0", "HUMMING")
    assert choice.raw["vllm"]["match"] == "exact"
    near = fp4moe.explain(device="h100", model="gpt-oss-20b", vllm="0.21")
    assert (near.policy, near.raw["vllm"]["match"]) == ("2026-04-24", "near")
    newest = fp4moe.vllm_versions()["releases"][-1]
    assert fp4moe.explain(device="h100", policy="latest").policy == newest["mxfp4"]["policy"]
    with pytest.raises(fp4moe.UsageError):
        fp4moe.explain(vllm="soon")
