# SPDX-License-Identifier: MIT
"""The indexer: roles, settings, requirements, and steps against tamis.reference."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import paged, strided

import tamis
from tamis import errors, reference

DATA = Path(__file__).resolve().parents[3] / "data"
CONFIG = {
    "num_hidden_layers": 7,
    "compress_ratios": [0, 2, 2, 1, 1, 1, 1],
    "kv_source_layer_ids": [1, 3],
    "index_source_layer_ids": [1, 3, 4, 6],
    "candidate_source_layer_id": 3,
    "candidate_topk_blocks": 10,
    "candidate_block_size": 8,
    "index_n_heads": 8,
    "index_head_dim": 128,
    "index_topk": 24,
}
LIMITS = {"max_requests": 3, "max_batched_tokens": 40, "max_context": 500, "draft_tokens": 2}
EVERYTHING = ("positions", "slots", "scores", "counts")


class Server:
    """Three requests with pages of both ratios, and queries for a flat batch."""

    def __init__(self, seed, page_size=16, **options):
        rng = self.rng = np.random.default_rng(seed)
        self.indexer = tamis.Indexer(CONFIG, page_size=page_size, **options)
        self.tables, self.k, self.keys = {}, {}, {}
        for ratio in (1, 2):
            pages = -(-500 // ratio // page_size)
            n = 3 * pages * page_size
            codes = rng.integers(0, 256, (n, 64), np.uint8)
            scales = rng.integers(120, 130, (n, 4)).astype(np.uint8)
            self.k[ratio] = paged(codes, scales, page_size)
            self.tables[ratio] = rng.permutation(3 * pages).astype(np.int32).reshape(3, pages)
            self.keys[ratio] = codes, scales
        self.page_size = page_size

    def queries(self, tokens):
        rng = self.rng
        return tamis.Query(
            rng.integers(0, 256, (tokens, 8, 64), np.uint8),
            rng.integers(120, 130, (tokens, 8, 4)).astype(np.uint8),
            rng.standard_normal((tokens, 8)).astype(np.float32),
        )

    def slots(self, ratio, request, n):
        table = self.tables[ratio][request]
        return (
            table[:, None].astype(np.int64) * self.page_size + np.arange(self.page_size)
        ).ravel()[:n]

    def scores(self, ratio, request, n, query, token):
        at = self.slots(ratio, request, n)
        codes, scales = self.keys[ratio]
        return reference.scores(codes[at], scales[at], *(x[token] for x in query))


def test_roles_of_the_released_model():
    indexer = tamis.Indexer(DATA / "deepseek-v4.1-flash.json", page_size=128)
    roles = indexer.roles
    assert [n for n, role in enumerate(roles) if role.role == "source"] == [20]
    assert [n for n, role in enumerate(roles) if role.role == "consumer"] == [24, 28, 32, 36]
    assert [n for n, role in enumerate(roles) if role.role == "full"] == [2, 8, 14]
    assert roles[24] == ("consumer", 1, 20, 20) and roles == indexer.model.roles()
    assert indexer.tier in tamis.tiers()
    with pytest.raises(errors.ArgumentError, match="layer: required 0 .. 42, found 43"):
        indexer.role(43)


@settings(max_examples=20, deadline=None)
@given(
    st.integers(0, 2**20),
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 470)), min_size=3, max_size=3),
    st.sampled_from([True, False, "auto"]),
    st.sampled_from([1, 3]),
    st.integers(0, 4),
)
def test_steps_select_what_the_reference_does(seed, requests, sparse, threads, padding):
    new = np.array([n for n, _ in requests])
    if new.sum() > 40:
        new = new // 3
    server = Server(seed, settings={"indexer_sparse_logits": sparse})
    plan = server.indexer.plan(**LIMITS, threads=threads, largest_graph=50)
    context = np.array([old for _, old in requests]) + new
    starts = np.concatenate([[0], np.cumsum(new)]).astype(np.int32)
    tokens = int(new.sum())
    rows = tokens + padding
    step = plan.step(context, starts, page_tables=server.tables, padded_rows=rows)
    assert (step.tokens, step.rows) == (tokens, rows)
    assert sorted(step.token.tolist()) == list(range(rows))
    query = server.queries(tokens)
    published = np.full((rows, 10), 7, np.int32)
    got = {}
    for layer, role in enumerate(server.indexer.roles):
        if role.role in ("full", "source", "consumer"):
            call = plan.layer(
                layer,
                server.k[role.ratio],
                query,
                rows=rows,
                want=EVERYTHING,
                blocks=published if role.role == "source" else None,
            )
            got[layer] = call.run(step)
    owner = np.repeat(np.arange(3), new)
    for t in range(tokens):
        request = int(owner[t])
        position = int(context[request] - new[request] + t - starts[request])
        for layer, out in got.items():
            role = server.indexer.role(layer)
            n = tamis.visible(position, role.ratio)
            row = server.scores(role.ratio, request, n, query, t)
            if role.role == "consumer":
                want = reference.consume(row, published[t], 24)
            else:
                want = reference.topk(row, 24)
            assert np.array_equal(out.positions[t], want), (layer, t)
            chosen = want[want >= 0]
            at = server.slots(role.ratio, request, n)[chosen]
            assert np.array_equal(out.slots[t, : chosen.size], at)
            assert out.counts[t] == chosen.size
            if role.role == "source":
                assert np.array_equal(published[t], reference.publish(row, 10))
    for out in got.values():
        assert (out.positions[tokens:] == -1).all() and (out.counts[tokens:] == 0).all()
    counters = plan.counters()
    assert counters.steps == 1
    assert counters.consumed == counters.sparse_rows + counters.dense_rows


def test_layouts_without_pages_take_starts():
    rng = np.random.default_rng(2)
    indexer = tamis.Indexer(CONFIG, layout="mxfp4_split")
    plan = indexer.plan(**LIMITS)
    codes = rng.integers(0, 256, (600, 64), np.uint8)
    scales = rng.integers(120, 130, (600, 4)).astype(np.uint8)
    k = tamis.KCache.split(codes, scales)
    starts = {ratio: np.array([300, 20], np.int32) for ratio in (1, 2)}
    context, query_start = np.array([200, 90]), np.array([0, 1, 4], np.int32)
    step = plan.step(context, query_start, k_starts=starts)
    query = Server(1).queries(4)
    out = plan.layer(3, k, query).run(step)
    for t, (first, n) in enumerate([(300, 200), (20, 88), (20, 89), (20, 90)]):
        part = slice(first, first + n)
        row = reference.scores(codes[part], scales[part], *(x[t] for x in query))
        assert np.array_equal(out.positions[t], reference.topk(row, 24))


def test_every_unmet_requirement_is_reported_at_once():
    bad = {"page_size": 12, "tier": "avx9"}
    with pytest.raises(errors.RequirementError) as caught:
        tamis.Indexer({**CONFIG, "index_head_dim": 96}, {"numerics": "half"}, **bad)
    failures = caught.value.failures
    assert failures == tamis.Indexer.requirements(
        {**CONFIG, "index_head_dim": 96}, {"numerics": "half"}, **bad
    )
    found = {failure.id: failure for failure in failures}
    assert {"head-dim", "numerics-known", "page-size-multiple"} < set(found)
    assert found["page-size-multiple"].found == "12"
    for failure in failures:
        assert failure.setting and failure.required and failure.way_out
        assert str(failure) in str(caught.value)
    assert tamis.Indexer.requirements(CONFIG) == []
    with pytest.raises(errors.ArgumentError, match="limits.rows"):
        tamis.Indexer(CONFIG, limits={"rows": 3})
    small = tamis.Indexer.requirements(CONFIG, limits=LIMITS, workspace_limit=100)
    assert [failure.setting for failure in small] == ["workspace_limit"]


@pytest.mark.parametrize(
    "given, name",
    [
        ({"indexer_sparse_logits": "yes"}, "indexer_sparse_logits"),
        ({"indexer_sparse_logits": 1}, "indexer_sparse_logits"),
        ({"prefill_budget_mb": True}, "prefill_budget_mb"),
        ({"prefill_budget_mb": 2**31}, "prefill_budget_mb"),
        ({"numerics": 3}, "numerics"),
        ({"sparse": True}, "sparse"),
        ('{"numerics": ', "attention config"),
    ],
)
def test_settings_are_typed_and_unknown_keys_are_errors(given, name):
    with pytest.raises(errors.FormatError) as caught:
        tamis.Indexer(CONFIG, given)
    assert caught.value.name == name


def test_configs_come_in_several_forms(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"text_config": CONFIG, "architectures": ["x"]}))
    want = tamis.Indexer(CONFIG).roles
    assert tamis.Indexer(path, DATA / "attention.json").roles == want
    assert tamis.Indexer(json.dumps(CONFIG)).roles == want
    assert tamis.Indexer(tamis.Model.from_config(CONFIG)).roles == want
    assert tamis.Model.from_config(tamis.Model.from_config(CONFIG).to_config()).roles() == want
    with pytest.raises(errors.ModelError, match="text_config.index_topk: required as outside"):
        tamis.Indexer({**CONFIG, "text_config": {"index_topk": 9}})
    with pytest.raises(errors.FileError, match="a file that can be read"):
        tamis.Indexer(tmp_path / "none.json")


def test_stamps_and_limits_are_errors_and_write_nothing():
    server = Server(3)
    plan = server.indexer.plan(**LIMITS)
    context, starts = np.array([50, 60, 70]), np.array([0, 1, 2, 3], np.int32)
    first = plan.step(context, starts, page_tables=server.tables)
    query = server.queries(3)
    source = plan.layer(3, server.k[1], query)
    out = tamis.Selection(np.full((3, 24), 9, np.int32))
    consumer = plan.layer(4, server.k[1], query, out=out)
    with pytest.raises(errors.StampError, match="published blocks of this step"):
        consumer.run(first)
    source.run(first)
    second = plan.step(context, starts, page_tables=server.tables)
    with pytest.raises(errors.StampError):
        consumer.run(second)
    with pytest.raises(errors.StampError, match="step"):
        source.run(first)
    assert (out.positions == 9).all()
    source.run(second)
    consumer.run(second)
    assert (np.diff(out.positions, axis=1) > 0).all()
    with pytest.raises(errors.LimitError, match=r"context\[1\]"):
        plan.step(context * 10, starts, page_tables=server.tables)
    with pytest.raises(errors.ArgumentError, match="layer: required a full, source or consumer"):
        plan.layer(5, server.k[1], query)
    with pytest.raises(errors.ArgumentError, match="query.codes: required 3 rows or more, found 2"):
        plan.layer(3, server.k[1], tamis.Query(*(x[:2] for x in query))).run(second)
    with pytest.raises(errors.ArgumentError, match=r"page_tables: required ratios 1 and 2"):
        plan.step(context, starts, page_tables={3: server.tables[1]})
    with pytest.raises(errors.ArgumentError, match=r"query_start: required int32 \[4\]"):
        plan.step(context, starts[:3], page_tables=server.tables)
    with pytest.raises(errors.LayoutError):
        plan.layer(3, tamis.KCache.rows(np.zeros((9, 68), np.uint8)), query).run(second)


def test_outputs_have_room_for_padding():
    server = Server(3)
    plan = server.indexer.plan(**LIMITS)
    context, starts = np.array([50, 60, 70]), np.array([0, 1, 2, 3], np.int32)
    step = plan.step(context, starts, page_tables=server.tables, padded_rows=5)
    with pytest.raises(errors.ArgumentError, match="rows: required outputs of 5 rows or more"):
        plan.layer(3, server.k[1], server.queries(3)).run(step)
    short = tamis.Selection(np.zeros((5, 24), np.int32), counts=np.zeros(4, np.int32))
    with pytest.raises(errors.ArgumentError, match="rows: required outputs of 5 rows or more"):
        plan.layer(3, server.k[1], server.queries(3), rows=5, out=short).run(step)


def test_page_tables_keep_their_strides():
    server = Server(3)
    plan = server.indexer.plan(**LIMITS)
    context, starts = np.array([50, 60, 70]), np.array([0, 1, 2, 3], np.int32)
    query = server.queries(3)
    want = plan.layer(3, server.k[1], query)
    step = plan.step(context, starts, page_tables=server.tables)
    want = want.run(step).positions.copy()
    wide = {ratio: strided(table) for ratio, table in server.tables.items()}
    step = plan.step(context, starts, page_tables=wide)
    assert np.array_equal(plan.layer(3, server.k[1], query).run(step).positions, want)
    rows = tamis.Rows(context.astype(np.int32), None, np.arange(3, dtype=np.int32), wide[1])
    made = tamis.stages.source(server.k[1], rows, query, 24)
    assert np.array_equal(made.selection.positions, want)


def test_a_longest_context_narrows_page_tables():
    server = Server(3)
    plan = server.indexer.plan(**LIMITS)
    context, starts = np.array([50, 60, 70]), np.array([0, 1, 2, 3], np.int32)
    query = server.queries(3)

    def step(longest):
        made = plan.step(context, starts, page_tables=server.tables, max_context=longest)
        return made, list(made.struct.page_table_width), list(made.struct.page_table_stride)

    whole, widths, strides = step(None)
    assert widths == strides == [server.tables[1].shape[1], server.tables[2].shape[1]]
    want = plan.layer(3, server.k[1], query).run(whole).positions.copy()
    for longest in (70, 80):  # 16 positions a page; ratio 2 has half of them
        narrow, narrowed, kept = step(longest)
        assert narrowed == [5, 3] and kept == strides
        assert np.array_equal(plan.layer(3, server.k[1], query).run(narrow).positions, want)
    assert step(81)[1] == [6, 3] and step(1 << 40)[1] == widths
    with pytest.raises(errors.Error, match="required positions that its page table has, found 70"):
        step(64)
    with pytest.raises(errors.ArgumentError, match="max_context: required 0 or more, found -1"):
        step(-1)
    with pytest.raises(errors.ArgumentError, match="max_context: required an integer"):
        step("far")


def test_short_steps_are_told():
    server = Server(3)
    plan = server.indexer.plan(**LIMITS)
    starts = np.array([0, 1, 2, 3], np.int32)
    assert plan.step(np.array([20, 24, 3]), starts, page_tables=server.tables).is_short(1, 24)
    step = plan.step(np.array([20, 25, 3]), starts, page_tables=server.tables)
    assert not step.is_short(1, 24) and step.is_short(2, 24)


def test_plans_outlive_the_names_of_what_they_hold():
    import gc

    server = Server(4)
    plan = tamis.Indexer(CONFIG, page_size=16).plan(**LIMITS)
    gc.collect()
    starts = np.array([0, 1, 2, 3], np.int32)
    step = plan.step(np.array([50, 60, 70]), starts.copy(), page_tables=dict(server.tables))
    out = plan.layer(3, server.k[1], server.queries(3)).run(step)
    assert (out.counts == 24).all()
    assert plan.bytes > 0 and plan.max_rows == 40


def test_devices_are_named():
    indexer = tamis.Indexer(CONFIG)
    with pytest.raises(errors.ArgumentError, match='device: required "cpu" or a CUDA device'):
        indexer.plan(**LIMITS, device="tpu")
