#!/usr/bin/env python3
"""Runs every fuzzer on all processors, counts executions, tells coverage, keeps corpora small.

  tools/fuzz.py build/fuzz --seconds 60            every target for so long, several at a time
  tools/fuzz.py build/fuzz-fast --seconds 60       the same without the address sanitizer: more executions (make fuzz-fast)
  tools/fuzz.py build/fuzz --executions 1e8        until so many executions are done in all
  tools/fuzz.py build/fuzz --merge                 finds into the corpus: only what adds coverage stays
  tools/fuzz.py build/fuzz --coverage              edges covered by the corpus, for each source file
  tools/fuzz.py build/fuzz-coverage --lines        lines covered by the corpus (preset fuzz-coverage)

New inputs and findings go to BUILD/finds/TARGET; nothing else is written, but for --merge. Exit status 1: there were findings.
"""
import argparse
import json
import math
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CORPUS = ROOT / "tests/fuzz/corpus"
KINDS_OF_FINDING = ("crash-", "leak-", "timeout-", "oom-")
# What a target is about, for --coverage; the rest of the program is not counted.
SOURCES = {
    "adapter": ["checkpoint/lora/adapter_config.cpp", "checkpoint/lora/adapter_name.cpp"],
    "capi": ["capi/border.cpp", "capi/layer.cpp", "capi/model.cpp", "capi/explain.cpp"],
    "checkpoint": ["checkpoint/survey.cpp", "checkpoint/classify.cpp", "checkpoint/build_layer.cpp", "checkpoint/expert_reader.cpp"],
    "config": ["checkpoint/config.cpp", "checkpoint/expert_name.cpp"],
    "converted": ["convert/folder/converted_folder.cpp", "convert/folder/verify.cpp", "convert/folder/unconvert.cpp"],
    "gguf": ["tensor/files/gguf.cpp", "checkpoint/gguf_fields.cpp"],
    "journal": ["convert/folder/journal.cpp", "convert/folder/json_fields.hpp"],
    "json": ["base/json.cpp"],
    "manifest": ["convert/folder/manifest.cpp", "convert/folder/json_fields.hpp"],
    "question": ["runtime/selection_request.cpp", "oracle/layer_fields.cpp"],
    "safetensors": ["tensor/files/safetensors.cpp"],
    "store_index": ["tensor/files/store_index.cpp"],
    "tokenizer": ["checkpoint/tokenizer_json.cpp", "checkpoint/pre_tokenizer.cpp", "checkpoint/gguf_tokenizer.cpp"],
    "verbs": ["convert/folder/convert_folder.cpp", "convert/folder/folder_writer.cpp", "convert/folder/unconvert.cpp", "convert/folder/verify.cpp",
              "checkpoint/lint/lint.cpp", "checkpoint/edit/transcode.cpp", "checkpoint/edit/transcode_plan.cpp", "tensor/files/store_files.cpp"],
}


@dataclass
class Tally:
    executions: int = 0
    seconds: float = 0.0
    edges: int = 0
    new_inputs: int = 0
    findings: list = field(default_factory=list)

    def add(self, other: "Tally") -> None:
        self.executions += other.executions
        self.seconds += other.seconds
        self.edges = max(self.edges, other.edges)
        self.new_inputs += other.new_inputs
        self.findings += other.findings


def programs(build: Path, only: list) -> dict:
    found = {path.name.removesuffix("_fuzz"): path for path in sorted((build / "tests/fuzz").glob("*_fuzz"))}
    unknown = [name for name in only if name not in found]
    if unknown or not found:
        sys.exit(f"{build}/tests/fuzz has no fuzzer {', '.join(unknown) or 'at all: make fuzz builds them'}")
    return {name: path for name, path in found.items() if not only or name in only}


def options(finds: Path, seconds: int, seed: int) -> list:
    # No other process adds to its folders: they are read once.
    return [f"-max_total_time={seconds}", f"-seed={seed}", "-rss_limit_mb=4096", "-timeout=60", "-print_final_stats=1", "-print_funcs=0",
            "-reload=0", f"-artifact_prefix={finds}/"]


class Processors:
    """One for each process: where threads would wait for each other, a command starts none."""

    def __init__(self) -> None:
        self.free: queue.SimpleQueue = queue.SimpleQueue()
        for number in sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []:
            self.free.put(number)
        self.has_any = not self.free.empty() and shutil.which("taskset") is not None

    def run(self, words: list, **more) -> subprocess.CompletedProcess:
        if not self.has_any:
            return subprocess.run(words, **more)
        number = self.free.get()
        try:
            return subprocess.run(["taskset", "-c", str(number), *words], **more)
        finally:
            self.free.put(number)


PROCESSORS = Processors()


def numbers(output: str) -> Tally:
    stats = dict(re.findall(r"stat::(\w+):\s+(\d+)", output))
    edges = re.findall(r"\bcov: (\d+)", output)
    return Tally(int(stats.get("number_of_executed_units", 0)), 0.0, int(edges[-1]) if edges else 0,
                 int(stats.get("new_units_added", 0)))


def run(name: str, program: Path, build: Path, seconds: int, seed: int) -> Tally:
    """One process of one target. Folders of commands are made in memory where there is any."""
    finds = build / "finds" / name
    finds.mkdir(parents=True, exist_ok=True)
    before = set(finds.iterdir())
    shm = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()
    room = tempfile.mkdtemp(prefix="fp4moe_fuzz.", dir=shm)
    begin = time.monotonic()
    try:
        done = PROCESSORS.run([program, *options(finds, seconds, seed), finds, CORPUS / name], capture_output=True, text=True,
                              errors="replace", env={**os.environ, "TMPDIR": room})
    finally:
        shutil.rmtree(room, ignore_errors=True)
    tally = numbers(done.stderr)
    tally.seconds = time.monotonic() - begin
    tally.findings = [path for path in set(finds.iterdir()) - before if path.name.startswith(KINDS_OF_FINDING)]
    if done.returncode != 0 and not tally.findings:
        tally.findings = [f"{name}: status {done.returncode}: {done.stderr[-400:]}"]
    if tally.findings:
        (finds / "log").write_text(done.stderr)
    return tally


def search(targets: dict, build: Path, jobs: int, seconds: int, executions: float, minutes: float) -> int:
    """Rounds over all targets, until time or executions are spent; the first finding of a target ends it."""
    end = time.monotonic() + 60 * minutes
    first = 0  # of the targets that get more than one process where there are processors left
    tallies = {name: Tally() for name in targets}
    seed = int(time.time())
    print(f"{len(targets)} targets, {jobs} at a time, {seconds} s each, seeds from {seed}")
    while True:
        live = [name for name in targets if not tallies[name].findings]
        with ThreadPoolExecutor(jobs) as pool:
            names = [live[(first + i) % len(live)] for i in range(max(jobs, len(live)))] if live else []
            first += jobs - len(live)
            tasks = [(name, pool.submit(run, name, targets[name], build, seconds, seed := seed + 1)) for name in names]
            for name, task in tasks:
                tallies[name].add(task.result())
        total = sum(tally.executions for tally in tallies.values())
        if total >= executions or not live or time.monotonic() > end:
            break
        print(f"{total:,} executions", flush=True)
    print(f"{'target':<12} {'executions':>14} {'per second':>11} {'edges':>7} {'new inputs':>11}  findings")
    for name, tally in tallies.items():
        print(f"{name:<12} {tally.executions:>14,} {tally.executions / max(tally.seconds, 1e-9):>11,.0f} {tally.edges:>7} "
              f"{tally.new_inputs:>11}  {len(tally.findings)}")
    findings = [finding for tally in tallies.values() for finding in tally.findings]
    print(f"{total:,} executions, {len(findings)} findings")
    for finding in findings:
        print(f"  {finding}")
    return 1 if findings else 0


def merge(targets: dict, build: Path) -> int:
    for name, program in targets.items():
        corpus, finds = CORPUS / name, build / "finds" / name
        finds.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as small:
            # As few inputs as reach all edges; how often each is taken would keep many inputs of one kind.
            subprocess.run([program, "-set_cover_merge=1", "-use_counters=0", "-print_funcs=0", "-timeout=60", small, corpus, finds], check=True,
                           capture_output=True)
            before = len(list(corpus.glob("*")))
            shutil.rmtree(corpus, ignore_errors=True)
            shutil.copytree(small, corpus)
        kept = list(corpus.iterdir())
        size = sum(path.stat().st_size for path in kept)
        print(f"{name:<12} {before:>5} -> {len(kept):>5} inputs, {size:,} bytes")
    return 0


def coverage(targets: dict) -> int:
    for name, program in targets.items():
        output = subprocess.run([program, "-runs=0", "-print_coverage=1", CORPUS / name], capture_output=True, text=True,
                                errors="replace").stderr
        edges = {}
        for hit, of, source in re.findall(r"^(?:UN)?COVERED_FUNC: hits: \d+ edges: (\d+)/(\d+) .* (\S+?):\d+", output, re.M):
            short = source.split("src/fp4moe/")[-1]
            total = edges.setdefault(short, [0, 0])
            total[0] += int(hit)
            total[1] += int(of)
        for source in SOURCES.get(name, []):
            hit, of = edges.get(source, [0, 0])
            print(f"{name:<12} {source:<36} {hit:>5} of {of:>5} edges  {100 * hit / max(of, 1):5.1f} %")
    return 0


def lines(targets: dict) -> int:
    """Of each target's own sources: lines that its corpus runs. Markdown, for CONTRIBUTING.md."""
    def tool(name: str) -> str:
        return shutil.which(f"llvm-{name}") or shutil.which(f"llvm-{name}-14") or f"/usr/lib/llvm-14/bin/llvm-{name}"

    print("| target | inputs | source | lines covered |\n|---|---:|---|---:|")
    for name, program in targets.items():
        with tempfile.TemporaryDirectory() as folder:
            raw, merged = f"{folder}/raw", f"{folder}/merged"
            subprocess.run([program, "-runs=0", "-print_funcs=0", CORPUS / name], check=True, capture_output=True,
                           env={**os.environ, "LLVM_PROFILE_FILE": raw, "TMPDIR": folder})
            subprocess.run([tool("profdata"), "merge", "-sparse", raw, "-o", merged], check=True)
            libraries = [word for library in sorted(program.parents[2].glob("*.so")) for word in ("-object", library)]
            told = subprocess.run([tool("cov"), "export", "-summary-only", "-instr-profile", merged, program, *libraries], check=True,
                                  capture_output=True, text=True).stdout
        files = {file["filename"].split("src/fp4moe/")[-1]: file["summary"]["lines"] for file in json.loads(told)["data"][0]["files"]}
        inputs = len(list((CORPUS / name).iterdir()))
        for source in SOURCES.get(name, []):
            row = files.get(source, {"covered": 0, "count": 0})
            print(f"| {name} | {inputs} | `{source}` | {row['covered']} of {row['count']}, {100 * row['covered'] / max(row['count'], 1):.0f} % |")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("--seconds", type=int, default=60, help="of one process of a target")
    parser.add_argument("--executions", type=float, default=0, help="go on until there are so many in all")
    parser.add_argument("--minutes", type=float, default=math.inf, help="with --executions: no further round after so many")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at a time")
    parser.add_argument("--only", action="append", default=[], metavar="TARGET")
    parser.add_argument("--merge", action="store_true")
    parser.add_argument("--coverage", action="store_true")
    parser.add_argument("--lines", action="store_true")
    given = parser.parse_args()
    targets = programs(given.build.resolve(), given.only)
    if given.merge:
        return merge(targets, given.build.resolve())
    if given.lines:
        return lines(targets)
    if given.coverage:
        return coverage(targets)
    return search(targets, given.build.resolve(), given.jobs, given.seconds, given.executions, given.minutes)


if __name__ == "__main__":
    sys.exit(main())
