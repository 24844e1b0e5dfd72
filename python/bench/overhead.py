"""How much longer a call from Python takes than the kernel it ends in.

A tiny layer, one token, one thread: what is left is the way in and out. The kernel's time is taken
inside the module, interleaved with the calls, so that both see the same machine; the smallest of many
rounds counts. Bar: 15 microseconds.

On a GPU a call only enqueues: what counts is how soon it is back. Calls come in bursts that the
device's queue holds, and the device is waited for outside of what is timed; a graph of the same
call, replayed, is the way in without Python and checks. Bar: 8 microseconds for one token.

    python python/bench/overhead.py
    python python/bench/overhead.py --device cuda

What two sets of threads cost is measured apart: a layer of gpt-oss-20b is called between linear
layers of torch, once on torch's threads and once on its own (FP4MOE_OPENMP=0), in processes that take
turns.

    python python/bench/overhead.py --beside-torch
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import fp4moe
from fp4moe import cli

HIDDEN, EXPERTS, TOP_K = 64, 8, 4
ROUNDS, CALLS = 60, 200
BAR = 15e-6
BURST = 64  # calls, of at most seven launches; the device's queue holds 1024
DEVICE_BAR = 8e-6
DEVICE_TOKENS = (1, 64)  # one launch, a sequence of them
NO_GPU = 77  # this machine or build cannot


def seconds(call: Callable[[], object], calls: int = CALLS) -> float:
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - begin) / calls


def measure(layer: fp4moe.Layer, convert: Callable[[np.ndarray], Any]) -> dict[str, float]:
    """Microseconds beyond the kernel, of each way to call."""
    random = np.random.default_rng(1)
    x = convert(random.standard_normal((1, HIDDEN)).astype(np.float32))
    logits = convert(random.standard_normal((1, EXPERTS)).astype(np.float32))
    ids, weights = layer.route(logits)
    out = layer.apply(x, ids, weights)
    ways: dict[str, Callable[[], object]] = {
        "apply": lambda: layer.apply(x, ids, weights),
        "apply(out=)": lambda: layer.apply(x, ids, weights, out),
        "run": lambda: layer.run(x, logits),
    }
    best = dict.fromkeys(["kernel", *ways], float("inf"))
    for _ in range(ROUNDS):
        best["kernel"] = min(best["kernel"], layer._time_apply(x, ids, weights, CALLS))
        for name, way in ways.items():
            best[name] = min(best[name], seconds(way))
    kernel = best.pop("kernel")
    beyond = {name: 1e6 * (value - kernel) for name, value in best.items()}
    return {**beyond, "kernel": 1e6 * kernel}


def enqueue(layer: fp4moe.Layer, tokens: int) -> dict[str, float]:
    """Microseconds until a call on a GPU is back, of each way to call, and of the device itself."""
    import torch

    import fp4moe.torch

    random = torch.Generator().manual_seed(1)
    x = torch.randn(tokens, HIDDEN, generator=random).bfloat16().cuda()
    logits = torch.randn(tokens, EXPERTS, generator=random).cuda()
    top = logits.topk(TOP_K)
    ids, weights = top.indices.int(), torch.softmax(top.values, -1)
    layer.reserve(tokens)
    out = layer.apply(x, ids, weights)
    moe, number = fp4moe.torch.MoE(layer), fp4moe.torch.handle(layer)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        layer.apply(x, ids, weights, out)
    ways: dict[str, Callable[[], object]] = {
        "apply": lambda: layer.apply(x, ids, weights),
        "apply(out=)": lambda: layer.apply(x, ids, weights, out),
        "run": lambda: layer.run(x, logits),
        "module": lambda: moe(x, ids, weights),
        "operator": lambda: torch.ops.fp4moe.apply(x, ids, weights, number),
        "graph replay": graph.replay,
    }
    best = dict.fromkeys([*ways, "device"], float("inf"))
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(ROUNDS):
        for name, way in ways.items():
            way()
            torch.cuda.synchronize()
            best[name] = min(best[name], seconds(way, BURST))
            torch.cuda.synchronize()
        begin.record()
        for _ in range(BURST):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        best["device"] = min(best["device"], begin.elapsed_time(end) / 1e3 / BURST)
    return {name: 1e6 * value for name, value in best.items()}


def make_layer(folder: str, **options: Any) -> fp4moe.Layer:
    path = Path(folder) / "layer"
    words = ["synth", "--model", "gpt-oss-20b", "--experts", str(EXPERTS), "--hidden", str(HIDDEN)]
    outcome = cli.call([*words, "--intermediate", "64", "-o", str(path)])
    if outcome.status != 0:
        raise SystemExit(outcome.err)
    return fp4moe.Layer.open(path, 0, **options)


def report_cpu(folder: str) -> dict[str, Any]:
    layer = make_layer(folder, threads=1)
    kinds: dict[str, Callable[[np.ndarray], Any]] = {"numpy": lambda values: values}
    try:
        import torch

        kinds["torch"] = torch.from_numpy
    except ImportError:
        pass
    figures = {kind: measure(layer, convert) for kind, convert in kinds.items()}
    worst = max(row[way] for row in figures.values() for way in ("apply", "apply(out=)"))
    return {"microseconds_beyond_the_kernel": figures, "bar": BAR * 1e6, "worst": worst}


def report_cuda(folder: str) -> dict[str, Any]:
    import torch

    layer = make_layer(folder, engine="cuda")
    if not torch.cuda.is_available():
        raise fp4moe.UnavailableError("torch sees no GPU", id="cuda.device")
    figures = {f"torch, tokens: {count}": enqueue(layer, count) for count in DEVICE_TOKENS}
    worst = figures[f"torch, tokens: {DEVICE_TOKENS[0]}"]["apply(out=)"]
    return {"microseconds_to_enqueue": figures, "bar": DEVICE_BAR * 1e6, "worst": worst}


def call_beside_torch(path: str) -> dict[str, Any]:
    """Milliseconds of a call with linear layers of torch before it, by tokens. The child's part."""
    import torch

    layer = fp4moe.Layer.open(path, 0)
    weight = torch.randn(5120, layer.hidden).bfloat16()
    result: dict[str, Any] = {"threads": layer.info()["threads"]}
    for tokens in (1, 8, 64):
        x = torch.randn(tokens, layer.hidden).bfloat16()
        logits = torch.randn(tokens, layer.experts)
        times = []
        for _ in range(40):
            torch.nn.functional.linear(x, weight)
            begin = time.perf_counter()
            layer.run(x, logits)
            times.append(time.perf_counter() - begin)
        result[f"{tokens} tokens"] = 1e3 * statistics.median(times)
    return result


def report_beside_torch(folder: str, rounds: int = 5) -> dict[str, Any]:
    path = str(Path(folder) / "whole")
    fp4moe.synth(path, model="gpt-oss-20b", experts_only=True)
    runs: dict[str, list[dict[str, Any]]] = {"torch's threads": [], "its own": []}
    for _ in range(rounds):
        for word, each in zip("10", runs.values()):
            done = subprocess.run(
                [sys.executable, __file__, "--beside-torch", "--path", path],
                env={**os.environ, "FP4MOE_OPENMP": word}, check=True, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            each.append(json.loads(done.stdout))
    medians = {
        name: {word: statistics.median(run[word] for run in each) for word in each[0]}
        for name, each in runs.items()
    }
    return {"milliseconds_of_a_call": medians}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--beside-torch", action="store_true", help="calls between torch's")
    parser.add_argument("--path", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.path:
        print(json.dumps(call_beside_torch(options.path)))
        return 0
    if options.beside_torch:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(report_beside_torch(folder), indent=2))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        try:
            report = report_cpu(folder) if options.device == "cpu" else report_cuda(folder)
        except (ImportError, fp4moe.UnavailableError) as why:
            print(f"overhead.py: {why}", file=sys.stderr)
            return NO_GPU
    print(json.dumps(report, indent=2))
    return 0 if report["worst"] <= report["bar"] else 1


if __name__ == "__main__":
    sys.exit(main())
