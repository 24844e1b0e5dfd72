#!/usr/bin/env python3
"""Attacks the program: damaged files, kills, faults of the system, exhaustion, races, ranks that fail.

  tests/attack/attack.py build/release/bin/fp4moe                    every attack, some minutes
  tests/attack/attack.py PROGRAM --scale 10 --seed 7                 ten times as many tries, others
  tests/attack/attack.py PROGRAM --only mutation --only memory       some of them
  tests/attack/attack.py PROGRAM --quick                             what a test run takes, half a minute

A try is a number: the same seed and number do the same. The table at the end has a line for each attack; status 1: there were
findings, and each is printed with its number. Files are made in memory, and removed. Needs a C compiler for the faults; full
disks and other users' folders need root, ranks need mpirun: where these lack, the line says so.
"""
import argparse
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import failures
import mutations
import races
import ranks
from world import Row, World


# Name: tries, tries of --quick (0: it depends on the clock, or needs rights), what it is.
ATTACKS = {
    "mutation": (3000, 150, "files of every kind changed, two commands each"),
    "truncation": (2000, 100, "files of every kind cut"),
    "bombs": (4, 4, "metadata that take many times their bytes in memory"),
    "faults": (1500, 150, "the n-th call of a system function fails, or transfers half"),
    "memory": (1500, 150, "the n-th allocation fails, or all from there on"),
    "threads": (60, 20, "the n-th start of a thread fails"),
    "limits": (600, 60, "ulimit -v, -n, -f"),
    "disk": (100, 0, "a full file system"),
    "processes": (40, 0, "ulimit -u"),
    "kill": (200, 0, "kill -9 at a random moment, then again"),
    "interrupt": (80, 0, "Ctrl-C at a random moment, then again"),
    "terminate": (40, 0, "SIGTERM at a random moment, then again"),
    "writers": (30, 0, "two to five writers of one output"),
    "staging": (40, 0, "an attacker at the staging folder"),
    "shrinking": (60, 0, "the source changes while it is read"),
    "ranks": (8, 0, "MPI: one of 2 to 6 ranks killed, stopped, asked to end"),
    "mismatch": (9, 0, "MPI: ranks with different command lines"),
    "eight": (3, 0, "MPI: eight ranks"),
}
FAULTS = ["faults", "memory", "threads"]
# They time their commands, or start many: one at a time.
ALONE = ["kill", "interrupt", "terminate", "writers", "staging", "shrinking", "ranks", "mismatch", "eight"]


def functions(world: World, wanted: list) -> dict:
    """Each attack's function of one try: (row, number)."""
    slow = failures.Slow(world) if set(ALONE) & set(wanted) else None
    shim = failures.Shim(world) if set(FAULTS) & set(wanted) else None
    results = failures.Results(world)
    return {
        "mutation": lambda row, i: mutations.mutate(world, row, i),
        "truncation": lambda row, i: mutations.truncate(world, row, i),
        "bombs": lambda row, i: mutations.bomb(world, row, i),
        "faults": lambda row, i: failures.fault(world, row, i, shim, results),
        "memory": lambda row, i: failures.fault(world, row, i, shim, results, "alloc"),
        "threads": lambda row, i: failures.fault(world, row, i, shim, results, "thread"),
        "limits": lambda row, i: failures.limit(world, row, i, results),
        "disk": lambda row, i: failures.full_disk(world, row, i),
        "processes": lambda row, i: failures.few_threads(world, row, i),
        "kill": lambda row, i: failures.interrupt(world, row, i, slow, signal.SIGKILL),
        "interrupt": lambda row, i: failures.interrupt(world, row, i, slow, signal.SIGINT),
        "terminate": lambda row, i: failures.interrupt(world, row, i, slow, signal.SIGTERM),
        "writers": lambda row, i: races.one_output(world, row, i, slow),
        "staging": lambda row, i: races.staging(world, row, i, slow),
        "shrinking": lambda row, i: races.shrinking(world, row, i, slow),
        "ranks": lambda row, i: ranks.hurt(world, row, i, slow),
        "mismatch": lambda row, i: ranks.mismatched(world, row, i, slow),
        "eight": lambda row, i: ranks.eight(world, row, i, slow),
    }


def attack(name: str, tries: int, one, jobs: int, first: int) -> Row:
    row, begin, told = Row(name), time.monotonic(), time.monotonic()

    def guarded(number: int) -> None:
        try:
            one(row, number)
        except Exception as problem:  # of the attack itself, which must not look like success
            row.add(f"{name} {number}: the attack failed: {type(problem).__name__}: {problem}")

    with ThreadPoolExecutor(1 if name in ALONE else jobs) as pool:
        for number, _ in enumerate(pool.map(guarded, range(first, first + tries))):
            if time.monotonic() - told > 10:
                told = time.monotonic()
                print(f"  {name}: {number + 1} of {tries}, {len(row.findings)} findings", file=sys.stderr, flush=True)
    row.remarks = dict(sorted(row.remarks.items(), key=lambda item: -item[1]))
    seconds = time.monotonic() - begin
    print(f"{name}: {row.tries} tries, {len(row.findings)} findings, {seconds:.0f} s", flush=True)
    for finding in row.findings[:20]:
        print(f"  {finding}", flush=True)
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first try; with --tries 1: that try alone")
    parser.add_argument("--tries", type=int, help="of each attack, instead of its own number")
    parser.add_argument("--scale", type=float, default=1, help="times as many tries")
    parser.add_argument("--quick", action="store_true", help="few tries, of what depends on no clock and needs no rights")
    parser.add_argument("--only", action="append", default=[], metavar="ATTACK")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--keep", action="store_true", help="keep the workspace")
    given = parser.parse_args()
    unknown = [name for name in given.only if name not in ATTACKS]
    if unknown:
        sys.exit(f"attack: there is no {', '.join(unknown)}; there are {', '.join(ATTACKS)}")
    tries = {name: given.tries or (quick if given.quick else round(usual * given.scale))
             for name, (usual, quick, _) in ATTACKS.items() if not given.only or name in given.only}
    tries = {name: count for name, count in tries.items() if count}
    world = World(given.program.resolve(), given.seed, given.jobs, given.keep)
    try:
        known = functions(world, list(tries))
        rows = [attack(name, count, known[name], given.jobs, given.first) for name, count in tries.items()]
    finally:
        world.close()
    print(f"\n{'attack':<12} {'tries':>7} {'findings':>9}  seed {given.seed}")
    for row in rows:
        remarks = ", ".join(f"{count} {remark}" for remark, count in list(row.remarks.items())[:4])
        print(f"{row.attack:<12} {row.tries:>7} {len(row.findings):>9}  {ATTACKS[row.attack][2]}; {remarks}")
    findings = sum(len(row.findings) for row in rows)
    print(f"{sum(row.tries for row in rows)} tries, {findings} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
