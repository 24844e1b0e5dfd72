"""Others at the same files at the same time: writers of one output, an attacker in a shared folder, a source that shrinks."""
import os
import shutil
import subprocess
import threading
import time

from failures import Slow
from world import Ended, Row, World, digest, judge, leftovers


def one_output(world: World, row: Row, number: int, slow: Slow) -> None:
    """Several writers of one output: a folder has one winner; a file is one of theirs, whole."""
    dice = world.random("output", number)
    name = dice.choice(["convert", "transcode", "transcode gguf", "quantize"])
    words, out = slow.lines[name]
    want = slow.results.of(words, out)
    with world.scratch() as scratch:
        processes = []
        for _ in range(dice.randint(2, 5)):
            processes.append(world.start(*words, "-o", scratch / out))
            time.sleep(dice.uniform(0, 0.3) * slow.seconds[name])
        ends = [Ended(words, process.wait(), "", process.stderr.read().decode(errors="replace")) for process in processes]
        winners = sum(ended.status == 0 for ended in ends)
        finding = next((problem for problem in map(judge, ends) if problem), None)
        if not finding and (winners == 0 or (out == "out" and winners != 1)):
            finding = f"{name}: {winners} winners of {len(ends)}"
        if not finding and digest(scratch / out) != want:
            finding = f"{name}: half an output"
        if not finding and leftovers(scratch):
            finding = f"{name}: left {leftovers(scratch)}"
        lost = next((ended for ended in ends if ended.status != 0 and ended.id not in ("folder.busy", "folder.exists", "write.exists")), None)
        if not finding and lost:
            finding = f"{name}: {lost}"
        row.add(finding and f"writers {number}: {finding}", name)


def staging(world: World, row: Row, number: int, slow: Slow) -> None:
    """An attacker renames the staging folder and puts a link to a private folder there: nothing of it is deleted or
    changed, and nothing is written into it."""
    dice = world.random("staging", number)
    words, out = slow.lines["convert"]
    with world.scratch() as scratch:
        private, hidden = scratch / "private", scratch / ".out.partial"
        private.mkdir(mode=0o700)
        for i in range(20):
            (private / f"file-{i}").write_text(str(i))
        before = digest(private)
        if dice.random() < 0.5:  # somebody was there first
            hidden.mkdir(mode=dice.choice([0o700, 0o777, 0o755]))
            for i in range(dice.choice([0, 5, 500])):
                (hidden / f"x{i}").write_text("")
            if os.geteuid() == 0 and dice.random() < 0.5:
                os.chown(hidden, 65534, 65534)
        stop = threading.Event()

        def attack() -> None:
            moved = scratch / "moved"
            while not stop.is_set():
                try:
                    hidden.rename(moved)
                    hidden.symlink_to(private)
                    time.sleep(dice.uniform(0, 0.01))
                    hidden.unlink()
                    shutil.rmtree(moved, ignore_errors=True) if dice.random() < 0.2 else moved.rename(hidden)
                except OSError:
                    time.sleep(0.0002)

        thread = threading.Thread(target=attack)
        thread.start()
        ended = world.call(*words, "-o", scratch / out, seconds=60)
        stop.set()
        thread.join()
        finding = judge(ended)
        if digest(private) != before:
            finding = f"a private folder changed: {ended}"
        if not finding and ended.status == 0 and digest(scratch / out) != slow.results.of(words, out):
            finding = f"half an output: {ended}"
        row.add(finding and f"staging {number}: {finding}", ended.id or f"exit {ended.status}")


def shrinking(world: World, row: Row, number: int, slow: Slow) -> None:
    """The source becomes shorter, longer or other bytes while it is read."""
    dice = world.random("shrink", number)
    with world.scratch() as scratch:
        source = scratch / "in"
        shutil.copytree(slow.base / "a", source)
        name = dice.choice(["convert", "transcode", "lint", "run", "inspect"])
        words = {"convert": ["convert", source, "--layout", "marlin.mxfp4", "-o", scratch / "out"],
                 "transcode": ["transcode", source, "--to", "quark", "-o", scratch / "out"], "lint": ["lint", source, "--deep"],
                 "run": ["run", source, "--layer", "all", "--tokens", 64], "inspect": ["inspect", source]}[name]
        tensors = sorted(source.glob("*.safetensors"))
        process = world.start(*words)
        time.sleep(dice.uniform(0, 1) * slow.seconds["convert"])
        victim, how = dice.choice(tensors), dice.choice(["shorter", "empty", "longer", "removed"])
        size = victim.stat().st_size
        if how == "removed":
            victim.unlink()
        else:
            os.truncate(victim, {"shorter": dice.randrange(size), "empty": 0, "longer": size + 5000}[how])
        try:
            err = process.communicate(timeout=60)[1].decode(errors="replace")
            ended = Ended(words, process.returncode, "", err)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            ended = Ended(words, None)
        finding = judge(ended, {0, 3, 5}) if ended.status != 3 or ended.id else None  # what lint finds goes to its output
        if not finding and ended.status != 0 and (scratch / "out").exists():
            finding = f"failed, yet the output is there: {ended}"
        if not finding and (scratch / "out").exists() and name == "convert" and world.call("verify", scratch / "out").status != 0:
            finding = f"an output that is not sound: {ended}"
        row.add(finding and f"{how} {number}: {finding}", f"{how}: {ended.id or 'exit ' + str(ended.status)}")
