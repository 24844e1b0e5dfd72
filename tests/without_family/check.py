#!/usr/bin/env python3
"""A program without Marlin lists what is left, chooses another backend, and converts and runs.

    check.py PROGRAM FULL_PROGRAM
"""
import json
import subprocess
import sys
import tempfile
from pathlib import Path


def run(program: str, *words: str, status: int = 0) -> dict:
    done = subprocess.run([program, *words, "--json"], capture_output=True, text=True, timeout=300)
    assert done.returncode == status, (words, done.returncode, done.stdout[-2000:], done.stderr[-2000:])
    return json.loads(done.stdout or done.stderr)


def layouts(program: str) -> list[tuple[str, str]]:
    return [(row["layout"], row["generation"]) for row in run(program, "layouts")["layouts"]]


def main(program: str, full: str) -> None:
    all_layouts = layouts(full)
    left = [row for row in all_layouts if not row[0].startswith("marlin")]
    assert len(left) < len(all_layouts)
    assert layouts(program) == left, (layouts(program), left)
    # On an A100 vLLM takes Marlin for gpt-oss; without it, another one, and says nothing of Marlin.
    asked = ("explain", "gpt-oss-20b", "--vllm", "latest", "--device", "a100")
    assert run(full, *asked)["backend"] == "MARLIN"
    answer = run(program, *asked)
    assert answer["backend"] not in ("MARLIN", None), answer["backend"]
    with tempfile.TemporaryDirectory() as folder:
        tiny, out = str(Path(folder) / "tiny"), str(Path(folder) / "out")
        run(program, "synth", "--model", "gpt-oss-20b", "--layers", "1", "--experts", "4", "--hidden", "128",
            "--intermediate", "128", "-o", tiny)
        run(program, "convert", tiny, "--layout", "triton.mxfp4", "--device", "h100", "-o", out)
        run(program, "verify", out, "--deep")
        assert run(program, "run", tiny, "--tokens", "4", "--check")["layers"]
        run(program, "run", tiny, "--tokens", "4", "--backend", "MARLIN", status=2)


if __name__ == "__main__":
    main(*sys.argv[1:])
