# SPDX-License-Identifier: MIT
"""The formats of tamis.mxfp4 against exact fractions, and against the library's q_prepare."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import bits

import tamis
from tamis import mxfp4

MAGNITUDES = [Fraction(x) for x in (0, "0.5", 1, "1.5", 2, 3, 4, 6)]


def nearest_code(x, scale):
    """The code of one finite value by exact arithmetic: nearest, ties to the even code."""
    ratio = abs(Fraction(float(x))) / Fraction(2) ** (int(scale) - 127)
    best = min(range(8), key=lambda i: (abs(MAGNITUDES[i] - ratio), i % 2))
    return best | (8 if np.signbit(x) else 0)


def scale_by_fractions(group):
    """The smallest power of two with amax / 6 at or below it, of the f32 product."""
    amax = max([abs(float(x)) for x in group] + [6 * 2.0**-126])
    product = np.float32(amax) * np.float32(1 / 6)
    e = -127
    while Fraction(float(product)) > Fraction(2) ** e:
        e += 1
    return e + 127


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=32, max_size=32)
)
def test_quantize_is_exact_arithmetic(values):
    x = np.array(values, np.float32)
    codes, scales = mxfp4.quantize(x[None])
    assert scales[0, 0] == scale_by_fractions(x)
    unpacked = np.stack([codes & 15, codes >> 4], -1).ravel()
    assert [int(c) for c in unpacked] == [nearest_code(v, scales[0, 0]) for v in x]


def test_every_bfloat16_is_quantized_as_the_library_does():
    """Each value leads a group of 32, among others of its size and of none."""
    patterns = np.arange(1 << 16, dtype=np.uint16)
    rng = np.random.default_rng(0)
    q = np.zeros((1 << 16, 4, 64), np.uint16)
    q[:, 0, 0] = patterns
    near = (patterns[:, None] & 0xFF80) | rng.integers(0, 128, (1 << 16, 31)).astype(np.uint16)
    q[:, 0, 32] = patterns
    q[:, 0, 33:] = near
    table = np.zeros((1, 64), np.float32)
    table[:, :32] = 1  # no rotation
    positions = np.zeros(1 << 16, np.int64)
    codes, scales, _ = tamis.stages.q_prepare(q, positions, table)
    # Rotation by (1, 0) makes NaN of an infinity's partner: the reference rotates as well.
    mine, my_scales, _ = tamis.reference.q_prepare(q, positions, table)
    assert np.array_equal(codes, mine)
    assert np.array_equal(scales, my_scales)


@pytest.mark.parametrize("exponent", [-120, -3, 0, 5, 100])
def test_scales_change_where_the_product_does(exponent):
    """The largest values around 6 * 2^e: the product with f32(1/6) decides, in its last bit."""
    largest = np.float32(6 * 2.0**exponent)
    for step in range(-4, 5):
        x = np.zeros((1, 32), np.float32)
        x[0, 7] = (largest.view(np.int32) + np.int32(step)).view(np.float32)
        codes, scales = mxfp4.quantize(x)
        assert scales[0, 0] == scale_by_fractions(x[0])
        assert codes[0, 3] >> 4 == nearest_code(x[0, 7], scales[0, 0])


def test_broken_groups_become_nan_rows():
    x = np.ones((3, 64), np.float32)
    x[0, 5], x[1, 40], x[2, 0] = np.nan, np.inf, -np.inf
    codes, scales = mxfp4.quantize(x)
    assert scales.tolist() == [[255, scales[0, 1]], [scales[1, 0], 255], [255, scales[2, 1]]]
    assert (codes[0, :16] == 0).all() and (codes[1, 16:] == 0).all()
    assert np.isnan(mxfp4.dequantize(codes, scales)[0, :32]).all()


def test_dequantize_gives_every_code():
    codes = np.array([[c | c << 4 for c in range(16)]], np.uint8)
    values = mxfp4.dequantize(codes, np.array([[127]], np.uint8))[0, ::2]
    expected = [float(m) for m in MAGNITUDES] + [-float(m) for m in MAGNITUDES]
    assert np.array_equal(values, np.array(expected, np.float32))


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_bfloat16_rounding_is_nearest_even(pattern):
    x = np.array([pattern], np.uint32).view(np.float32)
    got = mxfp4.bfloat16_to_float32(mxfp4.float32_to_bfloat16(x))
    if np.isnan(x[0]):
        assert np.isnan(got[0])
        return
    low = np.uint32(pattern & 0xFFFF0000)
    high = np.uint32(min(int(low) + 0x10000, 2**32 - 1))
    rest = pattern & 0xFFFF
    up = rest > 0x8000 or (rest == 0x8000 and pattern >> 16 & 1)
    assert bits(got)[0] == (high if up else low)
