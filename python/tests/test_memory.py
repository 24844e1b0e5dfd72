"""Neither weights nor activations are copied."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import EXPERTS, synth

import fp4moe
from fp4moe import cli

PRIVATE = """
import re, sys
import numpy as np
import fp4moe

def private():
    return sum(map(int, re.findall(r"^Private_Dirty: *(\\d+) kB", open("/proc/self/smaps_rollup").read(), re.M))) * 1024

hidden = int(sys.argv[2])
before = private()
layer = fp4moe.Layer.open(sys.argv[1], 0, threads=1)
x = np.ones((1, hidden), np.float32)
layer.run(x, np.arange(layer.experts, dtype=np.float32)[None])
print(layer.info()["weights_bytes"], private() - before)
"""


def test_a_converted_folder_is_mapped_not_copied(tmp_path: Path):
    hidden = 1024
    folder = synth(
        tmp_path / "source", "--model", "gpt-oss-20b", "--experts", 32, "--hidden", hidden,
        "--intermediate", hidden, "--experts-only",
    )
    outcome = cli.call(["convert", str(folder), "-o", str(tmp_path / "converted"), "--backend", "CPU"])
    assert outcome.status == 0, outcome.err
    done = subprocess.run(
        [sys.executable, "-c", PRIVATE, str(tmp_path / "converted"), str(hidden)],
        capture_output=True, text=True, check=False,
    )
    assert done.returncode == 0, done.stderr
    weights, private = map(int, done.stdout.split())
    assert weights > 40e6
    assert private < weights / 8


def test_tokens_and_results_stay_where_they_are(witness):
    layer = fp4moe.Layer.open(witness.path, 0, threads=1)
    x = np.zeros((1, layer.hidden), np.float32)
    out = np.full_like(x, np.nan)
    address = out.ctypes.data
    references = sys.getrefcount(x), sys.getrefcount(out)
    for _ in range(100):
        layer.run(x, np.zeros((1, EXPERTS), np.float32), out=out)
    assert out.ctypes.data == address and np.isfinite(out).all()
    assert (sys.getrefcount(x), sys.getrefcount(out)) == references, "a call keeps its arrays"


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_calls_leak_nothing(witness, kind):
    make = np.asarray if kind == "numpy" else pytest.importorskip("torch").from_numpy
    layer = fp4moe.Layer.open(witness.path, 0, threads=1)
    x = make(np.zeros((64, layer.hidden), np.float32))
    logits = make(np.zeros((64, EXPERTS), np.float32))

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    def call(count: int) -> None:
        for _ in range(count):
            layer.run(x, logits)
            with pytest.raises(fp4moe.UsageError):
                layer.run(x, logits[1:])

    call(200)
    before = resident()
    call(2000)
    assert resident() - before < 8 << 20  # 2000 results would be 32 MB
