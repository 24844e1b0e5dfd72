"""Second opinions on the number formats.

The C++ formats speak through the program named by FP4MOE_FORMAT_PROBE; here numpy and ml_dtypes say
what the answers must be. Block quantizers are written again from their rules, with none of the C++
code's tricks: exponents come from frexp where the C++ works on bit patterns.
"""
import os
import subprocess

import ml_dtypes
import numpy as np
import pytest

PROBE = os.environ.get("FP4MOE_FORMAT_PROBE")
pytestmark = pytest.mark.skipif(not PROBE, reason="FP4MOE_FORMAT_PROBE names no program")

F32 = np.float32
E2M1_VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], F32)
DTYPES = {
    "e2m1": ml_dtypes.float4_e2m1fn,
    "e8m0": ml_dtypes.float8_e8m0fnu,
    "e4m3fn": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
}
CODE_TYPE = {"bf16": np.uint16, "f16": np.uint16}


def probe(*words, data):
    done = subprocess.run([PROBE, *words], input=data.tobytes(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def encode(fmt, rule, x):
    return np.frombuffer(probe("encode", fmt, rule, data=x), CODE_TYPE.get(fmt, np.uint8))


def decode(fmt, codes, reading="strict"):
    return np.frombuffer(probe("decode", fmt, reading, data=codes), F32)


def bits(x):
    return np.ascontiguousarray(x, F32).view(np.uint32)


def assert_same_floats(found, expected):
    """Equal bits, except that any NaN is any NaN."""
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(found), nan)
    np.testing.assert_array_equal(bits(found)[~nan], bits(expected)[~nan])


def every_bf16():
    return (np.arange(65536, dtype=np.uint32) << 16).view(F32)


def random_floats(seed, count=1_000_000):
    return np.random.default_rng(seed).integers(0, 2**32, count, dtype=np.uint32).view(F32)


def near_codes(fmt):
    """Every value of a format, every midpoint of neighbors, and their float32 neighbors."""
    count = {"e2m1": 16, "bf16": 65536, "f16": 65536}.get(fmt, 256)
    codes = np.arange(count, dtype=CODE_TYPE.get(fmt, np.uint8))
    with np.errstate(invalid="ignore"):
        values = np.unique(codes.view(DTYPES[fmt]).astype(np.float64))
    values = values[np.isfinite(values)]
    points = np.concatenate([values, (values[1:] + values[:-1]) / 2]).astype(F32)
    up, down = np.nextafter(points, F32(np.inf)), np.nextafter(points, F32(-np.inf))
    return np.concatenate([points, up, down])


def inputs(fmt):
    return np.concatenate([every_bf16(), random_floats(1), near_codes(fmt)])


# --- single numbers


@pytest.mark.parametrize("fmt", DTYPES)
def test_every_code_decodes_as_the_library_says(fmt):
    count = {"e2m1": 16, "bf16": 65536, "f16": 65536}.get(fmt, 256)
    codes = np.arange(count, dtype=CODE_TYPE.get(fmt, np.uint8))
    with np.errstate(invalid="ignore"):
        expected = codes.view(DTYPES[fmt]).astype(F32)
    assert_same_floats(decode(fmt, codes), expected)


def test_the_shifted_reading_of_scales_differs_at_the_ends_only():
    codes = np.arange(256, dtype=np.uint8)
    strict, shifted = decode("e8m0", codes), decode("e8m0", codes, "shifted")
    np.testing.assert_array_equal(strict[1:255], shifted[1:255])
    assert shifted[0] == 0 and np.isinf(shifted[255])
    assert strict[0] == F32(2.0**-127) and np.isnan(strict[255])


@pytest.mark.parametrize(
    "fmt, rule",
    [
        ("e4m3fn", "rne_overflow_to_nan"),
        ("e5m2", "rne_overflow_to_inf"),
        ("e4m3fnuz", "rne_overflow_to_nan"),
        ("bf16", "rne"),
        ("f16", "rne"),
    ],
)
def test_casts_agree_with_the_library(fmt, rule):
    x = inputs(fmt)
    found = encode(fmt, rule, x)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = x.astype(DTYPES[fmt]).view(found.dtype)
        nan = np.isnan(expected.view(DTYPES[fmt]).astype(F32))
        assert np.isnan(found[nan].view(DTYPES[fmt]).astype(F32)).all()
    np.testing.assert_array_equal(found[~nan], expected[~nan])


@pytest.mark.parametrize(
    "fmt, largest, unsigned_nan",
    [("e4m3fn", 448.0, 0x7F), ("e5m2", 57344.0, 0x7F), ("e4m3fnuz", 240.0, 0x80)],
)
def test_saturating_casts_clip_and_then_cast(fmt, largest, unsigned_nan):
    x = inputs(fmt)
    found = encode(fmt, "rne_satfinite", x)
    nan = np.isnan(x)
    expected = np.clip(x[~nan], -largest, largest).astype(DTYPES[fmt]).view(np.uint8)
    np.testing.assert_array_equal(found[~nan], expected)
    assert (found[nan] == unsigned_nan).all()


def test_e2m1_agrees_with_the_library():
    x = inputs("e2m1")
    found = encode("e2m1", "rne_satfinite", x)
    nan = np.isnan(x)
    expected = x[~nan].astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    np.testing.assert_array_equal(found[~nan], expected)
    assert (found[nan] == 7).all()


def ties_away(x):
    """The nearest magnitude, the larger one on a tie, with x's sign."""
    boundaries = (E2M1_VALUES[1:] + E2M1_VALUES[:-1]) / 2
    codes = np.searchsorted(boundaries, np.abs(x), side="right").astype(np.uint8)
    return codes | np.where(np.signbit(x), 8, 0).astype(np.uint8)


def test_e2m1_ties_away():
    x = inputs("e2m1")
    x = x[~np.isnan(x)]
    np.testing.assert_array_equal(encode("e2m1", "nearest_ties_away_satfinite", x), ties_away(x))


def test_e8m0_torch_cast_agrees_with_the_library_where_both_have_a_value():
    x = np.abs(inputs("e8m0"))
    x = x[x > 0]
    np.testing.assert_array_equal(
        encode("e8m0", "torch_cast", x), x.astype(ml_dtypes.float8_e8m0fnu).view(np.uint8)
    )


def test_e8m0_directed_roundings():
    x = np.abs(inputs("e8m0"))
    x = x[np.isfinite(x)]
    mantissa, exponent = np.frexp(x.astype(np.float64))  # x = mantissa * 2^exponent, [0.5, 1)
    floor = np.where(x > 0, exponent - 1, -127)
    ceil = floor + ((mantissa > 0.5) & (x > 0))
    up, down = (encode("e8m0", f"toward_{rule}_satfinite", x) for rule in ("pos_inf", "zero"))
    np.testing.assert_array_equal(up, np.clip(ceil + 127, 0, 254).astype(np.uint8))
    np.testing.assert_array_equal(down, np.clip(floor + 127, 0, 254).astype(np.uint8))


# --- blocks


def blocks(seed, size, count=4000):
    """Random blocks over the whole range, with zeros, ties, edges of powers and bf16 values."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, size)).astype(np.float64)
    x *= 2.0 ** rng.integers(-120, 120, (count, 1))
    x[: count // 8] = np.rint(x[: count // 8] * 4 / np.abs(x[: count // 8]).max(1, keepdims=True))
    edges = np.outer(2.0 ** rng.integers(-100, 100, count // 8), np.ones(size))
    x[count // 8 : count // 4] = edges * rng.choice([6, 7, 3.5, 1.75, 448, 5, 2.5, 0.25], edges.shape)
    x[count // 4] = 0
    x[count // 4 + 1] = -0.0
    with np.errstate(over="ignore"):
        x = x.astype(F32)
    x[count // 2 :] = x[count // 2 :].astype(ml_dtypes.bfloat16).astype(F32)
    nudged = slice(count // 8, count // 4, 3)
    x[nudged] = np.nextafter(x[nudged], F32(np.inf))
    return x


def hex_digits(global_scale):
    return [] if global_scale is None else [f"{bits(global_scale).item():08x}"]


def quantize(fmt, rule, x, global_scale=None):
    size = {"mxfp4": 17, "mxfp8": 33, "nvfp4": 9}[fmt]
    out = probe("quantize", fmt, rule, *hex_digits(global_scale), data=x)
    out = np.frombuffer(out, np.uint8).reshape(-1, size)
    scale, codes = out[:, 0], out[:, 1:]
    if fmt != "mxfp8":
        codes = np.stack([codes & 15, codes >> 4], -1).reshape(len(x), -1)
    return scale, codes


def dequantize(fmt, rule, packed, global_scale=None):
    return np.frombuffer(probe("dequantize", fmt, rule, *hex_digits(global_scale), data=packed), F32)


def floor_log2(x):
    """floor(log2 x) exactly, for positive x."""
    return np.frexp(x.astype(np.float64))[1] - 1


def ceil_log2(x):
    mantissa, exponent = np.frexp(x.astype(np.float64))
    return np.where(mantissa == 0.5, exponent - 1, exponent)


def even_exponent(amax):
    """1.75 * 2^e and more counts as 2^(e+1)."""
    mantissa, exponent = np.frexp(amax.astype(np.float64))
    return exponent - 1 + (mantissa >= 0.875)


def e2m1_rne(x):
    return x.astype(ml_dtypes.float4_e2m1fn).view(np.uint8)


MX_RULES = {  # exponent of the scale from amax, element rounding
    "mxfp4.floor4.rne": (lambda a: floor_log2(a / F32(4)), e2m1_rne),
    "mxfp4.ceil6.rne": (lambda a: ceil_log2(a / F32(6)), e2m1_rne),
    "mxfp4.ceil6.away": (lambda a: ceil_log2(a / F32(6)), ties_away),
    "mxfp4.floor6.away": (lambda a: floor_log2(a / F32(6)), ties_away),
    "mxfp4.even.rne": (lambda a: even_exponent(a) - 2, e2m1_rne),
    "mxfp4.even_triton.rne": (lambda a: even_exponent(a) - 2, e2m1_rne),
    "mxfp4.flashinfer.rne": (lambda a: ceil_log2(a * F32(1 / 6)), e2m1_rne),
}


@pytest.mark.parametrize("rule", MX_RULES)
def test_mxfp4_blocks(rule):
    exponent_of, element = MX_RULES[rule]
    x = blocks(2, 32)
    amax = np.abs(x).max(1)
    zero = amax == 0
    exponent = exponent_of(np.where(zero, F32(1), amax))
    scale, codes = quantize("mxfp4", rule, x)

    np.testing.assert_array_equal(scale, np.where(zero, 0, exponent + 127).astype(np.uint8))
    scaled = np.where(zero[:, None], x, np.ldexp(x.astype(np.float64), -exponent[:, None]))
    np.testing.assert_array_equal(codes, element(scaled.astype(F32)))


@pytest.mark.parametrize("rule", ["ceil448", "flashinfer_cuda", "flashinfer_cutedsl", "log2"])
def test_mxfp8_blocks(rule):
    x = blocks(3, 32)
    amax = np.abs(x).max(1)
    kept = (amax == 0) | (amax >= F32(448 * 2.0**-126))  # below, each rule has its own ending
    x, amax = x[kept], amax[kept]
    zero = amax == 0
    safe = np.where(zero, F32(1), amax)
    if rule == "log2":
        ratio = np.maximum(safe, F32(2.0**-126)) / F32(448)
        exponent = np.ceil(np.log2(ratio.astype(np.float64)).astype(F32)).astype(np.int64)
    elif rule == "ceil448":
        exponent = ceil_log2(safe / F32(448))
    else:
        exponent = ceil_log2(safe * F32(1 / 448))
    scale, codes = quantize("mxfp8", f"mxfp8_e4m3.{rule}", x)

    np.testing.assert_array_equal(scale, np.where(zero, 0, exponent + 127).astype(np.uint8))
    scaled = np.where(zero[:, None], x, np.ldexp(x.astype(np.float64), -exponent[:, None]))
    expected = np.clip(scaled, -448, 448).astype(F32).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    np.testing.assert_array_equal(codes, expected)


@pytest.mark.parametrize("rule", ["reference", "flashinfer_exact", "no_global"])
@pytest.mark.parametrize("spread", [1e-3, 1.0, 300.0])
def test_nvfp4_blocks(rule, spread):
    rng = np.random.default_rng(4)
    x = (rng.standard_normal((4000, 16)) * spread).astype(F32)
    x *= rng.choice(np.array([1, 1e-2, 1e-5], F32), (4000, 1))
    x[0] = 0
    g = F32(2688) / np.abs(x).max()
    amax = np.abs(x).max(1)
    sixth = F32(1 / 6)
    ratio = {
        "reference": g * (amax * sixth),
        "flashinfer_exact": amax * (g * sixth),
        "no_global": amax / F32(6),
    }[rule]
    scale_codes = np.clip(ratio, 0, 448).astype(ml_dtypes.float8_e4m3fn)
    s = scale_codes.astype(F32)
    with np.errstate(divide="ignore", over="ignore"):
        factor = F32(1) / (s * (F32(1) / g)) if rule != "no_global" else F32(1) / s
    factor = np.where(s == 0, F32(0), factor)
    expected = e2m1_rne(np.clip(x * factor[:, None], F32(-6), F32(6)))
    scale, codes = quantize("nvfp4", f"nvfp4.{rule}", x, g)

    np.testing.assert_array_equal(scale, scale_codes.view(np.uint8))
    np.testing.assert_array_equal(codes, expected)

    values = e2m1_values(codes)
    packed = np.concatenate([scale[:, None], codes[:, ::2] | codes[:, 1::2] << 4], 1)
    m = F32(1) / g
    divided = dequantize("nvfp4", "divide", packed, g)
    assert_same_floats(divided.reshape(-1, 16), values * s[:, None] / g)
    multiplied = dequantize("nvfp4", "multiply", packed, m)
    assert_same_floats(multiplied.reshape(-1, 16), values * (s * m)[:, None])


def e2m1_values(codes):
    return np.where(codes & 8, F32(-1), F32(1)) * E2M1_VALUES[codes & 7]


@pytest.mark.parametrize("fmt", ["mxfp4", "mxfp8"])
@pytest.mark.parametrize("reading", ["strict", "shifted"])
def test_dequantized_blocks(fmt, reading):
    rng = np.random.default_rng(5)
    width = {"mxfp4": 16, "mxfp8": 32}[fmt]
    packed = rng.integers(0, 256, (2560, 1 + width), dtype=np.uint8)
    packed[:, 0] = np.arange(2560) % 255  # 255 has its own meaning in each reading
    found = dequantize(fmt, reading, packed).reshape(2560, 32)

    codes = packed[:, 1:]
    if fmt == "mxfp4":
        values = e2m1_values(np.stack([codes & 15, codes >> 4], -1).reshape(2560, 32))
    else:
        values = codes.view(ml_dtypes.float8_e4m3fn).astype(F32)
    exact = np.ldexp(values.astype(np.float64), packed[:, :1].astype(int) - 127)
    largest = np.finfo(F32).max
    expected = np.clip(exact, -largest, largest).astype(F32)
    if reading == "shifted":
        at_zero = packed[:, 0] == 0
        expected[at_zero] = np.copysign(F32(0), expected[at_zero])
        expected[at_zero] = np.where(np.isnan(values[at_zero]), F32(np.nan), expected[at_zero])
    assert_same_floats(found, expected)


def test_a_short_last_block_counts_only_its_own_values():
    x = blocks(6, 32, 16)
    whole = probe("quantize", "mxfp4", "mxfp4.ceil6.rne", data=x)
    short = probe("quantize", "mxfp4", "mxfp4.ceil6.rne", data=x.reshape(-1)[:-27])
    padded = x.reshape(-1).copy()
    padded[-27:] = 0
    assert len(short) == len(whole)
    assert short == probe("quantize", "mxfp4", "mxfp4.ceil6.rne", data=padded)


def test_llama_cpp_blocks_agree_with_the_gguf_package():
    quants = pytest.importorskip("gguf.quants")
    x = blocks(7, 32)
    amax = np.abs(x).max(1)
    x = x[(amax == 0) | (amax >= 2.0**-124)]  # below, the package's conversion to a byte wraps
    expected = quants.MXFP4.quantize_blocks(x)
    scale, codes = quantize("mxfp4", "mxfp4.llama_cpp", x)

    np.testing.assert_array_equal(scale, expected[:, 0])
    halves = expected[:, 1:]  # element i and i + 16 share a byte
    np.testing.assert_array_equal(codes, np.concatenate([halves & 15, halves >> 4], 1))
    packed = np.concatenate([scale[:, None], codes[:, ::2] | codes[:, 1::2] << 4], 1)
    values = dequantize("mxfp4", "strict", packed)
    np.testing.assert_array_equal(values.reshape(-1, 32), quants.MXFP4.dequantize_blocks(expected))


@pytest.mark.parametrize(
    "words", [[], ["encode"], ["encode", "e3m0", "rne"], ["fry", "e2m1", "strict"]]
)
def test_unknown_words_are_refused(words):
    done = subprocess.run([PROBE, *words], input=b"", capture_output=True, check=False)
    assert done.returncode == 2 and done.stderr
