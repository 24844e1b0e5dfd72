"""Number formats against ml_dtypes and against golden data of the reference implementations."""

from __future__ import annotations

import doctest
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fp4moe
from fp4moe import formats

ml_dtypes = pytest.importorskip("ml_dtypes")
GOLDEN = Path(__file__).resolve().parents[2] / "testdata/formats.json"

WITNESSES = [
    (formats.e2m1, ml_dtypes.float4_e2m1fn),
    (formats.e8m0, ml_dtypes.float8_e8m0fnu),
    (formats.e4m3fn, ml_dtypes.float8_e4m3fn),
    (formats.e5m2, ml_dtypes.float8_e5m2),
    (formats.bf16, ml_dtypes.bfloat16),
]


@pytest.fixture(scope="module")
def golden() -> Any:
    if not GOLDEN.exists():
        pytest.skip("golden data are not part of this installation")
    return json.loads(GOLDEN.read_text())


def floats(digits: str) -> np.ndarray:
    return np.frombuffer(bytes.fromhex(digits), ">u4").astype("<u4").view(np.float32)


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal to the bit, but for the bits of NaN."""
    a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
    nan = np.isnan(a) & np.isnan(b)
    return bool(np.all((a.view(np.uint32) == b.view(np.uint32)) | nan))


@pytest.mark.parametrize(("ours", "theirs"), WITNESSES, ids=[f.name for f, _ in WITNESSES])
def test_every_code_has_the_value_that_ml_dtypes_gives_it(
    ours: formats.Format, theirs: Any
) -> None:
    codes = np.arange(2**ours.bits, dtype=ours.code_type)
    assert same(ours.decode(codes), codes.view(theirs).astype(np.float32))
    assert same(ours.values, ours.decode(codes))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [w for w in WITNESSES if w[0] in (formats.e2m1, formats.bf16)],
    ids=["e2m1", "bf16"],
)
def test_finite_numbers_are_rounded_as_ml_dtypes_rounds_them(
    ours: formats.Format, theirs: Any
) -> None:
    random = np.random.default_rng(1)
    x = (random.standard_normal(20000) * 2.0 ** random.integers(-20, 4, 20000)).astype(np.float32)
    ties = (
        (ours.values[:-1].astype(np.float64) + ours.values[1:]) / 2 if ours is formats.e2m1 else []
    )
    x = np.concatenate([x, np.asarray(ties, np.float32), [0.0, -0.0, 1e30, -1e30]]).astype(
        np.float32
    )
    x = x[np.isfinite(x)]
    if ours is formats.e2m1:
        x = np.clip(x, -6, 6)  # beyond it, ml_dtypes' rule differs between versions
    assert np.array_equal(ours.encode(x), x.astype(theirs).view(ours.code_type))


def test_e4m3_that_overflows_to_nan_is_what_ml_dtypes_computes() -> None:
    random = np.random.default_rng(2)
    x = (random.standard_normal(50000) * 2.0 ** random.integers(-14, 12, 50000)).astype(np.float32)
    with np.errstate(invalid="ignore"):
        theirs = x.astype(ml_dtypes.float8_e4m3fn)
    assert same(
        formats.e4m3.decode(formats.e4m3.encode(x, "rne_overflow_to_nan")),
        theirs.astype(np.float32),
    )


def test_golden_tables_are_ours(golden: Any) -> None:
    for name in ("e2m1", "e8m0", "e4m3fn", "e5m2"):
        assert same(
            getattr(formats, name).values,
            floats("".join(golden["tables"][name]).replace("nan", "7fc00000")),
        ), name


def test_golden_codes_are_ours(golden: Any) -> None:
    for case in golden["encode"]:
        wanted = np.frombuffer(bytes.fromhex(case["codes"]), np.uint8)
        ours = getattr(formats, case["format"]).encode(floats(case["inputs"]), case["rule"])
        assert np.array_equal(ours, wanted), (case["format"], case["rule"])


def test_arrays_keep_their_shape_and_need_no_numpy_type() -> None:
    assert formats.e2m1.decode([[1, 7], [15, 0]]).tolist() == [[0.5, 6.0], [-6.0, 0.0]]
    assert formats.e8m0.encode([[1.0], [1.5]]).tolist() == [[127], [128]]
    assert formats.e2m1.encode(np.ones((2, 3, 4))[:, ::2]).shape == (2, 2, 4)
    assert formats.bf16.encode(3.0).shape == () and formats.bf16.decode(0x4040) == 3.0
    assert (
        formats.e2m1.encode([]).shape == (0,)
        and formats.e2m1.decode(np.zeros(0, np.uint8)).size == 0
    )


def test_nibbles_go_low_first_and_come_back() -> None:
    assert formats.pack([[1, 2, 3, 15]]).tolist() == [[0x21, 0xF3]]
    codes = np.random.default_rng(3).integers(0, 16, (5, 64)).astype(np.uint8)
    assert np.array_equal(formats.unpack(formats.pack(codes)), codes)


def test_wrong_codes_and_roundings_are_refused_in_words() -> None:
    with pytest.raises(ValueError, match="expected 0 to 15, found 3 to 16"):
        formats.e2m1.decode([3, 16])
    with pytest.raises(TypeError, match="expected integers, found float64"):
        formats.e2m1.decode([1.5])
    with pytest.raises(ValueError, match="even number"):
        formats.pack([1, 2, 3])
    with pytest.raises(
        fp4moe.UsageError, match="rne_satfinite, nearest_ties_away_satfinite"
    ) as why:
        formats.e2m1.encode([1.0], "stochastic")
    assert why.value.id == "formats.rounding" and why.value.found == "stochastic"
    with pytest.raises(ValueError):
        formats.e2m1.values[0] = 1  # shared by everyone


def test_the_examples_of_the_docstrings_are_true() -> None:
    for name in ("fp4moe.formats", "fp4moe.quantize"):
        results = doctest.testmod(sys.modules[name])
        assert results.attempted >= 3 and results.failed == 0, name
