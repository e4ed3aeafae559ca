# SPDX-License-Identifier: MIT
"""The worked engines: an SGLang candidate backend and a vLLM plugin, on stand-ins of both."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from dropin import DEVICES, Paged, torch

from tamis import vllm

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples"
LENS = [0, 1, 100, 130, 333, 1000]


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def outputs(p: Paged, topk: int) -> SimpleNamespace:
    make = lambda: torch.full((len(p.lens), topk), 77, dtype=torch.int32, device=p.lens.device)
    return SimpleNamespace(page_indices=make(), raw_indices=make())


def check(p: Paged, out: SimpleNamespace, r: int, columns: list) -> None:  # type: ignore[type-arg]
    scores, topk = p.scores(r), out.raw_indices.shape[1]
    want = sorted(sorted(columns, key=lambda j: (-float(scores[j]), j))[:topk])
    found = [j for j in out.raw_indices[r].tolist() if j >= 0]
    assert len(found) == len(want) and found == sorted(set(found)) and set(found) <= set(columns)
    cut = min((float(scores[j]) for j in want), default=0.0)
    assert all(abs(float(scores[j]) - cut) < 1e-3 for j in set(found) ^ set(want))
    slots = [int(p.table[r, j // p.page]) * p.page + j % p.page for j in found]
    assert out.page_indices[r].tolist() == slots + [-1] * (topk - len(slots))


@pytest.mark.parametrize("device", DEVICES)
def test_sglang_backend(device: str) -> None:
    example = load(EXAMPLES / "sglang_backend.py")
    source, consumer = Paged(device, LENS, seed=1), Paged(device, LENS, seed=1)
    other = Paged(device, LENS, seed=8)  # the consumer has queries of its own
    consumer.q, consumer.q_sf, consumer.w = other.q, other.q_sf, other.w
    data = lambda p: example.LayerData(p.q, p.q_sf, p.w, p.kv, p.lens, p.table)
    backend = example.TamisCandidateBackend(data=data, candidate_topk_blocks=16)
    own, out = outputs(source, 64), outputs(consumer, 64)
    published = backend.publish_decode(source, own)
    backend.consume_decode(consumer, published, out)
    for r, n in enumerate(LENS):
        check(source, own, r, list(range(n)))
        scores, blocks = source.scores(r), -(-n // 8)
        maxima = [float(scores[b * 8 : b * 8 + 8].max()) for b in range(blocks)]
        best = sorted(sorted(range(blocks), key=lambda b: (b != blocks - 1, -maxima[b], b))[:16])
        assert published.blocks[r].tolist() == best + [-1] * (16 - len(best))
        check(consumer, out, r, [b * 8 + o for b in best for o in range(8) if b * 8 + o < n])
    rows = torch.tensor([4, 5], device=device)
    part = Paged(device, LENS, seed=1)
    for name in ("q", "q_sf", "w", "lens", "table"):
        setattr(part, name, getattr(consumer, name)[rows])
    again = outputs(part, 64)
    backend.consume_prefill(part, published.tail(rows), again)
    assert torch.equal(again.page_indices, out.page_indices[rows])
    with pytest.raises(ValueError, match="6 rows"):
        backend.consume_decode(part, published, again)


def stand_in(monkeypatch: pytest.MonkeyPatch, name: str, **contents: object) -> ModuleType:
    parts = name.split(".")
    for i in range(1, len(parts)):
        monkeypatch.setitem(sys.modules, ".".join(parts[:i]), ModuleType(".".join(parts[:i])))
    module = ModuleType(name)
    module.__dict__.update(contents)
    monkeypatch.setitem(sys.modules, name, module)
    return module


def modules(monkeypatch: pytest.MonkeyPatch, plugin: ModuleType, without: str = ""):  # type: ignore[no-untyped-def]
    class Hopper:
        def is_cuda(self) -> bool:
            return True

        def is_device_capability_family(self, capability: int) -> bool:
            return capability == 90

    flows = {name: None for name in plugin.FLOWS if name != without}
    questions = {"has_deep_gemm_sparse_mqa": lambda: False, "current_platform": Hopper()}
    imported = {name: None for name in plugin.IMPORTED}
    return (
        stand_in(monkeypatch, plugin.KERNELS, **flows),
        stand_in(monkeypatch, plugin.LAYER, **imported, **questions),
        stand_in(monkeypatch, plugin.BUILDER, **questions),
    )


def test_vllm_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = load(EXAMPLES / "vllm_plugin" / "tamis_vllm.py")
    kernels, layer, builder = modules(monkeypatch, plugin)
    plugin.register()
    plugin.register()
    for name in plugin.FLOWS:
        assert getattr(kernels, name) is getattr(vllm, name)
    assert layer.sparse_mqa_logits_paged_decode is vllm.sparse_mqa_logits_paged_decode
    for module in (layer, builder):
        assert module.has_deep_gemm_sparse_mqa()
        assert module.current_platform.is_device_capability_family(100)
        assert module.current_platform.is_device_capability_family(90)
        assert not module.current_platform.is_device_capability_family(120)
        assert module.current_platform.is_cuda()


def test_vllm_plugin_changes_nothing_of_another_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = load(EXAMPLES / "vllm_plugin" / "tamis_vllm.py")
    kernels, _, builder = modules(monkeypatch, plugin, without="sparse_topk_remap")
    with pytest.raises(ImportError, match="sparse_topk_remap"):
        plugin.register()
    assert (
        kernels.sparse_mqa_logits_prefill_chunk is None and not builder.has_deep_gemm_sparse_mqa()
    )


@pytest.mark.parametrize("page, skipped", [("bindings/python/README.md", 1), ("docs/vllm.md", 0)])
def test_code_of_the_pages_runs(
    page: str, skipped: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Block after block, as a reader would paste them; the last ``skipped`` are sketches."""
    if not (ROOT / "data" / "trace_a.safetensors").exists():
        pytest.skip("SKIPPED: the bundled trace is not here")
    text = (ROOT / page).read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    blocks = blocks[: len(blocks) - skipped]
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    names: dict = {"__name__": "page"}  # type: ignore[type-arg]
    with contextlib.redirect_stdout(printed):
        for block in blocks:
            exec(block.replace('"data/', f'"{ROOT}/data/'), names)
    promised = re.findall(r"It prints `([^`]*)`", text)
    assert blocks and promised and all(line in printed.getvalue() for line in promised)
