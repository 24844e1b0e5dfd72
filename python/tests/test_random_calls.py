"""Random calls with arguments of every kind: results or exceptions with words, never a crash."""

from __future__ import annotations

import random

import numpy as np
import pytest
from conftest import EXPERTS, HIDDEN, TOP_K, GptOss

import fp4moe

ml_dtypes = pytest.importorskip("ml_dtypes")
CALLS = 4000


def arrays(seed: int) -> list[object]:
    """Arrays that fit, that nearly fit, and what is none."""
    values = np.random.default_rng(seed)
    result: list[object] = [None, 1, "x", b"bytes", [[1.0]], {}, bytearray(256), memoryview(bytes(64))]
    for rows in (0, 1, 3):
        for columns in (0, 1, TOP_K, EXPERTS, HIDDEN, HIDDEN + 1):
            x = values.standard_normal((rows, columns)).astype(np.float32)
            result += [x, x.astype(np.float64), x.astype(np.float16), x.astype(ml_dtypes.bfloat16)]
            ids = values.integers(-1, EXPERTS, (rows, columns))
            result += [ids, ids.astype(np.int32), ids.astype(np.uint8), ids + 5, x.astype(">f4")]
            frozen = x.copy()
            frozen.flags.writeable = False
            result += [frozen, np.asfortranarray(x), x[::-1], x[:, ::-1], x.ravel(), x[None]]
            result += [np.broadcast_to(x[:1], (rows and 3, columns)) if rows else x, x.astype("c8")]
            result.append(np.full_like(x, np.nan))
    result += [np.float32(3), np.array(3.0), np.empty((0,)), np.array([object()]), np.array(["a"])]
    return result


def test_no_argument_crashes_a_layer(witness: GptOss):
    choose = random.Random(11)
    layer = fp4moe.Layer.open(witness.path, 0, threads=2)
    pool = arrays(5)
    good = [x for x in pool if isinstance(x, np.ndarray) and x.ndim == 2]
    outcomes = {"result": 0, "refusal": 0}
    for _ in range(CALLS):
        take = lambda: choose.choice(good if choose.random() < 0.7 else pool)  # noqa: E731
        calls = [
            lambda: layer.run(take(), take()),
            lambda: layer.run(take(), take(), take()),
            lambda: layer.apply(take(), take(), take()),
            lambda: layer.apply(take(), take(), take(), out=take()),
            lambda: layer.route(take()),
            lambda: layer.load_expert(choose.choice([0, 7, 8, -1, 2**40])),
            lambda: layer(take()),
            lambda: layer.run(take(), take(), bias=take()),
        ]
        try:
            choose.choice(calls)()
            outcomes["result"] += 1
        except (fp4moe.Error, TypeError) as why:
            outcomes["refusal"] += 1
            assert str(why)
    assert outcomes["result"] > 20 and outcomes["refusal"] > 20, outcomes
    x = np.ones((1, HIDDEN), np.float32)
    assert np.isfinite(layer.run(x, np.zeros((1, EXPERTS), np.float32))).all()
