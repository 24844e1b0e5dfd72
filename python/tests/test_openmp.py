"""Layers compute on torch's threads where torch is loaded: each case is a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from conftest import synth  # noqa: E402

# What every case begins with: a layer of two threads, tokens, and the threads of this process.
BEGIN = """
import os, sys, threading
import numpy as np
WITH_TORCH = {with_torch}
if WITH_TORCH:
    import torch
    torch.set_num_threads(2)
    torch.ones(4096, 64) @ torch.ones(64, 64)  # its threads begin
import fp4moe
def tasks(): return len(os.listdir("/proc/self/task"))
before = tasks()
random = np.random.default_rng(1)
x = random.standard_normal((33, 512)).astype(np.float32)
logits = random.standard_normal((33, 8)).astype(np.float32)
layer = fp4moe.Layer.open({path!r}, 0, **{words})
y = layer.run(x, logits)
info = layer.info()
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = ("--experts", 8, "--hidden", 512, "--intermediate", 512)
    return synth(tmp_path_factory.mktemp("models") / "layer", "--model", "gpt-oss-20b", *shape)


def run(
    path: Path, then: str, variables: dict[str, str] | None = None, *, with_torch: bool = True, **words: Any
) -> str:
    begin = BEGIN.format(with_torch=with_torch, path=str(path), words=words)
    given = {**os.environ, **(variables or {})}
    given.pop("OMP_NUM_THREADS", None)
    done = subprocess.run(
        [sys.executable, "-c", begin + then], env=given, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_a_layer_starts_no_threads_beside_torchs(path):
    run(path, "assert not info['has_own_threads'] and info['threads'] == 2 and tasks() == before")


@pytest.mark.parametrize("variables", [{"FP4MOE_OPENMP": "0"}, {"FP4MOE_PIN": "1"}])
def test_it_can_be_turned_off(path, variables):
    then = "assert info['has_own_threads'] and info['threads'] == 2 and tasks() == before + 1"
    run(path, then, variables, threads=2)


def test_without_torch_threads_are_its_own(path):
    then = "assert info['has_own_threads'] and info['threads'] == 2 and tasks() == before + 1"
    run(path, then, with_torch=False, threads=2)


def test_a_number_that_is_asked_for_is_taken(path):
    run(path, "assert info['threads'] == 3", threads=3)
    run(path, "assert info['threads'] == 1", {"FP4MOE_THREADS": "1"})


def test_bits_are_the_same(path):
    then = "print(y.tobytes().hex())"
    found = [
        run(path, then),
        run(path, then, {"FP4MOE_OPENMP": "0"}),
        run(path, then, with_torch=False),
        run(path, then, threads=1),
    ]
    assert len(set(found)) == 1 and len(found[0]) > 1000


def test_callers_do_not_wait_for_each_other(path):
    """Layers, and torch beside them, from several threads at once."""
    run(path, f"""
other = fp4moe.Layer.open({str(path)!r}, 0)
wrong = []
def compute(mine):
    for _ in range(50):
        torch.ones(512, 64) @ torch.ones(64, 64)
        if not np.array_equal(mine.run(x, logits), y): wrong.append(1)
threads = [threading.Thread(target=compute, args=(each,)) for each in (layer, layer, other)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not wrong
""")  # fmt: skip


def test_a_refused_call_leaves_the_threads_usable(path):
    run(path, """
for bad in (np.full((33, 2), 9, np.int32), np.full((33, 2), -5, np.int32)):
    try: layer.apply(x, bad, np.ones((33, 2), np.float32))
    except fp4moe.UsageError: pass
    else: raise SystemExit(1)
assert np.array_equal(layer.run(x, logits), y)
""")  # fmt: skip


def test_a_fork_has_threads_of_its_own(path):
    """GNU's OpenMP waits for ever in a child whose parent has used it."""
    run(path, f"""
import warnings; warnings.simplefilter("ignore")
child = os.fork()
if child == 0:
    mine = fp4moe.Layer.open({str(path)!r}, 0, threads=2)
    good = np.array_equal(mine.run(x, logits), y) and mine.info()["has_own_threads"]
    os._exit(0 if good else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert np.array_equal(layer.run(x, logits), y)
""")  # fmt: skip


def test_a_wrong_word_is_refused(path):
    with pytest.raises(AssertionError, match="invalid value of FP4MOE_OPENMP"):
        run(path, "", {"FP4MOE_OPENMP": "yes"})
