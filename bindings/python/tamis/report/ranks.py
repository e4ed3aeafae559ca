# SPDX-License-Identifier: MIT
"""Orders of scores: keys, the best k of a row, the cut and the equal scores at it.

Everything works on unsigned keys that order as scores do (docs/numerics.md): NaN lowest, both
zeros one key, equal keys by the lower position. So every selection here is a plain partition, and
none of the library's own selecting kernels is trusted for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.uint32]
Positions = NDArray[np.int64]

_SIGN = np.uint32(0x80000000)


def score_keys(scores: NDArray[np.float32]) -> Keys:
    """Keys of f32 scores, of the same shape."""
    values = np.ascontiguousarray(scores, np.float32)
    bits = values.view(np.uint32)
    keys = np.where(bits & _SIGN, ~bits, bits | _SIGN)
    keys[values == 0] = _SIGN
    keys[np.isnan(values)] = 0
    return keys


def key_scores(keys: Keys) -> NDArray[np.float32]:
    """The scores that the keys stand for: the inverse of score_keys, zeros positive."""
    keys = np.ascontiguousarray(keys, np.uint32)
    bits = np.where(keys & _SIGN, keys ^ _SIGN, ~keys)
    bits[keys == 0] = 0x7FC00000
    return bits.astype(np.uint32).view(np.float32)


def best(keys: Keys, count: int) -> Positions:
    """The first `count` places in the order of scores, ascending by place."""
    if count >= len(keys):
        return np.arange(len(keys))
    if count <= 0:
        return np.arange(0)
    cut = np.partition(keys, len(keys) - count)[len(keys) - count]
    above = keys > cut
    equal = np.flatnonzero(keys == cut)
    above[equal[: count - int(np.count_nonzero(above))]] = True
    return np.flatnonzero(above)


@dataclass(frozen=True)
class Cut:
    """What lies at the last rank that is still chosen."""

    key: int  # of the last chosen score
    inside: int  # chosen places whose score equals it
    outside: int  # places left out whose score equals it
    as_bf16: int  # all places whose score would equal it, were scores rounded to bf16


def cut_of(keys: Keys, count: int) -> Cut | None:
    """The cut of best(keys, count); None when nothing is left out."""
    if not 0 < count < len(keys):
        return None
    key = np.partition(keys, len(keys) - count)[len(keys) - count]
    equal = int(np.count_nonzero(keys == key))
    inside = count - int(np.count_nonzero(keys > key))
    return Cut(int(key), inside, equal - inside, _equal_in_bf16(keys, key))


def _round_to_bf16(keys: Keys) -> NDArray[np.uint32]:
    """Keys of the scores rounded to bf16, to nearest, ties to even."""
    scores = key_scores(keys)
    bits = scores.view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) & np.uint32(0xFFFF0000)
    rounded[np.isnan(scores)] = 0x7FC00000
    return score_keys(rounded.astype(np.uint32).view(np.float32))


def _equal_in_bf16(keys: Keys, key: np.uint32) -> int:
    """How many scores round to the same bf16 as `key`: those nearby alone need rounding."""
    high = keys >> np.uint32(16)
    at = int(key) >> 16
    near = keys[(high >= max(at - 1, 0)) & (high <= at + 1)]
    return int(np.count_nonzero(_round_to_bf16(near) == _round_to_bf16(np.array([key]))[0]))


def block_keys(keys: Keys, size: int) -> Keys:
    """The largest key of each block of `size` places; the last block may be short."""
    if len(keys) == 0:
        return keys
    return np.maximum.reduceat(keys, np.arange(0, len(keys), size))


def publish(keys: Keys, size: int, count: int) -> tuple[Positions, Cut | None]:
    """Blocks that a candidate source publishes, ascending: the newest, then the best of the rest.

    The cut is that among the rest: the newest block is pinned, whatever its score.
    """
    maxima = block_keys(keys, size)
    if len(maxima) <= count:
        return np.arange(len(maxima)), None
    rest = maxima[:-1]
    chosen = np.append(best(rest, count - 1), len(maxima) - 1)
    return chosen, cut_of(rest, count - 1)


def pool_of(blocks: Positions, size: int, visible: int) -> Positions:
    """Visible positions inside these blocks (any ids), ascending."""
    ids = np.asarray(blocks, np.int64)
    ids = np.unique(ids[(ids >= 0) & (ids * size < visible)])
    pool = (ids[:, None] * size + np.arange(size)).ravel()
    return pool[pool < visible]
