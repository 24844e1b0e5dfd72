#!/usr/bin/env python3
"""Runs every fuzzer on all CPUs, counts executions, tells coverage, keeps corpora small.

  tools/fuzz.py build/fuzz --seconds 60            every target for so long, several at a time
  tools/fuzz.py build/fuzz-fast --seconds 60       the same without the address sanitizer: more executions (make fuzz-fast)
  tools/fuzz.py build/fuzz --executions 1e8        until so many executions are done in all
  tools/fuzz.py build/fuzz-fast --minutes 8        for so long on all CPUs; fast targets get more of them than slow ones
  tools/fuzz.py build/fuzz-fast --pack FILE.tar.gz programs, their libraries, corpora and this script, for a machine without a compiler:
                                                   unpack it there, then fuzz/tools/fuzz.py fuzz/build --minutes 8
  tools/fuzz.py build/fuzz --merge                 finds into the corpus: only what adds coverage stays
  tools/fuzz.py build/fuzz --coverage              edges covered by the corpus, for each source file
  tools/fuzz.py build/fuzz-coverage --lines        lines covered by the corpus (preset fuzz-coverage)

New inputs go to BUILD/finds/TARGET, findings to BUILD/finds/findings/TARGET, what their processes said to BUILD/finds/logs; nothing else is written, but for --merge. Exit status 1: there were findings.
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
import tarfile
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CORPUS = ROOT / "tests/fuzz/corpus"
KINDS_OF_FINDING = ("crash-", "leak-", "timeout-", "oom-")
# What a target is about, for --coverage; the rest of the program is not counted.
SOURCES = {
    "adapter": ["checkpoint/lora/adapter_config.cpp", "checkpoint/lora/adapter_name.cpp"],
    "capi": ["capi/border.cpp", "capi/layer.cpp", "capi/model.cpp", "capi/explain.cpp"],
    "checkpoint": ["checkpoint/survey.cpp", "checkpoint/survey_dialect.cpp", "checkpoint/survey_layer.cpp", "checkpoint/expert_reader.cpp"],
    "config": ["checkpoint/config.cpp", "checkpoint/expert_name.cpp"],
    "converted": ["convert/folder/converted_folder.cpp", "convert/folder/verify.cpp", "convert/folder/unconvert.cpp"],
    "gguf": ["tensor/files/gguf.cpp", "checkpoint/gguf_fields.cpp"],
    "journal": ["convert/folder/journal.cpp", "convert/folder/record_fields.hpp"],
    "json": ["base/json.cpp"],
    "manifest": ["convert/folder/manifest.cpp", "convert/folder/record_fields.hpp"],
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
    edges_before: int = 0  # of the corpus alone
    edges: int = 0
    new_inputs: int = 0
    findings: list = field(default_factory=list)

    def add(self, other: "Tally") -> None:
        self.executions += other.executions
        self.seconds += other.seconds
        self.edges_before = self.edges_before or other.edges_before
        self.edges = max(self.edges, other.edges)
        self.new_inputs += other.new_inputs
        self.findings += other.findings


def programs(build: Path, only: list) -> dict:
    found = {path.name.removesuffix("_fuzz"): path for path in sorted((build / "tests/fuzz").glob("*_fuzz"))}
    unknown = [name for name in only if name not in found]
    if unknown or not found:
        sys.exit(f"{build}/tests/fuzz has no fuzzer {', '.join(unknown) or 'at all: make fuzz builds them'}")
    return {name: path for name, path in found.items() if not only or name in only}


def options(findings: Path, seconds: int, seed: int) -> list:
    # No other process adds to its folders: they are read once. Findings lie elsewhere: read again, one would end every process.
    return [f"-max_total_time={seconds}", f"-seed={seed}", "-rss_limit_mb=4096", "-timeout=60", "-print_final_stats=1", "-print_funcs=0",
            "-reload=0", f"-artifact_prefix={findings}/"]


class Cpus:
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


CPUS = Cpus()


def numbers(output: str) -> Tally:
    stats = dict(re.findall(r"stat::(\w+):\s+(\d+)", output))
    executed = re.findall(r"^#(\d+)", output, re.M)  # of a process that a finding ended
    edges = [int(number) for number in re.findall(r"\bcov: (\d+)", output)]
    first = re.search(r"\bINITED\s+cov: (\d+)", output)
    return Tally(int(stats.get("number_of_executed_units", executed[-1] if executed else 0)), 0.0, int(first[1]) if first else 0,
                 edges[-1] if edges else 0, int(stats.get("new_units_added", 0)))


def environment(build: Path, folder: str) -> dict:
    """Of a packed build: its own libraries. Python packages that are installed here are not looked through again and again: the
    python3 on PATH is that of an environment without any."""
    empty = Path(folder) / "python"
    (empty / "bin").mkdir(parents=True)
    (empty / "pyvenv.cfg").write_text("include-system-site-packages = false\n")
    (empty / "bin/python3").write_text("")
    (empty / "bin/python3").chmod(0o755)
    libraries = {"LD_LIBRARY_PATH": str(build / "lib")} if (build / "lib").is_dir() else {}
    others = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH")}
    return {**others, **libraries, "TMPDIR": folder, "PATH": f"{empty}/bin:{others.get('PATH', '')}"}


def run(name: str, program: Path, build: Path, seconds: int, seed: int) -> Tally:
    """One process of one target. Folders of commands are made in memory where there is any."""
    finds, findings = build / "finds" / name, build / "finds/findings" / name
    finds.mkdir(parents=True, exist_ok=True)
    findings.mkdir(parents=True, exist_ok=True)
    shm = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()
    folder = tempfile.mkdtemp(prefix="fp4moe_fuzz.", dir=shm)
    begin = time.monotonic()
    try:
        done = CPUS.run([program, *options(findings, seconds, seed), finds, CORPUS / name], capture_output=True, text=True,
                              errors="replace", env=environment(build, folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    tally = numbers(done.stderr)
    tally.seconds = time.monotonic() - begin
    # libFuzzer says where it has put the input.
    written = map(Path, re.findall(r"Test unit written to (\S+)", done.stderr))
    tally.findings = [path for path in written if path.name.startswith(KINDS_OF_FINDING)]
    if done.returncode != 0 and not tally.findings:
        tally.findings = [f"{name}: status {done.returncode}: {done.stderr[-400:]}"]
    if tally.findings:
        logs = build / "finds/logs"
        logs.mkdir(exist_ok=True)
        (logs / f"{name}-{seed}").write_text(done.stderr)
    return tally


class Search:
    """Processes until time or executions are spent. Every target runs; then the next process is of the one that has had the
    least time for what it does in it: fast parsers get more time than whole commands, in the ratio of the square roots of
    their speeds. A target ends after so many findings."""

    def __init__(self, targets: dict, build: Path, given: argparse.Namespace):
        self.targets, self.build, self.given = targets, build, given
        self.tallies = {name: Tally() for name in targets}
        self.given_seconds = dict.fromkeys(targets, 0.0)  # processes that still run, too
        self.seed = int(time.time())
        self.lock = threading.Lock()
        self.begin = time.monotonic()
        self.is_once = not given.executions and math.isinf(given.minutes)
        print(f"{len(targets)} targets, {given.jobs} at a time, {given.seconds} s each, seeds from {self.seed}", flush=True)

    def weight(self, name: str) -> float:
        tally = self.tallies[name]
        return math.sqrt(max(tally.executions, 1) / max(tally.seconds, 1e-9)) if tally.seconds else 1e-3

    def next(self) -> tuple | None:
        """A target, seconds and a seed."""
        with self.lock:
            left = self.begin + 60 * self.given.minutes - time.monotonic()
            live = [name for name in self.targets if len(self.tallies[name].findings) < self.given.findings]
            fresh = [name for name in live if self.given_seconds[name] == 0]
            if self.is_once:
                live = fresh
            elif self.given.executions and self.total() >= self.given.executions:
                live = []
            if left < 1 or not live:
                return None
            name = fresh[0] if fresh else min(live, key=lambda name: self.given_seconds[name] / self.weight(name))
            seconds = max(1, int(min(self.given.seconds, left)))
            self.given_seconds[name] += seconds
            self.seed += 1
            return name, seconds, self.seed

    def total(self) -> int:
        return sum(tally.executions for tally in self.tallies.values())

    def work(self) -> None:
        while (task := self.next()) is not None:
            name, seconds, seed = task
            tally = run(name, self.targets[name], self.build, seconds, seed)
            with self.lock:
                self.tallies[name].add(tally)
                for finding in tally.findings:
                    print(f"{name}: {finding}", flush=True)

    def all(self) -> int:
        workers = [threading.Thread(target=self.work) for _ in range(self.given.jobs)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        print(f"{'target':<12} {'executions':>14} {'per second':>11} {'edges before':>13} {'after':>7} {'new inputs':>11}  findings")
        for name, tally in self.tallies.items():
            print(f"{name:<12} {tally.executions:>14,} {tally.executions / max(tally.seconds, 1e-9):>11,.0f} {tally.edges_before:>13} "
                  f"{tally.edges:>7} {tally.new_inputs:>11}  {len(tally.findings)}")
        findings = [finding for tally in self.tallies.values() for finding in tally.findings]
        print(f"{self.total():,} executions in {time.monotonic() - self.begin:,.0f} s, {len(findings)} findings")
        return 1 if findings else 0


def pack(targets: dict, build: Path, out: Path) -> int:
    """What a machine without a compiler needs, without debug information; the C library is the machine's own."""
    def ours(program: Path) -> list:
        told = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
        if "not found" in told:
            sys.exit(f"{program} lacks a library:\n{told}")
        found = [Path(path) for path in re.findall(r"=> (/\S+)", told)]
        return [path for path in found if not re.match(r"(libc|libm|libdl|libpthread|librt|ld-linux.*)\.so", path.name)]

    def strip(path: Path, folder: str) -> Path:
        small = Path(folder) / path.name
        subprocess.run(["strip", "--strip-debug", "-o", small, path], check=True)
        return small

    libraries = {path.name: path for program in targets.values() for path in ours(program)}
    with tempfile.TemporaryDirectory() as folder, tarfile.open(out, "w:gz") as tar:
        tar.add(__file__, "fuzz/tools/fuzz.py")
        for name, program in targets.items():
            tar.add(strip(program, folder), f"fuzz/build/tests/fuzz/{program.name}")
            tar.add(CORPUS / name, f"fuzz/tests/fuzz/corpus/{name}")
        for name, path in libraries.items():
            tar.add(strip(path, folder), f"fuzz/build/lib/{name}")
    print(f"{out}: {out.stat().st_size:,} bytes, {len(targets)} targets, {len(libraries)} libraries")
    return 0


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
    parser.add_argument("--minutes", type=float, default=math.inf, help="go on for so long; with --executions: no longer")
    parser.add_argument("--findings", type=int, default=1, help="a target ends after so many")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at a time")
    parser.add_argument("--only", action="append", default=[], metavar="TARGET")
    parser.add_argument("--pack", type=Path, metavar="FILE.tar.gz")
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
    if given.pack:
        return pack(targets, given.build.resolve(), given.pack)
    return Search(targets, given.build.resolve(), given).all()


if __name__ == "__main__":
    sys.exit(main())
