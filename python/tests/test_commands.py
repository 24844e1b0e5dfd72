"""The verbs of the command line in this process, on checkpoints that synth makes."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

import fp4moe

SIZES = {"experts": 4, "layers": 2, "hidden": 64, "intermediate": 64, "seed": 1}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("commands") / "tiny"
    result = fp4moe.synth(folder, model="gpt-oss-20b", **SIZES)
    assert result["experts"] == 4 and result["out"] == str(folder)
    return folder


def test_a_checkpoint_is_looked_at(tiny: Path) -> None:
    assert fp4moe.inspect(tiny)["dialect"] == "gpt-oss"
    report = fp4moe.lint(tiny, deep=True)
    assert report["errors"] == 0 and report["experts"] == 8
    assert fp4moe.plan(tiny, tp=2)["split"]["tp"] == 2
    assert fp4moe.plan(model="gpt-oss-120b", tp=8, device="h100", policy="2026-08-22")
    assert {"native"} == {policy["policy"] for policy in fp4moe.matrix()["policies"]}
    assert fp4moe.doctor()["build"]["version"] == fp4moe.__version__


def test_findings_of_lint_are_a_result_and_no_exception(tmp_path: Path) -> None:
    fp4moe.synth(tmp_path / "nan", model="qwen3-30b-a3b", defect="nan-scale", **SIZES)
    report = fp4moe.lint(tmp_path / "nan")
    assert report["errors"] == 1 and report["findings"][0]["code"] == "scale.nan"


def test_a_conversion_there_and_back_gives_the_same_files(tiny: Path, tmp_path: Path) -> None:
    result = fp4moe.convert(
        tiny, tmp_path / "marlin", backend="MARLIN", device="h100", policy="2026-08-22"
    )
    assert result["layout"] == "marlin.mxfp4"
    assert fp4moe.verify(tmp_path / "marlin", deep=True)["findings"] == []
    fp4moe.unconvert(tmp_path / "marlin", out=tmp_path / "back")
    for file in sorted(tiny.glob("*.safetensors")):
        assert (tmp_path / "back" / file.name).read_bytes() == file.read_bytes()
    half = fp4moe.convert(tiny, tmp_path / "half", backend="CPU", tp=(0, 2))
    assert half["tp"] == "0/2"


def test_a_damaged_folder_is_a_mismatch_with_the_report(tiny: Path, tmp_path: Path) -> None:
    fp4moe.convert(tiny, tmp_path / "cpu", backend="CPU")
    victim = max((tmp_path / "cpu").glob("*.safetensors"), key=lambda file: file.stat().st_size)
    content = bytearray(victim.read_bytes())
    content[-1] ^= 1
    victim.write_bytes(content)
    with pytest.raises(fp4moe.MismatchError) as why:
        fp4moe.verify(tmp_path / "cpu")
    assert why.value.code == 5 and why.value.record is not None
    assert len(why.value.record["findings"]) == 1


def test_dialects_and_formats_change(tiny: Path, tmp_path: Path) -> None:
    fp4moe.transcode(tiny, tmp_path / "ct", to="compressed-tensors")
    assert fp4moe.inspect(tmp_path / "ct")["dialect"] == "compressed-tensors"
    fp4moe.synth(tmp_path / "plain", model="qwen3-30b-a3b", dialect="bf16", **SIZES)
    fp4moe.quantize_checkpoint(tmp_path / "plain", tmp_path / "nv", format="nvfp4")
    assert fp4moe.lint(tmp_path / "nv")["errors"] == 0


def test_layers_run_and_compare(tiny: Path, tmp_path: Path) -> None:
    done = fp4moe.run(tiny, tokens=4, check=True, out=tmp_path / "out.safetensors")
    assert done and (tmp_path / "out.safetensors").exists()
    assert fp4moe.diff("CPU", "exact", checkpoint=tiny)["command"] == "diff"


def test_golden_is_left_to_the_program_built_from_source() -> None:
    assert not hasattr(fp4moe, "golden")
    with pytest.raises(fp4moe.UsageError) as why:
        fp4moe.command("golden", "testdata/formats.json")
    assert why.value.id == "command.unknown"
    assert why.value.remedy == "Only the program that is built from source has it: make build"


def test_values_are_taken_as_their_options_say(tiny: Path) -> None:
    marked = fp4moe.lint(tiny, fix=None, verbose=False)
    assert marked["errors"] == 0
    every = fp4moe.bench("route", tokens=range(1, 3), seconds=0.01, threads=1)["results"]
    assert {row["tokens"] for row in every} == {1, 2}
    with pytest.raises(TypeError, match="threads: expected a text, number or path, found tuple"):
        fp4moe.lint(tiny, threads=(0, 2))  # type: ignore[arg-type]


def test_progress_is_told_in_order_and_to_the_end(tiny: Path, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    fp4moe.convert(tiny, tmp_path / "out", backend="CPU", progress=lambda *step: told.append(step))
    titles, done, totals = zip(*told, strict=True)
    assert set(titles) == {"convert"} and len(set(totals)) == 1
    assert list(done) == sorted(done) and done[-1] == totals[-1] > 0


def test_an_exception_of_the_callable_stops_the_work_and_comes_out(tmp_path: Path) -> None:
    class Enough(Exception):
        pass

    def stop(*_: Any) -> None:
        raise Enough

    fp4moe.synth(tmp_path / "in", model="gpt-oss-20b", **{**SIZES, "layers": 6, "hidden": 512})
    with pytest.raises(Enough):
        fp4moe.convert(tmp_path / "in", tmp_path / "out", backend="CPU", threads=1, progress=stop)
    assert not (tmp_path / "out").exists()
    # Nothing of it stays behind: the next command runs to its end.
    fp4moe.convert(tmp_path / "in", tmp_path / "out", backend="CPU", resume=True)
    assert fp4moe.verify(tmp_path / "out", deep=True)["findings"] == []


def test_ctrl_c_is_a_keyboard_interrupt_and_resume_goes_on(tmp_path: Path) -> None:
    fp4moe.synth(tmp_path / "in", model="gpt-oss-20b", **{**SIZES, "layers": 6, "hidden": 512})
    sent: list[int] = []

    def interrupt(*_: Any) -> None:
        if not sent:
            sent.append(1)
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        fp4moe.convert(
            tmp_path / "in", tmp_path / "out", backend="CPU", threads=1, progress=interrupt
        )
    assert sent and signal.getsignal(signal.SIGINT) is before
    with pytest.raises(KeyboardInterrupt):  # Python's own handler is back
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait(1)
    fp4moe.convert(tmp_path / "in", tmp_path / "out", backend="CPU", resume=True)


def test_wrong_paths_words_and_types_are_refused(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(fp4moe.FailedError) as why:
        fp4moe.inspect("/no/such/checkpoint")
    assert why.value.id == "store.open" and why.value.path == "/no/such/checkpoint"
    assert isinstance(why.value, OSError)
    with pytest.raises(fp4moe.UsageError) as taken:
        fp4moe.transcode(tiny, tiny, to="quark")
    assert taken.value.code == 2
    with pytest.raises(TypeError, match="no such word 'bakend'; did you mean backend"):
        fp4moe.command("convert", tiny, out=tmp_path / "x", bakend="CPU")
    with pytest.raises(TypeError, match="unexpected keyword argument 'bakend'"):
        fp4moe.convert(tiny, tmp_path / "x", bakend="CPU")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="path: expected a text, number or path, found NoneType"):
        fp4moe.inspect(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="progress: expected a callable, found int"):
        fp4moe.convert(tiny, tmp_path / "x", progress=3)  # type: ignore[arg-type]
    with pytest.raises(fp4moe.UsageError) as zero:
        fp4moe.inspect("a\0b")
    assert zero.value.id == "command.word"
    with pytest.raises(fp4moe.UsageError):
        fp4moe.lint(tiny, threads="many")
    with pytest.raises(fp4moe.Error):
        fp4moe.inspect("--help")  # a path, not an option
    with pytest.raises(fp4moe.UsageError):
        fp4moe.command("frobnicate")


def test_a_signal_that_comes_too_late_is_the_interpreters(tiny: Path) -> None:
    sent: list[int] = []

    def interrupt(*_: Any) -> None:
        if not sent:  # a second one would end the process
            sent.append(1)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        fp4moe.command("lint", tiny, progress=interrupt)
        threading.Event().wait(1)
    assert fp4moe.lint(tiny)["errors"] == 0


def test_any_command_can_be_called_by_its_name(tiny: Path) -> None:
    assert fp4moe.command("lint", tiny, deep=True)["errors"] == 0
    every = fp4moe.command("explain", model="gpt-oss-20b", all_devices=True)["devices"]
    assert {"h100", "cpu-arm"} <= {record["device"]["name"] for record in every}


def test_commands_run_in_several_threads_at_once(tiny: Path) -> None:
    reports: list[Any] = []
    threads = [threading.Thread(target=lambda: reports.append(fp4moe.lint(tiny))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [report["errors"] for report in reports] == [0] * 6
