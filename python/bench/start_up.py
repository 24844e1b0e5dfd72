"""How long a model takes until its first token, and how much memory: checkpoint and converted folder.

A random gpt-oss-20b of a few layers, on a CPU: loaded from the checkpoint, whose experts are packed,
and from the folder that `fp4moe convert` made of it, whose experts are mapped. Each load is a
process of its own; the kinds are interleaved, the files are in the system's cache, the median counts.

    python python/bench/start_up.py --engine transformers --layers 15
    python python/bench/start_up.py --engine vllm --layers 15        # where vLLM is installed
    python python/bench/start_up.py --name MACHINE                   # a record in bench/results, too
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

KINDS = ("checkpoint", "folder")
RESULTS = Path(__file__).resolve().parents[2] / "bench" / "results"


class Watch(threading.Thread):
    """The largest memory of a process and its children, while it runs, in bytes."""

    def __init__(self, process: int) -> None:
        super().__init__(daemon=True)
        self.process, self.own, self.total = process, 0, 0
        self.is_over = threading.Event()

    def run(self) -> None:
        while not self.is_over.wait(0.1):
            found = [memory(each) for each in family(self.process)]
            self.own = max(self.own, sum(one for one, _ in found))
            self.total = max(self.total, sum(whole for _, whole in found))


def family(process: int) -> list[int]:
    """A process and all below it."""
    found, at = [process], 0
    while at < len(found):
        try:
            below = Path(f"/proc/{found[at]}/task/{found[at]}/children").read_text().split()
        except OSError:
            below = []
        found += [int(each) for each in below]
        at += 1
    return found


def memory(process: int) -> tuple[int, int]:
    """Memory of its own, and with the pages of mapped files."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0, 0
    sizes = {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines if " kB" in line}
    return sizes.get("RssAnon", 0) + sizes.get("RssShmem", 0), sizes.get("VmRSS", 0)


def load(engine: str, path: str, dtype: str) -> None:
    """Load, give one token, and say when each was done. The child's part."""
    begin = time.perf_counter()
    if engine == "vllm":
        from vllm import LLM, SamplingParams

        imported = time.perf_counter()
        options: dict[str, Any] = {"dtype": dtype, "enforce_eager": True, "max_model_len": 64}
        model = LLM(path, skip_tokenizer_init=True, kv_cache_memory_bytes=1 << 26, **options)
        loaded = time.perf_counter()
        prompt: Any = {"prompt_token_ids": [1, 2, 3]}
        params = SamplingParams(max_tokens=1, detokenize=False, temperature=0)
        answer = list(model.generate([prompt], params)[0].outputs[0].token_ids)
    else:
        import torch
        from transformers import AutoModelForCausalLM

        from fp4moe.transformers import register

        register()
        imported = time.perf_counter()
        way = {"experts_implementation": "fp4moe", "dtype": getattr(torch, dtype)}
        model = AutoModelForCausalLM.from_pretrained(path, **way)
        loaded = time.perf_counter()
        with torch.no_grad():
            answer = [int(model(torch.tensor([[1, 2, 3]])).logits[0, -1].argmax())]
    times = {"import": imported - begin, "load": loaded - imported}
    times["first_token"] = time.perf_counter() - loaded
    print("RESULT " + json.dumps({**times, "token": answer}), flush=True)


def measure(engine: str, path: Path, dtype: str) -> dict[str, Any]:
    """One load in a process of its own."""
    words = [sys.executable, __file__, "--engine", engine, "--dtype", dtype]
    words += ["--load", str(path)]
    quiet = {"FP4MOE_VLLM": "always", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1"}
    child = subprocess.Popen(
        words, stdout=subprocess.PIPE, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1", **quiet}
    )
    watch = Watch(child.pid)
    watch.start()
    said, _ = child.communicate()
    watch.is_over.set()
    watch.join()
    (line,) = [line for line in said.splitlines() if line.startswith("RESULT ")]
    sizes = {"peak_own_bytes": watch.own, "peak_bytes": watch.total}
    return {**json.loads(line.removeprefix("RESULT ")), **sizes}


def make(folder: Path, layers: int) -> dict[str, Path]:
    """The checkpoint and the folder made of it."""
    paths = {kind: folder / kind for kind in KINDS}
    run(["synth", "--model", "gpt-oss-20b", "--layers", str(layers), "-o", str(paths["checkpoint"])])
    add_class(paths["checkpoint"] / "config.json")
    run(["convert", str(paths["checkpoint"]), "-o", str(paths["folder"])])
    return paths


def run(words: list[str]) -> None:
    """A command of fp4moe."""
    from fp4moe import cli

    outcome = cli.call(words)
    assert outcome.status == 0, outcome.err
    print(outcome.out.strip().splitlines()[-1], file=sys.stderr)


def add_class(path: Path) -> None:
    """Without the class of the model, vLLM does not know that it generates."""
    document = {**json.loads(path.read_text()), "architectures": ["GptOssForCausalLM"]}
    path.write_text(json.dumps(document, indent=1))


def record(given: argparse.Namespace, runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """The machine, what was installed, and the figures of all runs with their medians."""
    from serve import cpu, versions

    words = [word for word in runs["folder"][0] if word != "token"]
    kinds = {
        kind: {
            word: {
                "median": round(statistics.median(run[word] for run in each), 2),
                "runs": [round(run[word], 2) for run in each],
            }
            for word in words
        }
        for kind, each in runs.items()
    }
    machine = {"cpu": cpu(), "threads": len(os.sched_getaffinity(0))}
    settings = {"layers": given.layers, "dtype": given.dtype, "rounds": given.rounds}
    return {"machine": machine, "versions": versions(), "engine": given.engine, **settings, **kinds}


def write(report: dict[str, Any], name: str) -> Path:
    """A record in the place of this machine's older one."""
    begin = f"{name}-start-up-{report['engine']}"
    for old in RESULTS.glob(f"{begin}-????-??-??.json"):
        old.unlink()
    path = RESULTS / f"{begin}-{datetime.date.today().isoformat()}.json"
    path.write_text(json.dumps(report, indent=1) + "\n")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=("transformers", "vllm"), default="transformers")
    parser.add_argument("--layers", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="bfloat16", help="float32 on a CPU without BF16")
    parser.add_argument("--files", type=Path, help="where the files are, or are made and stay")
    parser.add_argument("--name", help="of this machine, in the record's file name")
    parser.add_argument("--load", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.load:
        load(given.engine, given.load, given.dtype)
        return
    with tempfile.TemporaryDirectory() as place:
        folder = given.files or Path(place)
        paths = {kind: folder / kind for kind in KINDS}
        if not all(path.is_dir() for path in paths.values()):
            paths = make(folder, given.layers)
        runs: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
        for _ in range(given.rounds):
            for kind in KINDS:
                runs[kind].append(measure(given.engine, paths[kind], given.dtype))
                print(f"{kind}: {runs[kind][-1]}", file=sys.stderr)
        tokens = {str(run["token"]) for each in runs.values() for run in each}
        assert len(tokens) == 1, f"the kinds give different tokens: {tokens}"
        report = record(given, runs)
        print(json.dumps(report, indent=1))
        if given.name:
            print(write(report, given.name), file=sys.stderr)


if __name__ == "__main__":
    main()
