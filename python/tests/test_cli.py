"""The command line from the package: in this process, as a module and as the installed program."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import fp4moe
from fp4moe import cli

PROGRAM = Path(sys.executable).with_name("fp4moe")


def test_a_call_returns_status_output_and_errors(checkpoint):
    outcome = cli.call(["inspect", str(checkpoint), "--json"])
    assert outcome.status == 0 and outcome.err == ""
    assert json.loads(outcome.out)["schema_version"] == 1
    outcome = cli.call(["inspect", str(checkpoint / "nothing"), "--json"])
    error = json.loads(outcome.out)["error"]
    assert outcome.status == error["code"] != 0 and error["id"] in outcome.err


def test_nothing_reaches_the_real_streams(checkpoint, capfd):
    cli.call(["inspect", str(checkpoint)])
    cli.call(["nonsense"])
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("words", ["inspect", b"inspect", ["inspect", 3], [None], None, 7])
def test_words_of_a_wrong_type_are_type_errors(words):
    with pytest.raises(TypeError):
        cli.call(words)


def test_a_word_with_a_zero_is_refused():
    with pytest.raises(fp4moe.UsageError) as caught:
        cli.call(["inspect", "a\0b"])
    assert caught.value.id == "command.word"


def test_text_that_is_no_unicode_comes_back_readable(tmp_path):
    outcome = cli.call(["inspect", os.fsdecode(b"/no/such/\xc3\x28")])
    assert outcome.status != 0 and "/no/such/" in outcome.err


@pytest.mark.parametrize("program", [[sys.executable, "-m", "fp4moe"], [str(PROGRAM)]])
def test_the_program_is_the_command_line(program, checkpoint):
    if program == [str(PROGRAM)] and not PROGRAM.exists():
        pytest.skip("the package is not installed beside this Python")

    def run(*words):
        return subprocess.run([*program, *words], capture_output=True, text=True, check=False)

    assert run("--version").stdout == f"fp4moe {fp4moe.__version__}\n"
    assert run("inspect", str(checkpoint)).stdout == cli.call(["inspect", str(checkpoint)]).out
    wrong = run("inspect", str(checkpoint / "nothing"))
    assert wrong.returncode == cli.call(["inspect", str(checkpoint / "nothing")]).status
    assert wrong.stderr.startswith("fp4moe inspect: ")


def test_a_reader_that_goes_away_is_a_write_error_not_a_signal():
    full = open("/dev/full", "w")
    done = subprocess.run(
        [sys.executable, "-m", "fp4moe", "matrix"], stdout=full, stderr=subprocess.PIPE, text=True
    )
    assert done.returncode == 1 and "cannot write the output" in done.stderr


def test_ctrl_c_ends_the_program_with_its_status(tmp_path):
    program = subprocess.Popen(
        [sys.executable, "-m", "fp4moe", "synth", "--model", "gpt-oss-120b", "--layers", "8",
         "-o", str(tmp_path / "big")],
        stderr=subprocess.PIPE, text=True,
    )
    while program.poll() is None and not any(tmp_path.iterdir()):
        time.sleep(0.01)  # until it writes: before that, Python itself may still be starting
    program.send_signal(signal.SIGINT)
    _, err = program.communicate(timeout=60)
    assert program.returncode == 130 and "Traceback" not in err
    assert list(tmp_path.iterdir()) == []
