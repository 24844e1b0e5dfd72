"""What every checkpoint of another tool goes through; a row says what must come of it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import cut

PROGRAM = os.environ.get("FP4MOE_PROGRAM", "fp4moe")

Row = dict[str, Any]


def call(*words: object) -> subprocess.CompletedProcess[str]:
    """The program with these words."""
    return subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True, check=False)


def report(*words: object) -> dict[str, Any]:
    """What it answers as JSON; it must succeed."""
    outcome = call(*words, "--json")
    assert outcome.returncode == 0, outcome.stderr
    return dict(json.loads(outcome.stdout))


def why(*words: object) -> tuple[int, str]:
    """Its status and the error's id."""
    outcome = call(*words, "--json")
    return outcome.returncode, str(json.loads(outcome.stdout).get("error", {}).get("id", ""))


def refuse(path: Path, row: Row) -> None:
    """Every command gives the reason in words."""
    for command in ("lint", "run", "plan"):
        outcome = call(command, path)
        assert outcome.returncode == 3
        assert row["refused"] in outcome.stdout + outcome.stderr
        assert row["word"] in outcome.stdout + outcome.stderr


def inspect_and_lint(path: Path, row: Row) -> None:
    """The dialect is recognized, nothing is wrong."""
    seen = report("inspect", path)
    assert [seen["dialect"], seen["format"]] == [row["dialect"], row["format"]]
    assert report("lint", "--deep", path)["errors"] == 0


def there_and_back(path: Path, row: Row, folder: Path) -> None:
    """Every other dialect, or a reason; the way back gives the same tensors."""
    for target, expected in row["transcode"].items():
        there = folder / (target + (".gguf" if target == "gguf" else ""))
        if expected != "back":
            assert why("transcode", path, "--to", target, "-o", there) == (2, expected), target
            continue
        report("transcode", path, "--to", target, "-o", there)
        assert report("lint", there)["errors"] == 0
        report("run", there, "--check")
        if path.suffix == ".gguf":  # other people's files hold norms and metadata in other types
            continue
        back = folder / f"{target}-back"
        report("transcode", there, "--to", row["dialect"], "-o", back)
        assert tensors(back) == tensors(path), target


def tensors(path: Path) -> dict[str, tuple[str, list[int], bytes]]:
    """All of a checkpoint's, whatever its shards."""
    found: dict[str, tuple[str, list[int], bytes]] = {}
    for file in sorted(path.glob("*.safetensors")):
        found |= cut.read(file)
    return found


def convert_and_unconvert(path: Path, row: Row, folder: Path) -> None:
    """Converted, verified, run, and given back as it was."""
    report("convert", path, "--layout", f"cpu_native.{row['format']}", "-o", folder / "c")
    report("verify", "--deep", folder / "c", "--source", path)
    report("run", folder / "c", "--check")
    report("unconvert", folder / "c", "-o", folder / "u")
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    for file in files:
        assert (folder / "u" / file.name).read_bytes() == file.read_bytes()
