"""Calls run beside each other and beside Python; closed layers and forked children are refused."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import EXPERTS, HIDDEN, synth, tokens

import fp4moe
from fp4moe import cli


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A layer whose calls take long enough to be watched."""
    return synth(
        tmp_path_factory.mktemp("models") / "large", "--model", "gpt-oss-20b", "--experts", EXPERTS,
        "--hidden", 512, "--intermediate", 512,
    )


def rows(count: int, columns: int, seed: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, columns)).astype(np.float32)


def test_python_goes_on_while_a_layer_computes(large):
    layer = fp4moe.Layer.open(large, 0, threads=1)
    x, logits = rows(1024, 512), rows(1024, EXPERTS)
    steps = 0
    done = threading.Event()

    def compute() -> None:
        try:
            layer.run(x, logits)
        finally:
            done.set()

    worker = threading.Thread(target=compute)
    worker.start()
    while not done.is_set():
        steps += 1
        time.sleep(0.0005)
    worker.join()
    assert steps >= 5, "the interpreter stood still"


def test_threads_share_a_layer_and_use_their_own(large):
    shared = fp4moe.Layer.open(large, 0, threads=2)
    x, logits = rows(16, 512), rows(16, EXPERTS)
    expected = shared.run(x, logits)
    wrong: list[object] = []

    def compute(layer: fp4moe.Layer) -> None:
        for _ in range(20):
            if not np.array_equal(layer.run(x, logits), expected):
                wrong.append(layer)

    layers = [shared, shared, fp4moe.Layer.open(large, 0, threads=2)]
    threads = [threading.Thread(target=compute, args=(layer,)) for layer in layers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_layer_closed_during_a_call_finishes_it(large):
    x, logits = rows(256, 512), rows(256, EXPERTS)
    layer = fp4moe.Layer.open(large, 0, threads=1)
    expected = layer.run(x, logits)
    results: list[np.ndarray] = []
    started = threading.Event()

    def compute() -> None:
        started.set()
        try:
            while True:
                results.append(layer.run(x, logits))
        except fp4moe.UsageError as why:
            assert why.id == "layer.closed"

    worker = threading.Thread(target=compute)
    worker.start()
    started.wait()
    while not results:
        time.sleep(0.001)
    layer.close()
    worker.join(timeout=60)
    assert not worker.is_alive()
    assert all(np.array_equal(result, expected) for result in results)


def test_a_closed_layer_is_refused_by_everything(checkpoint):
    with fp4moe.Layer.open(checkpoint, 0) as layer:
        x, logits = tokens(1), rows(1, EXPERTS)
        ids, weights = layer.route(logits)
        assert not layer.closed
    layer.close()  # again: nothing
    assert layer.closed and repr(layer) == "<fp4moe.Layer, closed>"
    calls = [
        lambda: layer.run(x, logits),
        lambda: layer(x, logits),
        lambda: layer.apply(x, ids, weights),
        lambda: layer.route(logits),
        layer.load,
        lambda: layer.load_expert(0),
        layer.info,
        lambda: layer.hidden,
    ]
    for call in calls:
        with pytest.raises(fp4moe.UsageError) as caught:
            call()
        assert caught.value.id == "layer.closed"


def test_a_layer_outlives_its_model(witness):
    model = fp4moe.Model.open(witness.path)
    layer = model.layer(0, weights="mapped")
    x, logits = tokens(2), rows(2, EXPERTS)
    expected = layer.run(x, logits)
    del model
    layer.load()
    assert np.array_equal(layer.run(x, logits), expected)


def in_child(layer: fp4moe.Layer, path: Path, answers: multiprocessing.Queue) -> None:
    x, logits = tokens(2), rows(2, EXPERTS)
    try:
        layer.run(x, logits)
    except fp4moe.UsageError as why:
        answers.put(why.id)
    own = fp4moe.Layer.open(path, 0, threads=2)
    answers.put(own.run(x, logits))
    layer.close()


def test_a_forked_child_is_refused_and_opens_its_own(checkpoint):
    layer = fp4moe.Layer.open(checkpoint, 0, threads=2)
    expected = layer.run(tokens(2), rows(2, EXPERTS))
    context = multiprocessing.get_context("fork")
    answers: multiprocessing.Queue = context.Queue()
    child = context.Process(target=in_child, args=(layer, checkpoint, answers))
    child.start()
    assert answers.get(timeout=60) == "layer.forked"
    assert np.array_equal(answers.get(timeout=60), expected)
    child.join(timeout=60)
    assert child.exitcode == 0
    assert np.array_equal(layer.run(tokens(2), rows(2, EXPERTS)), expected)


def test_a_child_that_ends_as_usual_does_not_wait_for_threads_it_has_not(checkpoint):
    layer = fp4moe.Layer.open(checkpoint, 0, threads=2)
    child = os.fork()
    if child == 0:
        del layer
        os._exit(17)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            assert os.waitstatus_to_exitcode(status) == 17
            return
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    pytest.fail("the child hangs")


def test_ctrl_c_during_a_command_is_a_keyboard_interrupt_and_python_keeps_its_handler(tmp_path):
    handler = signal.getsignal(signal.SIGINT)

    def press() -> None:
        while not any(tmp_path.iterdir()):  # until the command writes
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    presser = threading.Thread(target=press)
    presser.start()
    outcome = cli.call(
        ["synth", "--model", "gpt-oss-120b", "--layers", "8", "-o", str(tmp_path / "big"), "--json"]
    )
    presser.join()
    assert outcome.status == 130, outcome
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGINT) is handler
    with pytest.raises(KeyboardInterrupt):  # its own again
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)


def test_layers_share_their_threads(large):
    model = fp4moe.Model.open(large)
    first = model.layer(0, threads=3)
    before = len(os.listdir("/proc/self/task"))
    others = [model.layer(0, threads=3), fp4moe.Layer.open(large, 0, threads=3)]
    assert len(os.listdir("/proc/self/task")) == before
    x, logits = rows(8, 512), rows(8, EXPERTS)
    expected = first.run(x, logits)
    first.close()
    for layer in others:
        assert np.array_equal(layer.run(x, logits), expected)
