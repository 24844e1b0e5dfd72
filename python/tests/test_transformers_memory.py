"""A model in FP4 takes the memory of its checkpoint, measured in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")

import fp4moe  # noqa: E402

# Prints what loading and a prompt of 600 tokens add to the process: the peak, and memory of its own
# that stays. malloc keeps what it likes of freed memory, 20 MB or none: it is made to give it back.
PROGRAM = """
import ctypes, gc, json, sys, torch
from transformers import AutoModelForCausalLM
import fp4moe.transformers

def kilobytes(key):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key + ":"))

def give_back():
    gc.collect()
    getattr(ctypes.CDLL(None), "malloc_trim", int)(0)

give_back()
before = {"VmHWM": kilobytes("VmRSS"), "RssAnon": kilobytes("RssAnon")}
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], experts_implementation="fp4moe")
with torch.no_grad():
    model(torch.arange(600)[None] % 200)
give_back()
print(json.dumps([1024 * (kilobytes(key) - size) for key, size in before.items()]))
"""


def run(*words: str) -> list[str]:
    """The lines that a Python program prints; threads have memory, so there are two everywhere."""
    threads = {"FP4MOE_THREADS": "2", "OMP_NUM_THREADS": "2"}
    blocks = {"MALLOC_MMAP_THRESHOLD_": str(128 << 10)}  # larger ones go back when they are freed
    done = subprocess.run(
        [sys.executable, *words],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, **threads, **blocks},
    )
    return done.stdout.splitlines()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_memory_is_that_of_the_checkpoint_and_a_layer(tmp_path: Path) -> None:
    layers, sizes = 8, {"hidden": 512, "intermediate": 512, "experts": 32}
    fp4moe.synth(tmp_path / "model", model="gpt-oss-20b", layers=layers, **sizes)
    weights = layers * 3 * 32 * 512 * 512
    checkpoint = sum(file.stat().st_size for file in (tmp_path / "model").iterdir())
    peak, stays = json.loads(run("-c", PROGRAM, str(tmp_path / "model"))[-1])
    buffers = 24 << 20  # of torch, and of a call of one layer: layers share them
    assert stays <= checkpoint + buffers
    code = 40 << 20  # pages of programs that are loaded late
    assert peak <= checkpoint + checkpoint / layers + buffers + code
    assert peak < 0.5 * 2 * weights
