"""Kills, signals, faults of the system and limits of the process, at commands on sound files. The output is whole or absent,
and a second run makes it whole."""
import errno
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from world import HERE, Row, World, digest, judge, leftovers, name_of

# Which errors the n-th call of a function may have. 0: half of the bytes.
FAULTS = {
    "open": [errno.EACCES, errno.EMFILE, errno.ENOMEM, errno.EIO],
    "tmpfile": [errno.EOPNOTSUPP, errno.EISDIR, errno.ENOSPC],
    "read": [errno.EIO, errno.EINTR, 0],
    "write": [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EINTR, 0],
    "fsync": [errno.EIO, errno.ENOSPC],
    "rename": [errno.EXDEV, errno.EACCES, errno.ENOSPC, errno.EIO],
    "link": [errno.EXDEV, errno.EACCES, errno.ENOSPC],
    "unlink": [errno.EACCES, errno.EIO],
    "mmap": [errno.ENOMEM, errno.EACCES],
    "allocate": [errno.ENOSPC, errno.EOPNOTSUPP, errno.EINTR],
    "truncate": [errno.EIO, errno.ENOSPC],
    "mkdir": [errno.EACCES, errno.ENOSPC, errno.EROFS],
    "flock": [errno.ENOLCK, errno.EINTR],
    "stat": [errno.EIO, errno.ENOMEM, errno.EACCES],
    "close": [errno.EIO, errno.ENOSPC],
    "opendir": [errno.EMFILE, errno.ENOMEM, errno.EACCES],
    "readdir": [errno.EIO],
    "thread": [errno.EAGAIN],
    "alloc": [errno.ENOMEM],
}
EXHAUSTED = {errno.ENOSPC, errno.EDQUOT, errno.ENOMEM}
STANDS = "the output is complete and has its name"
RANKS_STAND = "the ranks in it are complete"
NOTHING = "nothing was written"


def writers(world: World) -> dict:
    """Commands that write, by name: words without their output, and the output's name."""
    source, nvfp4 = world.sources[0].path, world.sources[4].path
    return {
        "convert": (["convert", source, "--layout", "marlin.mxfp4", "--threads", 2], "out"),
        "convert nvfp4": (["convert", nvfp4, "--layout", "cpu_native.nvfp4", "--threads", 2], "out"),
        "convert tp": (["convert", source, "--layout", "marlin.mxfp4", "--tp", 2, "--threads", 2], "out"),
        "transcode": (["transcode", source, "--to", "quark", "--threads", 2], "out"),
        "transcode gguf": (["transcode", source, "--to", "gguf"], "out.gguf"),
        "quantize": (["quantize", world.plain.path, "--format", "nvfp4", "--threads", 2], "out"),
        "merge": (["merge", source, world.adapters[source]], "out"),
        "unconvert": (["unconvert", world.converted[1]], "out"),
        "fix": (["lint", nvfp4, "--fix", "drop-input-scale"], "out"),
        "synth": (["synth", "--experts", 4, "--hidden", 64, "--intermediate", 64], "out"),
        "synth defect": (["synth", "--model", "qwen3-30b-a3b", "--dialect", "modelopt", "--format", "nvfp4", "--experts", 4,
                          "--hidden", 64, "--intermediate", 64, "--defect", "nan-scale"], "out"),
        "run": (["run", source, "--tokens", 4, "--threads", 2], "out.safetensors"),
        "run tp": (["run", source, "--tokens", 4, "--tp", 2], "out.safetensors"),
    }


def readers(world: World) -> dict:
    source = world.sources[0].path
    return {
        "inspect": ["inspect", source],
        "lint": ["lint", world.sources[4].path, "--deep"],
        "verify": ["verify", world.converted[1], "--deep"],
        "run ep": ["run", source, "--tokens", 4, "--ep", 2, "--exchange", "all_to_all"],
        "plan": ["plan", source],
        "explain": ["explain", source, "--device", "h100"],
        "demo": ["demo", "--experts", 2, "--threads", 1],
    }


def is_there(place: Path, name: str) -> bool:
    """True if the output is there. Ranks appear one after the other; the folder around them gets its config.json last."""
    return (place / "config.json").exists() if name == "convert tp" else place.exists()


def left_by(scratch: Path, name: str, out: str | None) -> list:
    """What a command that failed should have removed."""
    besides = {f".{out}.partial"} if name.startswith("convert") else set()
    empty = [out] if name == "convert tp" and (scratch / out).is_dir() and not any((scratch / out).iterdir()) else []
    return leftovers(scratch, besides) + empty + [path.name for path in scratch.glob("fp4moe-demo-*")]


class Results:
    """What the writers give when nothing happens; made once."""

    def __init__(self, world: World):
        self.world, self.known = world, {}

    def of(self, words: list, name: str) -> str:
        key = tuple(map(str, words))
        if key not in self.known:
            with self.world.scratch() as scratch:
                self.world.must(*words, "-o", scratch / name)
                self.known[key] = digest(scratch / name)
        return self.known[key]


def again(world: World, scratch: Path, words: list, name: str, want: str, resume: bool) -> str | None:
    """A run after a failed one makes the whole output and leaves nothing else."""
    more = ["--resume"] if words[0] == "convert" and (resume or "--tp" in words) else []
    ended = world.call(*words, "-o", scratch / name, *more)
    if ended.status != 0 or digest(scratch / name) != want:
        return f"the next run does not make the output whole: {ended}"
    hidden = leftovers(scratch)
    return f"the next run leaves {hidden}: {ended}" if hidden else None


# --- kills and signals ---

class Slow:
    """Commands that take long enough to be interrupted, and how long that is."""

    def __init__(self, world: World):
        self.base = world.base / "slow"
        self.base.mkdir()
        big = ["--experts", 16, "--hidden", 512, "--intermediate", 512, "--layers", 3]
        world.must("synth", "-o", self.base / "a", "--model", "gpt-oss-20b", *big)
        world.must("synth", "-o", self.base / "plain", "--model", "qwen3-30b-a3b", "--dialect", "bf16", *big)
        world.must("synth", "-o", self.base / "adapter", "--adapter-for", self.base / "a")
        world.must("convert", self.base / "a", "--layout", "marlin.mxfp4", "-o", self.base / "c")
        self.lines = {
            "convert": (["convert", self.base / "a", "--layout", "marlin.mxfp4"], "out"),
            "convert cutlass": (["convert", self.base / "a", "--layout", "vllm_cutlass.mxfp4"], "out"),
            "transcode": (["transcode", self.base / "a", "--to", "quark"], "out"),
            "transcode gguf": (["transcode", self.base / "a", "--to", "gguf"], "out.gguf"),
            "quantize": (["quantize", self.base / "plain", "--format", "nvfp4"], "out"),
            "merge": (["merge", self.base / "a", self.base / "adapter"], "out"),
            "unconvert": (["unconvert", self.base / "c"], "out"),
        }
        self.results, self.seconds = Results(world), {}
        for name, (words, out) in self.lines.items():
            begin = time.monotonic()
            self.results.of(words, out)
            self.seconds[name] = time.monotonic() - begin


def interrupt(world: World, row: Row, number: int, slow: Slow, how: signal.Signals) -> None:
    dice = world.random("interrupt", how.name, number)
    name = dice.choice(sorted(slow.lines))
    words, out = slow.lines[name]
    want = slow.results.of(words, out)
    with world.scratch() as scratch:
        process = world.start(*words, "-o", scratch / out)
        time.sleep(dice.uniform(0, 1.1) * slow.seconds[name])
        process.send_signal(how)
        try:
            err = process.communicate(timeout=20)[1].decode(errors="replace")
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            row.add(f"{how.name} {number}: {name} does not end")
            return
        status = process.returncode
        finding = None
        exists = (scratch / out).exists()
        if status not in (0, 130, -how):
            finding = f"{name}: status {status}: {err[-200:]}"
        elif exists and digest(scratch / out) != want:
            finding = f"{name}: half an output"
        elif status == 0 and not exists:
            finding = f"{name}: done, but nothing is there"
        elif status == 130 and exists:
            finding = f"{name}: interrupted, yet the output is there"
        elif status == 130 and not name.startswith("convert") and leftovers(scratch):
            finding = f"{name}: left {leftovers(scratch)}"
        if not finding and not exists:
            finding = again(world, scratch, words, out, want, resume=dice.random() < 0.5)
        row.add(finding and f"{how.name} {number}: {finding}", f"{name_of(status)}, {'whole' if exists else 'absent'}")


# --- faults ---

class Shim:
    def __init__(self, world: World):
        self.path = world.base / "faults.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", self.path, HERE / "faults.c", "-ldl"], check=True)
        self.world, self.counts = world, {}

    def environment(self, fault: str, log: Path) -> dict:
        return {"LD_PRELOAD": str(self.path), "FP4MOE_FAULT": fault, "FP4MOE_FAULT_LOG": str(log)}

    def count(self, call: str, words: list, out: str | None) -> int:
        """How often the command calls it when nothing fails."""
        key = (call, *map(str, words))
        if key not in self.counts:
            with self.world.scratch() as scratch:
                more = ["-o", scratch / out] if out else []
                self.world.call(*words, *more, environment=self.environment(f"{call}:1:-1", scratch / "log"))
                self.counts[key] = int((scratch / "log").read_text().split()[0]) if (scratch / "log").exists() else 0
        return self.counts[key]


def fault(world: World, row: Row, number: int, shim: Shim, results: Results, only: str | None = None) -> None:
    dice = world.random("fault", only, number)
    lines = {**writers(world), **{name: (words, None) for name, words in readers(world).items()}}
    call = only or dice.choice([each for each in FAULTS if each not in ("alloc", "thread")])
    seldom = ["demo"] if dice.random() < 0.03 else []  # it takes seconds
    used = [name for name in seldom or sorted(set(lines) - {"demo"}) if shim.count(call, *lines[name]) > 0]
    if not used:
        return
    name = dice.choice(used)
    words, out = lines[name]
    count = shim.count(call, words, out)
    why, nth = dice.choice(FAULTS[call]), dice.randint(1, count)
    if call == "alloc" and dice.random() < 0.3:  # near the end, where the output has its name
        nth = max(1, count - dice.randrange(300))
    lasts = call in ("alloc", "thread", "write", "open") and why not in (errno.EINTR, 0) and dice.random() < 0.3
    what = f"{call}:{why}:{nth}{'+' if lasts else ''}"
    with world.scratch() as scratch:
        more = ["-o", scratch / out] if out else []
        ended = world.call(*words, *more, environment={**shim.environment(what, scratch / "log"), "TMPDIR": str(scratch)})
        finding = judge(ended)
        exists = out is not None and is_there(scratch / out, name)
        if finding or ended.status is None:
            pass
        elif exists and digest(scratch / out) != results.of(words, out):
            finding = f"half an output: {ended}"
        elif exists and ended.status != 0 and not (STANDS in ended.err or RANKS_STAND in ended.err) and name != "fix":
            finding = f"failed, yet the output is there: {ended}"
        elif ended.status == 0 and out and not exists:
            finding = f"done, but nothing is there: {ended}"
        elif out and not (scratch / out).exists() and STANDS in ended.err:
            finding = f"says that the output stands, yet nothing is there: {ended}"
        elif exists and NOTHING in ended.err:
            finding = f"says that nothing was written, yet the output is there: {ended}"
        elif why in EXHAUSTED and ended.status not in (0, 6) and not (call == "stat" or STANDS in ended.err):
            finding = f"no space or memory is status 6: {ended}"
        elif call == "thread" and ended.status not in (0, 6):
            finding = f"no threads is status 6: {ended}"
        elif ended.status == 5:
            finding = f"a fault of the system is taken for damage: {ended}"
        elif (why == errno.EINTR or why == 0) and ended.status != 0:
            finding = f"interrupted or short calls go on: {ended}"
        elif call != "unlink" and not lasts and ended.status != 0:
            left = left_by(scratch, name, out)
            finding = f"left {left}: {ended}" if left else None
        if not finding and out and not exists:
            finding = again(world, scratch, words, out, results.of(words, out), resume=dice.random() < 0.5)
        row.add(finding and f"fault {number} {what}: {finding}", f"{call} exit {ended.status}")


# --- limits ---

def limit(world: World, row: Row, number: int, results: Results) -> None:
    """Little address space, few descriptors, small files: done, or 6 and nothing left."""
    dice = world.random("limit", number)
    lines = {**writers(world), **{name: (words, None) for name, words in readers(world).items()}}
    name = dice.choice(sorted(lines))
    words, out = lines[name]
    kind = dice.choice(["as", "as", "nofile", "fsize"])
    value = {"as": dice.randrange(24 << 20, 320 << 20), "nofile": dice.randrange(4, 24), "fsize": dice.randrange(0, 300_000)}[kind]
    with world.scratch() as scratch:
        more = ["-o", scratch / out] if out else []
        ended = world.call(*words, *more, limits=[f"--{kind}={value}"])
        finding = None
        # Too little for the libraries (127, the loader's) or for the program itself (a signal, the system's).
        if ended.status in (127, -11) and not ended.id and world.call("-V", limits=[f"--{kind}={value}"]).status == ended.status:
            row.add(None, f"{kind}: the program does not start")
            return
        finding = judge(ended)
        exists = out is not None and is_there(scratch / out, name)
        allowed = (0, 6) if kind == "as" else (0, 1, 3, 6)
        if not finding and ended.status not in allowed:
            finding = f"status {ended.status}: {ended}"
        if not finding and exists and digest(scratch / out) != results.of(words, out):
            finding = f"half an output: {ended}"
        if not finding and ended.status != 0 and not name.startswith("convert") and leftovers(scratch):
            finding = f"left {leftovers(scratch)}: {ended}"
        row.add(finding and f"limit {number} {kind}={value}: {finding}", f"{kind} exit {ended.status}")


def full_disk(world: World, row: Row, number: int) -> None:
    """On a small file system: done, or 6. Needs the right to mount."""
    dice = world.random("disk", number)
    name, (words, out) = dice.choice(list(writers(world).items()))
    with world.scratch() as scratch:
        place = scratch / "disk"
        place.mkdir()
        script = f'mount -t tmpfs -o size={dice.randrange(4, 600)}k none "$0" || exit 77; "$@"; s=$?; ls -A "$0"; exit $s'
        done = subprocess.run(["unshare", "-m", "bash", "-c", script, place, world.program, *map(str, words), "-o", place / out],
                              capture_output=True, text=True, errors="replace", env=world.environment)
        if done.returncode == 77 or "unshare failed" in done.stderr:
            row.remarks["cannot mount here"] = 1
            return
        left = done.stdout.splitlines()[-1:] if done.returncode != 0 else []
        finding = None
        if done.returncode not in (0, 6):
            finding = f"status {done.returncode}: {done.stderr[-200:]}"
        elif out in left and name != "convert tp":  # of which finished ranks stay
            finding = f"failed, yet {out} is there"
        row.add(finding and f"disk {number} {' '.join(map(str, words))}: {finding}", f"exit {done.returncode}")


def few_threads(world: World, row: Row, number: int) -> None:
    """As a user who may have few processes: done, or 6. Needs root, to be somebody else."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        row.remarks["only root can be another user"] = 1
        return
    dice = world.random("threads", number)
    most, lines = dice.randrange(1, 9), {**readers(world), "run tp": writers(world)["run tp"][0]}
    del lines["demo"]  # which writes
    words = lines[dice.choice(sorted(lines))]
    # A user id of this try alone: processes are counted over all of them.
    user = 60000 + number % 4000
    world.base.chmod(0o755)
    done = subprocess.run(["setpriv", f"--reuid={user}", "--clear-groups", "prlimit", f"--nproc={most}", world.program, *map(str, words)],
                          capture_output=True, text=True, errors="replace", env=world.environment, timeout=60)
    finding = None if done.returncode in (0, 6) else f"threads {number} {' '.join(map(str, words))}: status {done.returncode}: {done.stderr[-200:]}"
    row.add(finding, f"exit {done.returncode}")
