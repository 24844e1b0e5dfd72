"""FP4 blocks against golden data, and against ml_dtypes' arithmetic in numpy."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fp4moe

ml_dtypes = pytest.importorskip("ml_dtypes")
GOLDEN = Path(__file__).resolve().parents[2] / "testdata/formats.json"


def data(*shape: int, seed: int = 1) -> np.ndarray:
    random = np.random.default_rng(seed)
    return (random.standard_normal(shape) * 2.0 ** random.integers(-6, 7, (*shape[:-1], 1))).astype(
        np.float32
    )


def dequantized(q: fp4moe.Quantized) -> np.ndarray:
    """By ml_dtypes' types and float32 products alone."""
    codes, scales = np.asarray(q.codes), np.asarray(q.scales)
    nibbles = np.stack([codes & 15, codes >> 4], -1).reshape(*codes.shape[:-1], 2 * codes.shape[-1])
    values = nibbles.view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    kind = ml_dtypes.float8_e8m0fnu if q.format == "mxfp4" else ml_dtypes.float8_e4m3fn
    wide = np.repeat(scales.view(kind).astype(np.float32), q.block, -1)
    return values * wide / np.float32(q.global_scale)


def floats(digits: str) -> np.ndarray:
    return np.frombuffer(bytes.fromhex(digits), ">u4").astype("<u4").view(np.float32)


@pytest.mark.parametrize("format", ["mxfp4", "nvfp4"])
@pytest.mark.parametrize("shape", [(1, 32), (7, 96), (3, 5, 64), (64,), (0, 32), (2, 0)])
def test_values_come_back_as_ml_dtypes_computes_them(format: str, shape: tuple[int, ...]) -> None:
    x = data(*shape)
    q = fp4moe.quantize(x, format)
    assert q.shape == shape and q.format == format
    assert q.codes.shape == (*shape[:-1], shape[-1] // 2)
    assert q.scales.shape == (*shape[:-1], shape[-1] // q.block)
    back = q.dequantize()
    assert back.shape == shape and back.dtype == np.float32
    assert np.array_equal(back, dequantized(q))
    if x.size:
        step = np.abs(x.reshape(-1, q.block)).max(-1, keepdims=True)
        assert (
            np.abs((back - x).reshape(-1, q.block) / step).max() < 0.26
        )  # half of the widest step, of 6


def test_the_ocp_rule_is_what_ml_dtypes_gives() -> None:
    x = data(40, 128, seed=4)
    blocks = x.reshape(40, 4, 32)
    exponent = np.floor(np.log2(np.abs(blocks).max(-1).astype(np.float64))) - 2
    scaled = np.clip(blocks / np.exp2(exponent)[..., None].astype(np.float32), -6, 6)
    codes = (
        scaled.astype(np.float32).astype(ml_dtypes.float4_e2m1fn).view(np.uint8).reshape(40, 128)
    )
    q = fp4moe.quantize(x, "mxfp4", rule="floor4.rne")
    assert np.array_equal(q.scales, (exponent + 127).astype(np.uint8))
    assert np.array_equal(q.codes, codes[:, 0::2] | codes[:, 1::2] << 4)


@pytest.mark.skipif(not GOLDEN.exists(), reason="golden data are not part of this installation")
def test_golden_blocks_are_ours() -> None:
    golden = json.loads(GOLDEN.read_text())
    count = 0
    for case in golden["blocks"]:
        x = floats(case["inputs"])
        if not case["rule"].startswith("mxfp4.") or not np.isfinite(x).all() or x.size != 32:
            continue
        given = x.astype(ml_dtypes.bfloat16) if case["in_dtype"] == "bf16" else x
        q = fp4moe.quantize(given.reshape(1, -1), "mxfp4", rule=case["rule"])
        assert q.scales.tolist() == [[case["scale"]]], case["id"]
        skipped = set(case.get("unspecified", ()))
        ours, theirs = (
            fp4moe.formats.unpack(q.codes[0]),
            fp4moe.formats.unpack(np.frombuffer(bytes.fromhex(case["codes"]), np.uint8)),
        )
        assert all(
            a == b for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if i not in skipped
        ), case["id"]
        count += 1
    for case in golden["nvfp4"]:
        x, scale = floats(case["inputs"]), float(floats(case["global_scale"])[0])
        if not np.isfinite(x).all() or not np.isfinite(scale) or scale <= 0 or x.size != 16:
            continue
        q = fp4moe.quantize(
            x.astype(ml_dtypes.bfloat16).reshape(1, -1), "nvfp4", global_scale=scale
        )
        wanted = fp4moe.formats.unpack(np.frombuffer(bytes.fromhex(case["codes"]), np.uint8))
        ours = fp4moe.formats.unpack(q.codes[0])
        magnitude_zero = (wanted & 7 == 0) & (ours & 7 == 0)
        assert q.scales.tolist() == [[case["scale_e4m3"]]], case["id"]
        assert np.all((ours == wanted) | magnitude_zero), case["id"]
        count += 1
    assert count > 100


@pytest.mark.parametrize("format", ["mxfp4", "nvfp4"])
def test_every_input_type_gives_the_codes_of_its_float32_values(format: str) -> None:
    x = data(9, 64).astype(np.float16).astype(ml_dtypes.bfloat16)
    wide = fp4moe.quantize(x.astype(np.float32), format)
    for narrow in (x, x.astype(np.float32).astype(np.float16)):
        q = fp4moe.quantize(narrow, format)
        assert np.array_equal(q.codes, wide.codes) and np.array_equal(q.scales, wide.scales)
    for dtype in (np.float16, ml_dtypes.bfloat16):
        back = wide.dequantize(dtype=dtype)
        assert back.dtype == dtype
        assert np.array_equal(
            back.astype(np.float32), wide.dequantize().astype(dtype).astype(np.float32)
        )


@pytest.mark.parametrize("format", ["mxfp4", "nvfp4"])
def test_torch_tensors_give_torch_tensors_with_the_same_bytes(format: str) -> None:
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(data(4, 3, 64))
    q, wanted = fp4moe.quantize(x, format), fp4moe.quantize(x.numpy(), format)
    assert isinstance(q.codes, torch.Tensor) and q.codes.dtype == torch.uint8
    assert np.array_equal(q.codes.numpy(), wanted.codes) and np.array_equal(
        q.scales.numpy(), wanted.scales
    )
    assert torch.equal(q.dequantize(), torch.from_numpy(wanted.dequantize()))
    half = fp4moe.quantize(x.bfloat16(), format)
    back = half.dequantize(dtype=torch.bfloat16)
    assert back.dtype == torch.bfloat16 and back.shape == x.shape


def test_rows_with_gaps_and_views_give_the_same_as_their_copies() -> None:
    x = data(600, 1024)
    for view in (x[:, :512], x[::3, 64:128], x[5:6, 32:64]):
        q, wanted = fp4moe.quantize(view), fp4moe.quantize(view.copy())
        assert np.array_equal(q.codes, wanted.codes) and np.array_equal(q.scales, wanted.scales)


def test_out_is_filled_in_place_and_returned() -> None:
    q = fp4moe.quantize(data(4, 64))
    out = np.full((4, 64), np.nan, np.float32)
    assert q.dequantize(out=out) is out and np.array_equal(out, q.dequantize())
    wide = np.zeros((4, 100), np.float32)
    q.dequantize(out=wide[:, :64])
    assert np.array_equal(wide[:, :64], out) and not wide[:, 64:].any()
    with pytest.raises(ValueError, match=r"expected shape \(4, 64\), found \(4, 32\)"):
        q.dequantize(out=np.zeros((4, 32), np.float32))
    out.flags.writeable = False
    with pytest.raises(fp4moe.UsageError, match="cannot be written"):
        q.dequantize(out=out)


def test_every_rule_can_be_named_with_and_without_its_format() -> None:
    x = data(8, 64)
    for format in ("mxfp4", "nvfp4"):
        for rule in fp4moe.quantize_rules(format):
            long, short = (
                fp4moe.quantize(x, format, rule=name) for name in (rule, rule.split(".", 1)[1])
            )
            assert np.array_equal(long.codes, short.codes), rule
    assert fp4moe.quantize(x, "nvfp4", rule="no_global").global_scale == 1.0
    assert fp4moe.quantize(x, "nvfp4").global_scale == pytest.approx(
        2688 / np.abs(x).max(), rel=1e-6
    )


@pytest.mark.parametrize(
    ("array", "words", "kind", "id", "match"),
    [
        (
            data(2, 48),
            {},
            fp4moe.UsageError,
            "quantize.blocks",
            "a multiple of 32 columns, found 48",
        ),
        (
            data(2, 40),
            {"format": "nvfp4"},
            fp4moe.UsageError,
            "quantize.blocks",
            "16 columns, found 40",
        ),
        (data(2, 32).astype(np.float64), {}, fp4moe.UsageError, "rows.type", "found F64"),
        (np.ones((2, 32), np.int32), {}, fp4moe.UsageError, "rows.type", "found I32"),
        (data(2, 32), {"format": "fp4"}, fp4moe.UsageError, "quantize.format", "mxfp4 or nvfp4"),
        (data(2, 32), {"rule": "even"}, fp4moe.UsageError, "quantize.rule", "mxfp4.even.rne"),
        (
            data(2, 32),
            {"global_scale": 2.0},
            fp4moe.UsageError,
            "quantize.global_scale",
            "none, by this format",
        ),
        (
            data(2, 32),
            {"format": "nvfp4", "global_scale": -1.0},
            fp4moe.UsageError,
            "quantize.global_scale",
            "above",
        ),
        (
            np.where(np.arange(96) == 70, np.nan, 1).astype(np.float32).reshape(3, 32),
            {},
            fp4moe.InvalidInputError,
            "quantize.not_finite",
            "NaN at row 2, column 6",
        ),
        (
            np.where(np.arange(96) == 33, -np.inf, 1).astype(np.float32).reshape(3, 32),
            {"format": "nvfp4"},
            fp4moe.InvalidInputError,
            "quantize.not_finite",
            "infinity at row 1, column 1",
        ),
        (data(32, 2).T[:, ::1], {}, fp4moe.UsageError, "rows.stride", "neighbors"),
    ],
)
def test_what_cannot_be_quantized_is_refused_in_words(
    array: Any, words: Any, kind: type[fp4moe.Error], id: str, match: str
) -> None:
    with pytest.raises(kind, match=match) as why:
        fp4moe.quantize(array, **words)
    assert why.value.id == id


@pytest.mark.parametrize("wrong", [None, 3, "abc", [1.0, 2.0], np.float32(1), {"a": 1}])
def test_what_is_no_array_is_a_type_error(wrong: Any) -> None:
    with pytest.raises(TypeError, match="array: expected an array"):
        fp4moe.quantize(wrong)


def test_codes_and_scales_that_do_not_fit_are_refused() -> None:
    q = fp4moe.quantize(data(4, 64))
    for codes, scales in (
        (q.codes, q.scales[:, :1]),
        (q.codes, q.scales[:3]),
        (q.codes.astype(np.uint16), q.scales),
    ):
        with pytest.raises(fp4moe.UsageError) as why:
            fp4moe.dequantize(codes, scales)
        assert why.value.id in ("formats.rows.size", "quantize.blocks")


def test_a_nan_scale_gives_nan_and_nothing_else() -> None:
    q = fp4moe.quantize(data(1, 64))
    scales = q.scales.copy()
    scales[0, 1] = 255
    back = fp4moe.dequantize(q.codes, scales)
    assert np.isnan(back[0, 32:]).all() and np.array_equal(back[0, :32], q.dequantize()[0, :32])


def test_other_threads_run_while_arrays_are_quantized() -> None:
    x = data(2048, 4096)
    seen: list[int] = []
    stop = threading.Event()

    def count() -> None:
        while not stop.is_set():
            seen.append(1)

    other = threading.Thread(target=count)
    other.start()
    before = len(seen)
    for _ in range(3):
        fp4moe.quantize(x, rule="llama_cpp")  # the slow one
    during = len(seen) - before
    stop.set()
    other.join()
    assert during > 1000
