# SPDX-License-Identifier: MIT
"""Every stage against tamis.reference, over layouts, shapes and hazards that hypothesis picks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import LAYOUTS, Problem, bits, paged

import tamis
from tamis import errors, mxfp4, reference, stages

PROBLEMS = st.builds(
    Problem,
    seed=st.integers(0, 2**20),
    rows=st.integers(1, 7),
    heads=st.sampled_from([4, 12, 32]),
    dim=st.sampled_from([64, 128]),
    length=st.integers(1, 260),
    layout=st.sampled_from(LAYOUTS),
    wide=st.booleans(),
    starts=st.booleans(),
)
QUICK = settings(max_examples=25, deadline=None)
THREADS = st.sampled_from([1, 2, 3])


def rope_table(rng, positions):
    angle = rng.standard_normal((positions, 32)).astype(np.float32)
    return np.concatenate([np.cos(angle), np.sin(angle)], axis=1)


@QUICK
@given(PROBLEMS, THREADS)
def test_mqa_logits_and_block_max(p, threads):
    made = stages.mqa_logits(p.k, p.rows, p.query, block_max=True, threads=threads)
    again = stages.block_max(made.logits, p.rows, threads=threads)
    for r in range(p.rows_count):
        row = p.scores(r)
        assert np.array_equal(bits(made.logits[r, : row.size]), bits(row))
        best = bits(reference.block_max(row))
        assert np.array_equal(bits(made.block_max[r, : best.size]), best)
        assert np.array_equal(bits(again[r, : best.size]), best)


@QUICK
@given(PROBLEMS, st.integers(1, 40), THREADS)
def test_publish(p, topk_blocks, threads):
    made = stages.mqa_logits(p.k, p.rows, p.query, logits=False, block_max=True)
    assert made.logits is None
    got = stages.publish(made.block_max, p.rows, topk_blocks, threads=threads)
    for r in range(p.rows_count):
        want = reference.publish(p.scores(r), topk_blocks)
        assert np.array_equal(got.blocks[r], want)
        assert got.counts[r] == (want >= 0).sum()


@QUICK
@given(PROBLEMS, st.integers(1, 60), st.sampled_from(["float32", "bfloat16"]))
def test_topk_of_logits(p, count, dtype):
    logits = stages.mqa_logits(p.k, p.rows, p.query, dtype=dtype).logits
    got = stages.topk(logits, p.rows, count, want=("positions", "scores", "counts"))
    for r in range(p.rows_count):
        row = logits[r, : p.interval(r)[1]]
        row = mxfp4.bfloat16_to_float32(row) if dtype == "bfloat16" else row
        want = reference.topk(row, count)
        assert np.array_equal(got.positions[r], want)
        chosen = want[want >= 0]
        assert np.array_equal(bits(got.scores[r, : chosen.size]), bits(row[chosen] + 0))
        assert (got.scores[r, chosen.size :] == -np.inf).all()
        assert got.counts[r] == chosen.size


@QUICK
@given(PROBLEMS, st.integers(1, 60), THREADS, st.integers(0, 2**20))
def test_consume_and_dense_take_any_lists(p, count, threads, seed):
    lists = np.random.default_rng(seed).integers(-2, 36, (p.rows_count, 9)).astype(np.int32)
    everything = ("positions", "slots", "scores", "counts")
    args = (p.k, p.rows, p.query)
    got = stages.consume(*args, lists, count, threads=threads, want=everything)
    full = stages.dense(*args, count, blocks=lists, threads=threads, want=everything)
    for r in range(p.rows_count):
        row = p.scores(r)
        want = reference.consume(row, lists[r], count)
        assert np.array_equal(got.positions[r], want)
        chosen = want[want >= 0]
        start = p.interval(r)[0]
        assert np.array_equal(got.slots[r, : chosen.size], p.slots[r][start + chosen])
        assert (got.slots[r, chosen.size :] == -1).all()
        assert np.array_equal(bits(got.scores[r, : chosen.size]), bits(row[chosen] + 0))
    for a, b in zip(got, full):
        assert np.array_equal(a.view(np.uint8), b.view(np.uint8))


@QUICK
@given(PROBLEMS, st.integers(1, 40), st.integers(1, 12), THREADS)
def test_source_and_full(p, count, topk_blocks, threads):
    got = stages.source(p.k, p.rows, p.query, count, topk_blocks, threads=threads)
    alone = stages.source(p.k, p.rows, p.query, count, threads=threads)
    assert alone.blocks is None and alone.counts is None
    for r in range(p.rows_count):
        row = p.scores(r)
        assert np.array_equal(got.selection.positions[r], reference.topk(row, count))
        assert np.array_equal(got.blocks[r], reference.publish(row, topk_blocks))
    assert np.array_equal(alone.selection.positions, got.selection.positions)


@QUICK
@given(
    st.integers(0, 2**20),
    st.sampled_from([(8, 8), (16, 8), (32, 16), (16, 16)]),
    st.booleans(),
    st.booleans(),
)
def test_expand(seed, sizes, keep, fixed):
    rng = np.random.default_rng(seed)
    candidates = rng.integers(-4, 40, (5, 7)).astype(np.int32)
    candidates[0, 0], candidates[1, 1] = 2**31 - 1, -(2**31)
    ks = rng.integers(0, 50, 5).astype(np.int32)
    ke = np.maximum(ks + rng.integers(-3, 300, 5), 0).astype(np.int32)
    flags = {"keep_duplicates": keep, "fixed_width": fixed}
    made = stages.expand(
        candidates, tamis.Rows(ke, ks), candidate_size=sizes[0], block_size=sizes[1], **flags
    )
    for r in range(5):
        blocks, n, columns = reference.expand(candidates[r], ks[r], ke[r], *sizes, **flags)
        assert np.array_equal(made.blocks[r], blocks)
        assert (made.counts[r], made.columns[r]) == (n, columns)


@QUICK
@given(PROBLEMS, st.integers(0, 2**20))
def test_sparse_logits_and_their_topk(p, seed):
    lists = np.random.default_rng(seed).integers(-1, 40, (p.rows_count, 6)).astype(np.int32)
    local = p.rows
    if p.layout != "mxfp4_page":
        local = tamis.Rows(p.rows.ke, p.rows.ks)
    made = stages.expand(lists, local)
    logits = stages.sparse_mqa_logits(p.k, p.rows, p.query, made.blocks, counts=made.counts)
    picked = stages.topk(logits, local, 20, blocks=made.blocks)
    for r in range(p.rows_count):
        row = p.scores(r)
        start, n = p.interval(r)
        anchor = start // 8
        for c in range(logits.shape[1]):
            block = int(made.blocks[r, c // 8])
            j = (block - anchor) * 8 + c % 8
            if c // 8 < made.counts[r] and 0 <= j < n:
                assert bits(logits[r, c]) == bits(row[j])
            else:
                assert logits[r, c] == -np.inf
        assert np.array_equal(picked.positions[r], reference.consume(row, lists[r], 20))


@QUICK
@given(
    st.integers(0, 2**20),
    st.sampled_from([4, 32]),
    st.sampled_from([64, 128]),
    st.sampled_from(["float32", "bfloat16"]),
)
def test_q_prepare(seed, heads, dim, dtype):
    rng = np.random.default_rng(seed)
    q = mxfp4.float32_to_bfloat16(rng.standard_normal((3, heads, dim)).astype(np.float32))
    q[0, 0, 0] = rng.integers(0, 2**16)
    w = rng.standard_normal((3, heads)).astype(np.float32)
    positions = rng.integers(0, 9, 3)
    table = rope_table(rng, 9)
    got = stages.q_prepare(q, positions, table, w, weights_dtype=dtype)
    codes, scales, weights = reference.q_prepare(q, positions, table, w)
    assert np.array_equal(got.codes, codes) and np.array_equal(got.scales, scales)
    if dtype == "bfloat16":
        weights = mxfp4.float32_to_bfloat16(weights)
    assert np.array_equal(got.weights, weights)
    assert stages.q_prepare(q, positions, table).weights is None


@QUICK
@given(st.integers(0, 2**20), st.sampled_from(LAYOUTS), st.sampled_from([1, 2]))
def test_k_insert_and_k_gather(seed, layout, ratio):
    rng = np.random.default_rng(seed)
    x = mxfp4.float32_to_bfloat16(rng.standard_normal((12, 128)).astype(np.float32))
    norm = rng.standard_normal(128).astype(np.float32)
    table = rope_table(rng, 12)
    positions = np.arange(12)
    slots = rng.permutation(32)[:12]
    slots[3] = -5
    codes, scales = np.zeros((32, 64), np.uint8), np.zeros((32, 4), np.uint8)
    k = {
        "mxfp4_page": lambda: paged(codes, scales, 8),
        "mxfp4_split": lambda: tamis.KCache.split(codes, scales),
        "mxfp4_row": lambda: tamis.KCache.rows(np.zeros((32, 68), np.uint8)),
    }[layout]()
    stages.k_insert(x, positions, slots, k, norm, table, ratio=ratio, eps=1e-5)
    want_codes, want_scales = reference.k_prepare(x, positions, norm, table, 1e-5, ratio)
    rows = tamis.Rows(np.array([32], np.int32))
    if layout == "mxfp4_page":
        rows = rows._replace(page_table=np.arange(4, dtype=np.int32)[None])
    got = stages.k_gather(k, rows, np.array([2]), 40)
    written = [i for i in range(12) if slots[i] >= 0 and (i + 1) % ratio == 0]
    assert np.array_equal(got.codes[2 + slots[written]], want_codes[written])
    assert np.array_equal(got.scales[2 + slots[written]], want_scales[written])
    others = np.setdiff1d(np.arange(32), slots[written])
    assert (got.codes[2 + others] == 0).all()


# ---- prepared calls ---------------------------------------------------------------------------


def test_prepared_calls_exchange_pointers():
    p, other = Problem(1, rows=4), Problem(2, rows=4)
    blocks = stages.source(p.k, p.rows, p.query, 8, 5).blocks
    call = stages.consume.prepare(p.k, p.rows, p.query, blocks, 16)
    assert np.array_equal(call.run().positions, stages.consume(p.k, p.rows, p.query, blocks, 16)[0])
    for query in (other.query, p.query):
        want = stages.consume(p.k, p.rows, query, blocks, 16)
        exchanged = {f"query.{name}": x for name, x in query._asdict().items()}
        assert np.array_equal(call.update(exchanged).run().positions, want.positions)
    mine = np.empty((4, 16), np.int32)
    call.update({"out.positions": mine}).run()
    assert np.array_equal(mine, want.positions)


def test_prepared_calls_refuse_what_does_not_fit():
    p = Problem(1, rows=4)
    blocks = stages.source(p.k, p.rows, p.query, 8, 5).blocks
    call = stages.consume.prepare(p.k, p.rows, p.query, blocks, 16)
    want = call.run().positions.copy()
    for name, x in (
        ("blocks", blocks[:3]),
        ("blocks", blocks.astype(np.int64)),
        ("blocks", np.empty((4, 9), np.int32)[:, :5]),
        ("query.weights", p.query.weights.astype(np.float64)),
        ("nothing", blocks),
    ):
        with pytest.raises(errors.ArgumentError):
            call.update({name: x})
    frozen = np.empty((4, 16), np.int32)
    frozen.flags.writeable = False
    with pytest.raises(errors.ArgumentError, match="read-only"):
        call.update({"out.positions": frozen})
    assert np.array_equal(call.run().positions, want)


def test_longer_rows_get_a_larger_workspace():
    short, long = Problem(3, rows=3, length=40), Problem(3, rows=3, length=40000, page_size=512)
    backend = tamis.Backend("auto", 2)
    for use in (None, backend):
        call = stages.source.prepare(
            long.k, long.rows._replace(ke=short.rows.ke), long.query, 8, 4, backend=use
        )
        call.run()
        call.update({"rows.ke": long.rows.ke})
        assert np.array_equal(
            call.run().blocks, stages.source(long.k, long.rows, long.query, 8, 4).blocks
        )


# ---- refusals ---------------------------------------------------------------------------------


def test_errors_name_the_argument_and_leave_outputs_alone():
    p = Problem(4, rows=3, length=100)
    out = tamis.Selection(np.full((3, 8), 5, np.int32))
    blocks = np.zeros((3, 4), np.int32)
    args = (p.k, p.rows, p.query, blocks)
    ke = p.rows.ke.copy()
    ke[1] = 100000
    cases = [
        (errors.LengthError, "rows.ke[1]", (p.k, p.rows._replace(ke=ke), p.query, blocks), {}),
        (errors.ArgumentError, "block_size", args, {"block_size": 7}),
        (errors.NumericsError, "numerics", args, {"numerics": "half"}),
        (
            errors.NumericsError,
            "numerics",
            args,
            {"numerics": "dg_bf16", "backend": tamis.Backend()},
        ),
        (errors.WorkspaceError, "workspace", args, {"workspace": np.zeros(64, np.uint8)}),
        (errors.ArgumentError, "blocks", (*args[:3], blocks[:2]), {}),
        (errors.ArgumentError, "want", args, {"want": ("position",), "out": None}),
    ]
    for kind, name, arguments, options in cases:
        with pytest.raises(kind) as caught:
            stages.consume(*arguments, 8, **{"out": out, **options})
        assert caught.value.name.startswith(name), caught.value
        assert caught.value.status == kind.status
        assert (out.positions == 5).all()


def test_rows_of_a_query_have_to_be_those_of_rows():
    p = Problem(4, rows=3)
    query = tamis.Query(*(x[:2] for x in p.query))
    with pytest.raises(errors.ArgumentError, match="query.codes: required 3 rows"):
        stages.mqa_logits(p.k, p.rows, query)


def test_no_rows_are_no_work():
    p = Problem(4, rows=1)
    rows = tamis.Rows(*(None if x is None else x[:0] for x in p.rows[:3]), p.rows.page_table)
    query = tamis.Query(*(x[:0] for x in p.query))
    got = stages.source(p.k, rows, query, 8, 4)
    assert got.selection.positions.shape == (0, 8) and got.blocks.shape == (0, 4)


def test_tiers_are_named():
    assert list(tamis.tiers())[0] == "ref"
    with pytest.raises(errors.TierError, match="avx9"):
        tamis.Backend("avx9")
    assert tamis.Backend("ref").tier == "ref"
