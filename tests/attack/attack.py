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


def attacks(world: World, is_needed) -> dict:
    """Name: (tries, tries of --quick, one try, what it is). Those that time their commands, or start many, run alone."""
    slow = failures.Slow(world) if is_needed("kill", "interrupt", "terminate", "writers", "staging", "shrinking", "ranks", "mismatch", "eight") else None
    shim = failures.Shim(world) if is_needed("faults", "memory", "threads") else None
    results = failures.Results(world)

    def interrupt(how):
        return lambda row, i: failures.interrupt(world, row, i, slow, how)

    def fault(only=None):
        return lambda row, i: failures.fault(world, row, i, shim, results, only)

    return {
        "mutation": (3000, 150, lambda row, i: mutations.mutate(world, row, i), "files of every kind changed, two commands each"),
        "truncation": (2000, 100, lambda row, i: mutations.truncate(world, row, i), "files of every kind cut"),
        "faults": (1500, 150, fault(), "the n-th call of a system function fails, or transfers half"),
        "memory": (1500, 150, fault("alloc"), "the n-th allocation fails, or all from there on"),
        "threads": (60, 20, fault("thread"), "the n-th start of a thread fails"),
        "limits": (600, 60, lambda row, i: failures.limit(world, row, i, results), "ulimit -v, -n, -f"),
        "disk": (100, 0, lambda row, i: failures.full_disk(world, row, i), "a full file system"),
        "processes": (40, 0, lambda row, i: failures.few_threads(world, row, i), "ulimit -u"),
        "kill": (200, 0, interrupt(signal.SIGKILL), "kill -9 at a random moment, then again"),
        "interrupt": (80, 0, interrupt(signal.SIGINT), "Ctrl-C at a random moment, then again"),
        "terminate": (40, 0, interrupt(signal.SIGTERM), "SIGTERM at a random moment, then again"),
        "writers": (30, 0, lambda row, i: races.one_output(world, row, i, slow), "two to five writers of one output"),
        "staging": (40, 0, lambda row, i: races.staging(world, row, i, slow), "an attacker at the staging folder"),
        "shrinking": (60, 0, lambda row, i: races.shrinking(world, row, i, slow), "the source changes while it is read"),
        "ranks": (8, 0, lambda row, i: ranks.hurt(world, row, i, slow), "MPI: one of 2 to 6 ranks killed, stopped, asked to end"),
        "mismatch": (9, 0, lambda row, i: ranks.mismatched(world, row, i, slow), "MPI: ranks with different command lines"),
        "eight": (3, 0, lambda row, i: ranks.eight(world, row, i, slow), "MPI: eight ranks"),
    }


ALONE = {"kill", "interrupt", "terminate", "writers", "staging", "shrinking", "ranks", "mismatch", "eight"}


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
    world = World(given.program.resolve(), given.seed, given.jobs, given.keep)
    try:
        known = attacks(world, lambda *names: not given.quick and (not given.only or set(names) & set(given.only))
                        or bool({"faults", "memory", "threads"} & set(names)))
        unknown = [name for name in given.only if name not in known]
        if unknown:
            sys.exit(f"attack: there is no {', '.join(unknown)}; there are {', '.join(known)}")
        rows = []
        for name, (tries, quick, one, _) in known.items():
            count = given.tries or (quick if given.quick else round(tries * given.scale))
            if (not given.only or name in given.only) and count:
                rows.append(attack(name, count, one, given.jobs, given.first))
        print(f"\n{'attack':<12} {'tries':>7} {'findings':>9}  seed {given.seed}")
        for row in rows:
            remarks = ", ".join(f"{count} {remark}" for remark, count in list(row.remarks.items())[:4])
            print(f"{row.attack:<12} {row.tries:>7} {len(row.findings):>9}  {known[row.attack][3]}; {remarks}")
        findings = sum(len(row.findings) for row in rows)
        print(f"{sum(row.tries for row in rows)} tries, {findings} findings")
        return 1 if findings else 0
    finally:
        world.close()


if __name__ == "__main__":
    sys.exit(main())
