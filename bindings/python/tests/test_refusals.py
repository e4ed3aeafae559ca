# SPDX-License-Identifier: MIT
"""Whatever is handed to a call ends in its answer or in an exception with the argument's name."""

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest
from problems import Problem

import tamis
from tamis import arrays, stages

P = Problem(3, rows=3, heads=8, length=600, layout="mxfp4_split")
BLOCKS = np.tile(np.arange(32, dtype=np.int32), (3, 1))


def consume(k=P.k, rows=P.rows, query=P.query, blocks=BLOCKS, topk=16, **options):
    return stages.consume(k, rows, query, blocks, topk, **options)


class Broken:
    """An object whose DLPack methods return, or raise, what they are told to."""

    def __init__(self, capsule, device=(1, 0)):
        self.capsule = capsule
        self.device = device

    def give(self, what):
        if isinstance(what, Exception):
            raise what
        return what

    def __dlpack__(self, **_options):
        return self.give(self.capsule)

    def __dlpack_device__(self):
        return self.give(self.device)


USED = BLOCKS.__dlpack__()
np.from_dlpack(Broken(USED))
HUGE = 2**32 + 8  # 8 to who cuts it to 32 bits

CONFIG = Path(__file__).resolve().parents[3] / "data" / "deepseek-v4.1-flash.json"


def plan(**limits):
    least = dict(max_requests=1, max_batched_tokens=16, max_context=4096)
    return tamis.Indexer(CONFIG).plan(**{**least, **limits})


REFUSED = [
    *(("selection.topk", dict(topk=x)) for x in (0, -1, 4097, 2**31, HUGE, 2**70, 1.5, "16", None)),
    *(("block_size", dict(block_size=x)) for x in (0, -8, 7, HUGE, 8.0, "8", None)),
    *(("threads", dict(threads=x)) for x in (0, -1, 1025, HUGE, 1.5, "2")),
    *(("k", dict(k=x)) for x in (None, P.codes, "cpu")),
    *(("rows", dict(rows=x)) for x in (None, (P.rows.ke,))),
    *(("query", dict(query=x)) for x in (None, tuple(P.query))),
    ("out", dict(out=(np.zeros((3, 16), np.int32),))),
    ("backend", dict(backend="avx2")),
    *(("numerics", dict(numerics=x)) for x in ("f16", None, [])),
    *(("blocks", dict(blocks=Broken(x))) for x in (None, 5, USED, RuntimeError("no"))),
    *(("blocks", dict(blocks=Broken(None, x))) for x in (None, RuntimeError("no"), (99, 0))),
    ("blocks", dict(blocks=Broken)),
    ("blocks", dict(blocks=np.ma.masked_array(BLOCKS, BLOCKS > 3))),
    ("blocks", dict(blocks=BLOCKS.astype(object))),
    ("blocks", dict(blocks=BLOCKS.astype(">i4"))),
]


@pytest.mark.parametrize("name, options", REFUSED)
def test_consume_names_what_is_wrong(name, options):
    with pytest.raises(tamis.Error) as caught:
        consume(**options)
    assert caught.value.name == name and caught.value.required and caught.value.found


@pytest.mark.parametrize(
    "name, call",
    [
        ("columns", lambda: stages.mqa_logits(P.k, P.rows, P.query, columns=-1)),
        ("columns", lambda: stages.mqa_logits(P.k, P.rows, P.query, columns=2**40)),
        ("topk_blocks", lambda: stages.publish(np.zeros((3, 75), np.float32), P.rows, -1)),
        ("topk_blocks", lambda: stages.source(P.k, P.rows, P.query, 16, HUGE)),
        ("candidate_size", lambda: stages.expand(BLOCKS, P.rows, candidate_size=-8)),
        ("candidate_size", lambda: stages.expand(BLOCKS, P.rows, candidate_size=HUGE)),
        ("page_size", lambda: tamis.KCache.pages(np.zeros((4, 8704), np.uint8), "128")),
        ("page_size", lambda: tamis.KCache.pages(np.zeros((4, 8704), np.uint8), HUGE)),
        ("page_size", lambda: tamis.Indexer(CONFIG, page_size="128")),
        ("page_size", lambda: tamis.Indexer(CONFIG, page_size=2**32 + 128)),
        ("limits.max_requests", lambda: plan(max_requests=2**32 + 1)),
        ("limits.max_requests", lambda: plan(max_requests="1")),
        ("limits.max_context", lambda: plan(max_context=2**70)),
        ("tier", lambda: tamis.Backend(None)),
        ("tier", lambda: tamis.Backend("auto\0")),
    ],
)
def test_other_calls_name_what_is_wrong(name, call):
    with pytest.raises(tamis.Error) as caught:
        call()
    assert caught.value.name == name and caught.value.required and caught.value.found


@pytest.mark.parametrize("layout", ["mxfp4_page", "mxfp4_split", "mxfp4_row"])
@pytest.mark.parametrize("again", [copy.deepcopy, lambda k: pickle.loads(pickle.dumps(k))])
def test_a_copied_cache_points_at_its_own_memory(layout, again):
    p = Problem(4, rows=2, length=300, layout=layout)
    want = stages.mqa_logits(p.k, p.rows, p.query).logits
    other = again(p.k)
    assert other._view.pointer == other.codes.ctypes.data != p.k.codes.ctypes.data
    p.k.codes[:] = 0
    assert np.array_equal(stages.mqa_logits(other, p.rows, p.query).logits, want, equal_nan=True)


def test_addresses_do_not_travel():
    with pytest.raises(TypeError, match="address"):
        pickle.dumps(arrays.view("x", BLOCKS))


def test_tensors_that_are_not_their_memory_are_refused():
    torch = pytest.importorskip("torch", reason="SKIPPED: torch is not installed")
    weights = torch.from_numpy(np.array(P.query.weights, np.float32))
    blocks = torch.from_numpy(BLOCKS)
    for name, options in [
        ("query.weights", dict(query=P.query._replace(weights=torch._neg_view(weights)))),
        ("query.weights", dict(query=P.query._replace(weights=weights.to_sparse()))),
        ("blocks", dict(blocks=blocks.to_sparse())),
        ("blocks", dict(blocks=blocks.to("meta"))),
    ]:
        with pytest.raises(tamis.Error) as caught:
            consume(**options)
        assert caught.value.name == name
    call = stages.consume.prepare(P.k, P.rows, P.query._replace(weights=weights), blocks, topk=16)
    with pytest.raises(tamis.Error) as caught:
        call.update({"query.weights": torch._neg_view(weights)})
    assert caught.value.name == "query.weights"
    assert consume(blocks=blocks[:, :0]).counts.tolist() == [0, 0, 0]


def test_a_refused_update_exchanges_nothing():
    call = stages.consume.prepare(P.k, P.rows, P.query, BLOCKS, topk=16)
    want = call.run().positions.copy()
    none = np.full_like(BLOCKS, -1)
    for name, exchanged in [
        ("query.codes", {"blocks": none, "query.codes": P.query.codes[:1]}),
        ("update", {"blocks": none, "block": none}),
        ("blocks", {"out.positions": np.zeros_like(want), "blocks": Broken(None)}),
        ("update", [("blocks", none)]),
    ]:
        with pytest.raises(tamis.Error) as caught:
            call.update(exchanged)
        assert caught.value.name == name
        call.outputs.positions[:] = 77
        assert np.array_equal(call.run().positions, want)
    assert (call.update({"blocks": none}).run().counts == 0).all()


def test_pages_want_a_table_and_quantize_wants_groups():
    pages = tamis.KCache.pages(np.zeros((2, 64, 68), np.uint8))
    rows = tamis.Rows(ke=np.array([9], np.int32))
    query = tamis.Query(*(x[:1] for x in P.query))
    for call in (
        lambda: stages.consume(pages, rows, query, BLOCKS[:1], topk=16),
        lambda: stages.mqa_logits(pages, rows, query),
        lambda: stages.k_gather(pages, rows, np.zeros(1, np.int64), 9),
    ):
        with pytest.raises(tamis.Error) as caught:
            call()
        assert caught.value.name == "rows.page_table" and caught.value.found == "None"
    for wrong in (
        np.zeros((2, 33), np.float32),
        "text",
        np.float32(1),
        np.zeros((2, 32), np.int32),
    ):
        with pytest.raises(tamis.Error) as caught:
            tamis.mxfp4.quantize(wrong)
        assert caught.value.name == "x" and "32" in caught.value.required
