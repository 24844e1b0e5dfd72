"""The first questions of people who come to the program, as they type them: right, short, and with something to do at the end."""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import subprocess

import pytest

PROGRAM = os.environ["FP4MOE_PROGRAM"]
PERSONAS = json.loads((pathlib.Path(__file__).parent / "questions.json").read_text())["personas"]
QUESTIONS = [(who, question) for who, all_ in PERSONAS.items() for question in all_]
LOG = "(EngineCore_0) ERROR ValueError: No MXFP4 MoE backend supports the deployment configuration.\n"


def ask(*words: str, cwd: pathlib.Path) -> subprocess.CompletedProcess:
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "FP4MOE_"))}
    return subprocess.run([PROGRAM, *words], cwd=cwd, capture_output=True, text=True, env=variables, check=False, timeout=120)


@pytest.fixture(scope="module")
def things(tmp_path_factory):
    """Names of what a question may be about; {new} is another free name each time."""
    folder = tmp_path_factory.mktemp("newcomer")

    def make(*words: str) -> None:
        done = ask(*words, cwd=folder)
        assert done.returncode == 0, done.stderr

    small = ["--experts", "4", "--layers", "2", "--hidden", "128"]
    qwen = ["synth", "--model", "qwen3-30b-a3b", *small, "--intermediate", "64"]
    make("synth", "--model", "gpt-oss-20b", *small, "--intermediate", "128", "-o", "tiny")
    make(*qwen, "-o", "qwen")
    make(*qwen, "--defect", "inverted-global-scale", "-o", "inverted")
    make(*qwen, "--defect", "truncated-shard", "-o", "truncated")
    make(*qwen, "--dialect", "bf16", "-o", "plain")
    make("convert", "tiny", "--layout", "marlin.mxfp4", "-o", "converted")
    (folder / "vllm.log").write_text(LOG)
    names = {name: name for name in ("tiny", "qwen", "inverted", "truncated", "plain", "converted")}
    numbers = itertools.count()
    return folder, lambda text: text.format(**names, log="vllm.log", new=f"new{next(numbers)}")


def test_each_persona_has_ten_questions() -> None:
    assert {len(questions) for questions in PERSONAS.values()} == {10}


@pytest.mark.parametrize(("who", "question"), QUESTIONS, ids=[f"{who}: {question['ask']}" for who, question in QUESTIONS])
def test_the_answer_is_right_short_and_says_what_to_do(things, who, question) -> None:
    folder, fill = things
    done = ask(*fill(question["run"]).split(), cwd=folder)
    answer = done.stdout + done.stderr
    lines = [line for line in answer.splitlines() if line.strip()]
    assert done.returncode == question.get("exit", 0), answer
    for text in question["has"]:
        assert text in answer, f"lacks {text!r}:\n{answer}"
    for text in question.get("hasnt", []):
        assert text not in answer, f"has {text!r}:\n{answer}"
    assert len(answer.splitlines()) <= question["lines"], answer
    if question.get("do", True):
        last = lines[-1].strip()
        assert last.startswith(("Next: ", "do:", "do ", "-> ")), f"ends with nothing to do:\n{answer}"
