"""What the plug-in says of the vLLM that is installed, of one that does not fit, and of none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fp4moe.vllm.plugin import __main__ as program
from fp4moe.vllm.plugin import contract

HAS_VLLM = contract.installed_version() is not None
PROGRAM = ("-m", "fp4moe.vllm.plugin")
START = ("-c", "import fp4moe.vllm.plugin as plugin; plugin.register(); print('vLLM goes on')")

# A package's files by their names, and the first difference that is told.
OTHERS = {
    "renamed": (
        {"__init__.py": "", "config.py": "def get_current_vllm_config_or_none(): return None\n"},
        "vllm.config has no VllmConfig",
    ),
    "broken": (
        {"__init__.py": "raise RuntimeError('no such device')\n"},
        "vllm.config cannot be imported (RuntimeError: no such device)",
    ),
}


def run(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Python with the packages of a folder before all others."""
    paths = (str(place), os.environ.get("PYTHONPATH", ""))
    given = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "FP4MOE_VLLM": "auto"}
    shared: dict[str, Any] = {"capture_output": True, "text": True, "cwd": place}
    return subprocess.run([sys.executable, *words], env={**os.environ, **given}, **shared)


def install(place: Path, files: dict[str, str]) -> None:
    """A package vllm of version 99.0."""
    facts = place / "vllm-99.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 99.0\n")
    (place / "vllm").mkdir()
    for name, text in files.items():
        (place / "vllm" / name).write_text(text)


@pytest.mark.parametrize("kind", OTHERS)
def test_a_vllm_that_does_not_fit_starts_without_the_plug_in(tmp_path: Path, kind: str) -> None:
    files, sentence = OTHERS[kind]
    install(tmp_path, files)
    found = run(tmp_path, *START)
    assert found.returncode == 0 and found.stdout == "vLLM goes on\n", found.stderr
    assert f"the plug-in stays off, because vLLM 99.0 is not what it was written for: {sentence}" in (
        found.stderr
    )
    assert "FP4MOE_VLLM=off" in found.stderr and "Traceback" not in found.stderr


@pytest.mark.parametrize("kind", OTHERS)
def test_the_program_ends_with_5_where_vllm_does_not_fit(tmp_path: Path, kind: str) -> None:
    files, sentence = OTHERS[kind]
    install(tmp_path, files)
    found = run(tmp_path, *PROGRAM)
    assert found.returncode == 5, found.stderr
    assert sentence in found.stdout.splitlines()
    assert found.stdout.endswith("vLLM 99.0: the plug-in does not fit\n")


def test_the_program_ends_with_7_where_there_is_no_vllm(tmp_path: Path, monkeypatch, capsys) -> None:
    if not HAS_VLLM:
        found = run(tmp_path, *PROGRAM)
        assert found.returncode == 7 and "no vLLM is installed: pip install vllm" in found.stdout
    monkeypatch.setattr(contract, "PACKAGES", ("vllm-of-nowhere",))
    assert program.main() == 7 and "no vLLM is installed" in capsys.readouterr().out


def test_the_program_ends_with_0_where_vllm_fits(monkeypatch, capsys) -> None:
    monkeypatch.setattr(contract, "installed_version", lambda: "99.0")
    monkeypatch.setattr(contract, "check", list)
    assert program.main() == 0
    assert capsys.readouterr().out.startswith("vLLM 99.0: the plug-in fits: ")


@pytest.mark.skipif(not HAS_VLLM, reason="no vLLM is installed")
def test_the_installed_vllm_fits() -> None:
    assert contract.check() == []
