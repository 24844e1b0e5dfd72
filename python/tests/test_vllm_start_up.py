"""The records of python/bench/start_up.py."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[1] / "bench"


def test_a_record_names_the_machine_the_versions_and_every_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    import start_up

    seconds = iter([4.0, 1.0, 2.0, 3.0, 6.0, 5.0])

    def measure(engine: str, path: Path, dtype: str) -> dict[str, Any]:
        return {"load": next(seconds), "token": [7], "peak_bytes": 10}

    monkeypatch.setattr(start_up, "measure", measure)
    monkeypatch.setattr(start_up, "RESULTS", tmp_path)
    for kind in start_up.KINDS:
        (tmp_path / "files" / kind).mkdir(parents=True)
    for old in ("here-start-up-vllm-2026-01-01.json", "there-start-up-vllm-2026-01-01.json"):
        (tmp_path / old).write_text("{}")
    words = ["--engine", "vllm", "--rounds", "3", "--layers", "2", "--name", "here"]
    monkeypatch.setattr(sys, "argv", ["start_up.py", *words, "--files", str(tmp_path / "files")])
    start_up.main()
    (path,) = tmp_path.glob("here-*.json")
    assert path.name != "here-start-up-vllm-2026-01-01.json"
    assert (tmp_path / "there-start-up-vllm-2026-01-01.json").exists()
    report = json.loads(path.read_text())
    assert json.loads(capsys.readouterr().out) == report
    assert report["machine"]["cpu"] and report["machine"]["threads"] > 0
    assert report["versions"]["fp4moe"]
    assert (report["engine"], report["layers"], report["rounds"]) == ("vllm", 2, 3)
    assert report["checkpoint"]["load"] == {"median": 4.0, "runs": [4.0, 2.0, 6.0]}
    assert report["folder"]["load"] == {"median": 3.0, "runs": [1.0, 3.0, 5.0]}
