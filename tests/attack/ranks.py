"""MPI: ranks that are killed, stopped or asked for other things at any time; eight of them on few CPUs."""
import os
import shutil
import signal
import subprocess
import time

from failures import Slow
from world import Row, World

DEADLINE = 45  # seconds until the others have noticed and ended
KNOWN = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP, "asked to end": signal.SIGTERM}


def mpirun(ranks: int) -> list:
    return ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(ranks)]


def is_alive(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children(process: int) -> list:
    try:
        with open(f"/proc/{process}/task/{process}/children") as file:
            return [one for one in map(int, file.read().split()) if is_alive(one)]
    except OSError:  # it has ended
        return []


def wait(process: subprocess.Popen, seconds: float) -> bool:
    """True if mpirun ended; one that has no ranks any more is killed. Open MPI 4.1's may hang in PMIx_server_finalize
    when ranks were lost."""
    until, alone = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        try:
            process.communicate(timeout=0.5)
            return True
        except subprocess.TimeoutExpired:
            alone = 0 if children(process.pid) else alone + 1
        if alone >= 40:
            process.kill()
            process.communicate()
            return True
    return False


def end(process: subprocess.Popen) -> None:
    for child in children(process.pid) if process.poll() is None else []:
        try:
            os.kill(child, signal.SIGKILL)
        except ProcessLookupError:
            pass
    process.kill()
    process.communicate()


def deadline(number: int) -> list:
    """Every other time the program's own, 30 s."""
    return ["--deadline", "10"] if number % 2 else []


def hurt(world: World, row: Row, number: int, slow: Slow) -> None:
    """One rank is hurt at a random moment since the start: the others end, in time, and not with success."""
    if shutil.which("mpirun") is None:
        row.remarks["no mpirun"] = 1
        return
    dice = world.random("ranks", number)
    ranks, how = dice.choice([2, 3, 4, 6]), dice.choice(sorted(KNOWN))
    exchange = dice.choice(["gather", "all_to_all", "all_to_all_batched"])
    words = ["run", slow.base / "a", "--ep", "mpi", "--exchange", exchange, "--tokens", "4000", *deadline(number)]
    process = subprocess.Popen([*mpirun(ranks), str(world.program), *map(str, words)], env=world.environment,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    begin = time.monotonic()
    time.sleep(dice.choice([0, dice.uniform(0.05, 2)]))  # some before MPI has begun
    victim = None
    while victim is None and process.poll() is None and time.monotonic() - begin < 10:
        found = children(process.pid)
        victim = dice.choice(found) if found else None
    try:
        if victim:
            os.kill(victim, KNOWN[how])
    except ProcessLookupError:
        victim = None
    hurt_at = time.monotonic()
    if not wait(process, DEADLINE + 15):
        others = set(children(process.pid)) - {victim}
        end(process)
        if others:
            row.add(f"ranks {number}: {ranks} ranks, one {how}: the others wait for more than {DEADLINE + 15} s")
        else:  # mpirun waits for a rank that was stopped behind its last word
            row.add(None, f"{how}: nobody waits but mpirun")
        return
    seconds = time.monotonic() - hurt_at
    finding = f"ranks {number}: one of {ranks} {how}: it took {seconds:.0f} s" if seconds > DEADLINE else None
    row.add(finding, f"{how}: status {process.returncode}" if victim else "ended before it was hurt")


def mismatched(world: World, row: Row, number: int, slow: Slow) -> None:
    """The first rank is asked for something else: never success, never a hang."""
    if shutil.which("mpirun") is None:
        row.remarks["no mpirun"] = 1
        return
    others = ["run", slow.base / "a", "--ep", "mpi", "--exchange", "gather", "--tokens", "8", *deadline(number)]
    changes = [["--layer", "1"], ["--tokens", "9"], ["--backend", "MARLIN"], ["--exchange", "all_to_all"], ["--seed", "2"],
               ["--placement", "round-robin"], ["--numerics", "exact"], ["--tp", "mpi", "--ep", "1"]]
    first = ["inspect", slow.base / "a"] if number % 9 == 8 else [*others, *changes[number % 9]]
    line = [*mpirun(1), str(world.program), *map(str, first), ":", "-n", "2", str(world.program), *map(str, others)]
    process = subprocess.Popen(line, env=world.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if not wait(process, DEADLINE + 15):
        end(process)
        row.add(f"mismatch {number}: {first[-2:]}: hang")
        return
    finding = f"mismatch {number}: {first[-2:]}: success" if process.returncode == 0 else None
    row.add(finding, f"{' '.join(map(str, first[-2:])) if number % 9 != 8 else 'inspect'}: status {process.returncode}")


def eight(world: World, row: Row, number: int, slow: Slow) -> None:
    if shutil.which("mpirun") is None:
        row.remarks["no mpirun"] = 1
        return
    how = [["--tp", "mpi"], ["--ep", "mpi", "--exchange", "all_to_all"], ["--ep", "mpi", "--exchange", "gather"]][number % 3]
    done = subprocess.run([*mpirun(8), str(world.program), "run", str(slow.base / "a"), "--tokens", "16", "--check", *how],
                          env=world.environment, capture_output=True, text=True, errors="replace", timeout=300)
    row.add(None if done.returncode == 0 else f"eight ranks {how}: status {done.returncode}: {done.stderr[-300:]}", " ".join(how))
