# SPDX-License-Identifier: MIT
"""MXFP4 rows in numpy: E2M1 codes, two in a byte, and one UE8M0 scale byte for 32 elements.

``quantize`` is the library's rule to the bit (spec 2, docs/numerics.md): the product that gives
the scale is one f32 multiplication, ties go to the even code, subnormals are kept, and a group
with a NaN or an infinity gets the scale byte 255 and codes 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .errors import ArgumentError

MAGNITUDES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
#: Twice the value of each 4-bit code: whole numbers.
DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
#: Between two neighbouring magnitudes, and the code that a tie there goes to.
_MIDDLES = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], np.float64)


def bfloat16_to_float32(bits: Any) -> Any:
    """float32 of bfloat16 bits (uint16)."""
    return (np.asarray(bits).astype(np.uint32) << 16).view(np.float32)


def float32_to_bfloat16(x: Any) -> Any:
    """bfloat16 bits (uint16) of float32 values, ties to even; NaN stays a NaN."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    return np.where(nan, (bits >> 16) | 0x40, rounded).astype(np.uint16)


def quantize(x: Any) -> tuple[Any, Any]:
    """MXFP4 codes ``uint8 [..., D/2]`` and scales ``uint8 [..., D/32]`` of ``x [..., D]``.

    x is float32, or bfloat16 as uint16 bits.
    """
    x = np.asarray(x)
    if x.dtype == np.uint16 or x.dtype.name == "bfloat16":
        x = bfloat16_to_float32(x.view(np.uint16))
    if x.dtype.kind != "f" or x.ndim == 0 or x.shape[-1] % 32:
        raise ArgumentError(
            "x", "floats [.., D], D a multiple of 32", f"{x.dtype.name} {list(x.shape)}"
        )
    groups = np.ascontiguousarray(x, np.float32).reshape(*x.shape[:-1], -1, 32)
    size = np.abs(groups)
    broken = ~np.isfinite(groups).all(axis=-1)
    amax = np.where(broken, np.float32(1), size.max(axis=-1))
    amax = np.maximum(amax, np.float32(6 * 2.0**-126))
    with np.errstate(under="ignore"):
        bits = (amax * np.float32(1 / 6)).view(np.uint32)
    scales = ((bits + np.uint32(0x7FFFFF)) >> 23).astype(np.uint8)
    with np.errstate(invalid="ignore"):
        ratio = size.astype(np.float64) * np.exp2(127.0 - scales)[..., None]
    code = np.searchsorted(_MIDDLES, ratio, side="left").astype(np.uint8)
    tie = (code < 7) & (ratio == _MIDDLES[np.minimum(code, 6)]) & (code % 2 == 1)
    code = code + tie.astype(np.uint8)
    code |= np.signbit(groups).astype(np.uint8) << 3
    code[broken] = 0
    scales[broken] = 255
    pairs = code.reshape(*x.shape[:-1], -1, 2)
    return pairs[..., 0] | pairs[..., 1] << 4, scales


def doubled_codes(codes: Any) -> Any:
    """Twice the code values, ``int8 [..., D]``, of packed codes ``uint8 [..., D/2]``."""
    codes = np.asarray(codes)
    out = np.empty((*codes.shape[:-1], codes.shape[-1] * 2), np.int8)
    out[..., 0::2] = DOUBLED[codes & 15]
    out[..., 1::2] = DOUBLED[codes >> 4]
    return out


def dequantize(codes: Any, scales: Any) -> Any:
    """float32 values ``[..., D]`` of codes and scales; a scale byte of 255 gives NaN."""
    values = doubled_codes(codes).astype(np.float64) / 2
    groups = values.reshape(*values.shape[:-1], -1, 32)
    factor = np.exp2(np.asarray(scales).astype(np.float64) - 127)
    factor = np.where(np.asarray(scales) == 255, np.nan, factor)
    with np.errstate(over="ignore"):
        return (groups * factor[..., None]).reshape(values.shape).astype(np.float32)
