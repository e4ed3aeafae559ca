# SPDX-License-Identifier: MIT
"""tamis.reference against exact fractions, full sorts, and the library on any bits."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import LAYOUTS, Problem, bits

import tamis
from tamis import reference

INF = Fraction(2) ** 128


def round_f32(x):
    """float32 of a Fraction, rounded once to nearest even, by whole numbers."""
    if x == 0:
        return np.float32(0)
    size, exponent = abs(x), 0
    while size >= 2:
        size, exponent = size / 2, exponent + 1
    while size < 1:
        size, exponent = size * 2, exponent - 1
    unit = Fraction(2) ** (max(exponent, -126) - 23)
    whole, rest = divmod(abs(x), unit)
    if rest * 2 > unit or (rest * 2 == unit and whole % 2):
        whole += 1
    value = whole * unit
    out = np.float32(np.inf) if value >= INF else np.float32(float(value))
    return -out if x < 0 else out


def fraction(x):
    return Fraction(float(x))


def fma(a, b, c):
    x = fraction(a) * fraction(b) + fraction(c)
    return round_f32(x) if x != 0 else np.float32(0)


def exact_score(k_codes, k_scales, q_codes, q_scales, weights):
    """One score of class exact by Fractions alone (finite intermediate values)."""
    values = tamis.mxfp4.DOUBLED.astype(int)

    def unpack(codes):
        return [int(values[n]) for byte in codes for n in (byte & 15, byte >> 4)]

    k, ek = unpack(k_codes), [int(s) - 127 for s in k_scales]
    chains = [np.float32(0)] * 4
    for h in range(len(weights)):
        q, eq = unpack(q_codes[h]), [int(s) - 127 for s in q_scales[h]]
        dot = Fraction(0)
        for i, (a, b) in enumerate(zip(k, q)):
            dot += a * b * Fraction(2) ** (ek[i // 32] + eq[i // 32] - max(ek) - max(eq)) / 4
        d = max(round_f32(dot), np.float32(0))
        w = round_f32(fraction(weights[h]) * Fraction(2) ** max(eq))
        chains[h % 8 // 2] = fma(w, d, chains[h % 8 // 2])
    total = np.float32(np.float32(chains[0] + chains[1]) + np.float32(chains[2] + chains[3]))
    return round_f32(fraction(total) * Fraction(2) ** max(ek))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([2, 20, 60, 110]), st.sampled_from([4, 8, 12]))
def test_exact_scores_by_fractions(seed, spread, heads):
    """Spans up to 110 in q and K at once: beyond what a float64 sum holds."""
    rng = np.random.default_rng(seed)
    low, high = 127 - spread // 2, 127 + spread // 2 + 1
    k_codes, k_scales = rng.integers(0, 256, (4, 64), np.uint8), rng.integers(low, high, (4, 4))
    q_codes = rng.integers(0, 256, (heads, 64), np.uint8)
    q_scales = rng.integers(low, high, (heads, 4)).astype(np.uint8)
    k_scales = k_scales.astype(np.uint8)
    weights = (rng.standard_normal(heads) * 2.0 ** rng.integers(-4, 5, heads)).astype(np.float32)
    got = reference.scores(k_codes, k_scales, q_codes, q_scales, weights)
    with np.errstate(over="ignore"):
        want = [exact_score(k_codes[j], k_scales[j], q_codes, q_scales, weights) for j in range(4)]
    finite = np.isfinite(got)
    assert np.array_equal(got[finite] + 0, np.array(want, np.float32)[finite] + 0)
    assert finite.any()


@pytest.mark.parametrize("below", range(25, 120, 5))
def test_the_smallest_group_breaks_a_tie(below):
    """1 + 2^-24 is a tie of float32, which a group far below it breaks, upwards or downwards."""
    k_codes, q_codes = np.zeros((2, 64), np.uint8), np.zeros((4, 64), np.uint8)
    q_codes[0, [0, 16, 32]] = 2  # one element of 1 in three groups
    k_codes[:, [0, 16]] = 2
    k_codes[:, 32] = 2, 2 | 8
    k_scales = np.array([[127, 127 - 24, 127 - below, 127 - below]] * 2, np.uint8)
    q_scales = np.full((4, 4), 127, np.uint8)
    weights = np.array([1, 0, 0, 0], np.float32)
    want = [1 + np.float32(2.0**-23), np.float32(1)]
    assert reference.scores(k_codes, k_scales, q_codes, q_scales, weights).tolist() == want
    k = tamis.KCache.split(k_codes, k_scales)
    query = tamis.Query(q_codes[None], q_scales[None], weights[None])
    made = tamis.stages.mqa_logits(k, tamis.Rows(np.array([2], np.int32)), query)
    assert made.logits[0].tolist() == want


@settings(max_examples=300, deadline=None)
@given(*[st.floats(width=32, allow_nan=False, allow_infinity=False)] * 3)
def test_fma_rounds_once(a, b, c):
    a, b, c = np.float32([a, b, c])
    with np.errstate(over="ignore"):
        got = reference._fma(a, np.array([b]), np.array([c]))[0]
    assert got == fma(a, b, c)


@pytest.mark.parametrize("numerics", reference.CLASSES)
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("dim", [64, 128])
def test_scores_are_the_librarys_on_any_bits(numerics, wide, dim):
    """Every class on the ref tier; with ``wide`` all scale bytes, NaN among them."""
    backend = tamis.Backend("ref")
    for seed in range(3):
        p = Problem(seed, heads=(4, 12, 32)[seed], dim=dim, wide=wide, length=150)
        p.query.weights[1, 0] = np.nan
        p.query.weights[2] *= np.float32(1e30)
        p.query.weights[3] = 0
        logits, _ = tamis.stages.mqa_logits(
            p.k, p.rows, p.query, numerics=numerics, backend=backend
        )
        for r in range(p.rows_count):
            want = p.scores(r, numerics)
            assert np.array_equal(bits(logits[r, : want.size]), bits(want)), (seed, r)
            assert (logits[r, want.size :] == -np.inf).all()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_scores_are_the_best_tiers_in_every_layout(layout):
    p = Problem(7, rows=4, heads=32, layout=layout, length=300, starts=True)
    logits, _ = tamis.stages.mqa_logits(p.k, p.rows, p.query)
    for r in range(p.rows_count):
        want = p.scores(r)
        assert np.array_equal(bits(logits[r, : want.size]), bits(want))


# ---- order and selection ----------------------------------------------------------------------

SCORES = st.lists(
    st.sampled_from([0.0, -0.0, 1.0, 1.0, -1.0, 2.5, float("nan"), float("inf"), float("-inf")])
    | st.floats(width=32),
    max_size=70,
)


def sorted_positions(row):
    """Positions in the order of scores by a plain sort with a Python key."""
    return sorted(
        range(len(row)), key=lambda j: (np.isnan(row[j]), -row[j] if row[j] == row[j] else 0, j)
    )


@settings(max_examples=200, deadline=None)
@given(SCORES, st.integers(1, 40))
def test_topk_is_a_full_sort(row, count):
    row = np.array(row, np.float32)
    want = sorted(sorted_positions(row)[:count])
    assert reference.topk(row, count).tolist() == want + [-1] * (count - len(want))


@settings(max_examples=200, deadline=None)
@given(SCORES, st.integers(1, 10), st.sampled_from([8, 16]))
def test_publish_keeps_the_newest_and_the_best(row, count, size):
    row = np.array(row, np.float32)
    blocks = -(-row.size // size)
    best = [
        min(range(b * size, min((b + 1) * size, row.size)), key=sorted_positions(row).index)
        for b in range(blocks)
    ]
    order = sorted(range(blocks), key=lambda b: sorted_positions(row[best]).index(b))
    chosen = [blocks - 1] + [b for b in order if b != blocks - 1] if blocks else []
    want = sorted(chosen[:count])
    assert reference.publish(row, count, size).tolist() == want + [-1] * (count - len(want))


@settings(max_examples=100, deadline=None)
@given(SCORES, st.lists(st.integers(-3, 12), max_size=12), st.integers(1, 40))
def test_consume_is_a_sort_of_the_pool(row, ids, count):
    row = np.array(row, np.float32)
    inside = [j for j in sorted_positions(row) if j // 8 in ids]
    want = sorted(inside[:count])
    got = reference.consume(row, np.array(ids, np.int32), count)
    assert got.tolist() == want + [-1] * (count - len(want))


VECTORS = [  # docs/spec.md, 5.4
    ([0, -1, -1, -1], 64, 72, 8, {}, [8, 8, 8, 8], 8),
    ([2, 0, -1, -1], 13, 30, 8, {}, [1, 3, 3, 3], 9),
    ([3, -1, -1, -1], 100, 100, 8, {}, [12] * 4, 0),
    ([2**30, -(2**30), 0, -1], 0, 1000, 8, {}, [0] * 4, 8),
    ([1, 1, 7, 0], 8, 40, 8, {"keep_duplicates": True}, [1, 2, 2, 2], 24),
    ([1, 0], 0, 48, 16, {}, [0, 1, 2, 3], 32),
]


@pytest.mark.parametrize("ids, ks, ke, size, flags, blocks, columns", VECTORS)
def test_expand_vectors_of_the_specification(ids, ks, ke, size, flags, blocks, columns):
    got, _, valid = reference.expand(ids, ks, ke, size, 8, fixed_width=True, **flags)
    assert (got.tolist(), valid) == (blocks, columns)
    rows = tamis.Rows(np.array([ke], np.int32), np.array([ks], np.int32))
    made = tamis.stages.expand(
        np.array([ids], np.int32), rows, candidate_size=size, fixed_width=True, **flags
    )
    assert (made.blocks[0].tolist(), int(made.columns[0])) == (blocks, columns)
