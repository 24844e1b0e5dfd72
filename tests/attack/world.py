"""What all attacks share: tiny checkpoints of every dialect, commands over them, processes with limits, and the judgement
of how one ended. A finding is a sentence; no finding is None."""
import hashlib
import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
EXIT_CODES = {0, 1, 2, 3, 4, 5, 6, 7, 130}
SECONDS = 20  # that a command on tiny files may take on a busy machine
ERROR = re.compile(r"\[([a-z0-9_]+\.[a-z0-9_.]+|internal)\]\n")
# Dialect, model, format, further words.
CHECKPOINTS = [
    ("gpt-oss", "gpt-oss-20b", "mxfp4", ["--shards", "2"]),
    ("openai", "gpt-oss-20b", "mxfp4", []),
    ("quark", "gpt-oss-20b", "mxfp4", []),
    ("gguf", "gpt-oss-20b", "mxfp4", []),
    ("modelopt", "qwen3-30b-a3b", "nvfp4", ["--shards", "2"]),
    ("compressed-tensors", "qwen3-30b-a3b", "nvfp4", []),
    ("gguf", "qwen3-30b-a3b", "nvfp4", []),
    ("deepseek-v4", "deepseek-v4-flash", "mxfp4", []),
]
LAYOUTS = {"mxfp4": ["as_loaded.mxfp4", "marlin.mxfp4", "vllm_cutlass.mxfp4", "cpu_native.mxfp4"],
           "nvfp4": ["as_loaded.nvfp4", "marlin.nvfp4", "flashinfer_cutlass.nvfp4", "cpu_native.nvfp4"]}
DIALECTS = ["gpt-oss", "openai", "modelopt", "compressed-tensors", "quark", "deepseek-v4", "gguf"]


@dataclass
class Ended:
    """A process that has ended: its status is negative after a signal, None after too long a time."""
    words: list
    status: int | None
    out: str = ""
    err: str = ""

    @property
    def id(self) -> str:
        found = ERROR.findall(self.err)
        return found[-1] if found else ""

    def __str__(self) -> str:
        return f"{' '.join(map(str, self.words))}: status {self.status}: {self.err[-300:].strip()!r}"


@dataclass
class Row:
    """A line of the table."""
    attack: str
    tries: int = 0
    findings: list = field(default_factory=list)
    remarks: dict = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, finding: str | None, remark: str | None = None) -> None:
        with self.lock:
            self.tries += 1
            if finding:
                self.findings.append(finding)
            if remark:
                self.remarks[remark] = self.remarks.get(remark, 0) + 1


@dataclass
class Source:
    """A checkpoint: a folder, or a GGUF file in a folder of its own."""
    path: Path
    format: str
    dialect: str

    @property
    def folder(self) -> Path:
        return self.path.parent if self.path.suffix == ".gguf" else self.path


def judge(ended: Ended, allowed: set = EXIT_CODES) -> str | None:
    """Whatever the input: no signal, no hang, a documented status, words with an id."""
    if ended.status is None:
        return f"hang: {ended}"
    if ended.status < 0:
        return f"signal {-ended.status}: {ended}"
    if ended.status not in allowed:
        return f"status: {ended}"
    # What a command found (5, and 3 of lint) is its output; everything else is an error with an id.
    if ended.status not in (0, 5) and not ended.id and not ended.out:
        return f"no words: {ended}"
    if ended.id == "internal" or "what():" in ended.err:
        return f"internal: {ended}"
    if re.search(r"[\x00-\x08\x0b-\x1f\x7f]", ended.out + ended.err):
        return f"control characters: {ended}"
    return None


def digest(place: Path) -> str:
    """Names, kinds and bytes of a file or a folder; times are no part of it."""
    whole = hashlib.sha256()
    for path in sorted([place, *place.rglob("*")] if place.is_dir() else [place]):
        whole.update(f"{path.relative_to(place)}\0{path.is_dir()}\0".encode())
        if path.is_file():
            data = path.read_bytes()
            whole.update(len(data).to_bytes(8, "little") + data)
    return whole.hexdigest()


class World:
    """A workspace with sound things in it. `scratch()` gives each try an empty folder."""

    def __init__(self, program: Path, seed: int, jobs: int, keep: bool):
        memory = Path("/dev/shm")
        self.base = Path(tempfile.mkdtemp(prefix="fp4moe_attack.", dir=memory if os.access(memory, os.W_OK) else None))
        self.program, self.seed, self.jobs, self.keep = program, seed, jobs, keep
        self.environment = {**os.environ, "TMPDIR": str(self.base), "LC_ALL": "C", "CUDA_VISIBLE_DEVICES": "",
                            "ASAN_OPTIONS": "detect_leaks=0"}
        self.sources = [self._synth(i, *row) for i, row in enumerate(CHECKPOINTS)]
        self.adapters = {source.path: self._adapter(source) for source in self.sources[:1] + self.sources[4:5]}
        self.plain = self._plain()
        self.converted = [self._convert(source, layout) for source in self.sources for layout in LAYOUTS[source.format][:2]]

    def close(self) -> None:
        if not self.keep:
            shutil.rmtree(self.base, ignore_errors=True)

    def random(self, *name) -> random.Random:
        return random.Random("/".join(map(str, (self.seed, *name))))

    def scratch(self) -> "Scratch":
        return Scratch(tempfile.mkdtemp(dir=self.base))

    def call(self, *words, seconds: float = SECONDS, limits: list = (), environment: dict = {}, **more) -> Ended:
        """Runs the program; `limits` are words of prlimit, such as --as=1000000."""
        command = [*(["prlimit", *limits] if limits else []), str(self.program), *map(str, words)]
        try:
            done = subprocess.run(command, capture_output=True, timeout=seconds, stdin=subprocess.DEVNULL,
                                  env={**self.environment, **environment}, **more)
        except subprocess.TimeoutExpired as late:
            return Ended(list(words), None, "", (late.stderr or b"").decode(errors="replace"))
        return Ended(list(words), done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))

    def start(self, *words, environment: dict = {}, **more) -> subprocess.Popen:
        return subprocess.Popen([str(self.program), *map(str, words)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                stderr=subprocess.PIPE, env={**self.environment, **environment}, **more)

    def must(self, *words) -> Ended:
        ended = self.call(*words, seconds=120)
        if ended.status != 0:
            raise SystemExit(f"attack: a sound command failed: {ended}")
        return ended

    # Every command that reads files, on this source; OUT, where it writes, is in the scratch folder.
    def commands(self, source: Source, scratch: Path) -> dict:
        path, out = source.path, scratch / "out"
        lines = {
            "inspect": ["inspect", path],
            "lint": ["lint", path, "--deep"],
            "run": ["run", path, "--tokens", "3", "--threads", "2"],
            "run mapped": ["run", path, "--tokens", "3", "--weights", "mapped", "--layer", "all", "--engine", "reference"],
            "plan": ["plan", path],
            "explain": ["explain", path, "--device", "h100"],
        }
        for layout in LAYOUTS[source.format]:
            lines[f"convert {layout}"] = ["convert", path, "--layout", layout, "-o", out, "--threads", "2"]
        for dialect in DIALECTS:
            target = scratch / "out.gguf" if dialect == "gguf" else out
            lines[f"transcode {dialect}"] = ["transcode", path, "--to", dialect, "-o", target, "--threads", "2"]
        if source.format == "nvfp4":
            lines["fix"] = ["lint", path, "--fix", "drop-input-scale", "-o", out]
        return lines

    def _synth(self, number: int, dialect: str, model: str, weights: str, more: list) -> Source:
        name = f"source-{number}"
        path = self.base / name / "model.gguf" if dialect == "gguf" else self.base / name
        path.parent.mkdir(exist_ok=True)
        self.must("synth", "-o", path, "--model", model, "--dialect", dialect, "--format", weights, "--experts", 4,
                  "--hidden", 64, "--intermediate", 64, "--layers", 2, *more)
        if path.is_dir():
            (path / "tokenizer.json").write_text("{}\n")
        return Source(path, weights, dialect)

    def _adapter(self, source: Source) -> Path:
        out = self.base / f"adapter-{source.path.name}"
        self.must("synth", "-o", out, "--adapter-for", source.path, "--rank", 2)
        return out

    def _plain(self) -> Source:
        out = self.base / "plain"
        self.must("synth", "-o", out, "--model", "qwen3-30b-a3b", "--dialect", "bf16", "--experts", 4, "--hidden", 64,
                  "--intermediate", 64)
        return Source(out, "nvfp4", "bf16")

    def _convert(self, source: Source, layout: str) -> Path:
        out = self.base / f"converted-{source.folder.name}-{layout}"
        self.must("convert", source.path, "--layout", layout, "-o", out)
        return out


class Scratch:
    """A folder of one try, removed after it."""

    def __init__(self, path: str):
        self.path = Path(path)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_) -> None:
        for folder in [self.path, *(p for p in self.path.rglob("*") if p.is_dir() and not p.is_symlink())]:
            folder.chmod(0o700)
        shutil.rmtree(self.path, ignore_errors=True)


def leftovers(scratch: Path, besides: set = frozenset()) -> list:
    """Hidden names that a command left beside its output."""
    return sorted(path.name for path in scratch.iterdir() if path.name.startswith(".") and path.name not in besides)


def name_of(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else str(status)

