"""What FP4 experts are worth inside transformers: speed and memory against the dequantized model.

    python python/bench/transformers_bench.py [--json] [--layers 24 --hidden 576 ...]

A random gpt-oss checkpoint is made on the spot. Each way of running it gets a process of its own:
`fp4moe` runs the experts in FP4, `dequantized` is what transformers does with the same files on a
CPU without Triton. Peak memory is the process's largest resident set less what it had when
everything was imported; both ways hold the same attention, embeddings and cache.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

WAYS = ("fp4moe", "dequantized")
SIZES = {"layers": 24, "hidden": 576, "intermediate": 576, "experts": 32}


def resident(key: str) -> int:
    """Bytes of this process: "VmRSS" now, "VmHWM" at most."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    return 0


def median_seconds(work: Callable[[], object], repeats: int) -> float:
    """The median of several runs, after one that does not count."""
    work()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def measure(way: str, path: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """One way, in this process: tokens per second and bytes."""
    import torch
    from transformers import AutoModelForCausalLM, Mxfp4Config
    from transformers.utils import logging

    import fp4moe.transformers

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    options: dict[str, Any] = {
        "fp4moe": {"quantization_config": fp4moe.transformers.Fp4MoeConfig()},
        "dequantized": {"quantization_config": Mxfp4Config(dequantize=True)},
    }
    before = resident("VmRSS")
    begin = time.perf_counter()
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16, **options[way])
    loading = time.perf_counter() - begin
    torch.manual_seed(1)
    prompt = torch.randint(0, model.config.vocab_size, (1, arguments.prompt))
    few = prompt[:, :8]

    def decode(tokens: int) -> Callable[[], object]:
        limits = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False}
        return lambda: model.generate(few, attention_mask=torch.ones_like(few), **limits)

    with torch.no_grad():
        prefill = median_seconds(lambda: model(prompt, logits_to_keep=1), arguments.repeats)
        short = median_seconds(decode(2), arguments.repeats)
        long = median_seconds(decode(2 + arguments.tokens), arguments.repeats)
    return {
        "way": way,
        "load_seconds": loading,
        "prefill_tokens_per_second": arguments.prompt / prefill,
        "decode_tokens_per_second": arguments.tokens / (long - short),
        "peak_bytes": resident("VmHWM") - before,
        "resident_bytes": resident("VmRSS") - before,
        "threads": torch.get_num_threads(),
    }


def compare(arguments: argparse.Namespace) -> dict[str, Any]:
    """Both ways in processes of their own, and how they compare."""
    import fp4moe

    sizes = {word: getattr(arguments, word) for word in SIZES}
    weights = sizes["layers"] * sizes["experts"] * 3 * sizes["hidden"] * sizes["intermediate"]
    report: dict[str, Any] = {"sizes": sizes, "bf16_expert_bytes": 2 * weights}
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model")
        fp4moe.synth(path, model="gpt-oss-20b", seed=1, **sizes)
        report["checkpoint_bytes"] = sum(file.stat().st_size for file in Path(path).iterdir())
        for way in WAYS:
            words = [sys.executable, __file__, *sys.argv[1:], "--way", way, "--path", path]
            done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
            report[way] = json.loads(done.stdout.splitlines()[-1])
    ours, theirs = (report[way] for way in WAYS)
    for word in ("prefill_tokens_per_second", "decode_tokens_per_second"):
        report[f"{word.split('_')[0]}_ratio"] = ours[word] / theirs[word]
    report["memory_ratio"] = ours["peak_bytes"] / theirs["peak_bytes"]
    report["resident_ratio"] = ours["resident_bytes"] / theirs["resident_bytes"]
    return report


def table(report: dict[str, Any]) -> str:
    """The report as text."""
    rows = [
        ("load, s", "load_seconds", 1.0, ""),
        ("prefill, tokens/s", "prefill_tokens_per_second", 1.0, "prefill_ratio"),
        ("decode, tokens/s", "decode_tokens_per_second", 1.0, "decode_ratio"),
        ("peak memory, MiB", "peak_bytes", 2.0**20, "memory_ratio"),
        ("resident memory, MiB", "resident_bytes", 2.0**20, "resident_ratio"),
    ]
    lines = [f"{'':22}{WAYS[0]:>12}{WAYS[1]:>14}{'ratio':>8}"]
    for title, word, unit, ratio in rows:
        values = [report[way][word] / unit for way in WAYS]
        last = f"{report[ratio]:8.2f}" if ratio else ""
        lines.append(f"{title:22}{values[0]:12.1f}{values[1]:14.1f}{last}")
    return "\n".join(lines)


def main() -> None:
    """Compare, or measure one way when called by itself."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for word, size in SIZES.items():
        parser.add_argument(f"--{word}", type=int, default=size)
    parser.add_argument("--prompt", type=int, default=128, help="tokens of the prefill")
    parser.add_argument("--tokens", type=int, default=16, help="tokens decoded")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--path", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.way:
        print(json.dumps(measure(arguments.way, arguments.path, arguments)))
        return
    report = compare(arguments)
    print(json.dumps(report, indent=2) if arguments.json else table(report))


if __name__ == "__main__":
    main()
