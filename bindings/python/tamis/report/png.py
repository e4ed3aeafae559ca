# SPDX-License-Identifier: MIT
"""An 8-bit grey PNG as a data URI: all that a page of heat maps needs of an image library."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
from numpy.typing import NDArray


def _chunk(kind: bytes, data: bytes) -> bytes:
    check = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)


def encode(pixels: NDArray[np.uint8]) -> bytes:
    """PNG bytes of [height][width] grey levels. Rows are stored as they are (filter 0)."""
    height, width = pixels.shape
    lines = np.zeros((height, width + 1), np.uint8)
    lines[:, 1:] = pixels
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + _chunk(b"IHDR", header)
        + _chunk(b"IDAT", zlib.compress(lines.tobytes(), 9))
        + _chunk(b"IEND", b"")
    )


def data_uri(pixels: NDArray[np.uint8]) -> str:
    """The PNG as a `data:` address."""
    return "data:image/png;base64," + base64.b64encode(encode(pixels)).decode()
