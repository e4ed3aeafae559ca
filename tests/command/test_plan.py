# SPDX-License-Identifier: MIT
"""`tamis plan`: roles, bytes, chunks and savings of the released model, and every fault of a bad deployment at once."""
import json
import os

from support import Run, bad, device, good, main

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "data")
FLASH, ATTENTION = os.path.join(DATA, "deepseek-v4.1-flash.json"), os.path.join(DATA, "attention.json")
SPARSE = ["--attention", ATTENTION]


def plan(*options, config=FLASH):
    return json.loads(good("plan", config, "--json", *options).out)


def faults(*options, config=FLASH):
    """The report of a bad deployment: as JSON on stdout, and the same failures as lines on stderr."""
    run = Run("plan", config, "--json", *options)
    assert run.status == 2 and run.err == "", (run.status, run.err)
    report = json.loads(run.out)
    assert report["supported"] is False and "workspace_bytes" not in report
    text = Run("plan", config, *options)
    assert text.status == 2 and text.out == "", (text.status, text.out)
    assert text.err == "".join("tamis: %s: %s %s: required %s, found %s; %s\n" % (
        config, f["id"], f["setting"], f["required"], f["found"], f["way_out"]) for f in report["failures"])
    return report["failures"]


def variant(folder, name="config.json", **keys):
    """The released config with some keys changed; None removes one."""
    values = {**json.load(open(FLASH)), **keys}
    path = os.path.join(folder, name)
    json.dump({key: value for key, value in values.items() if value is not None}, open(path, "w"))
    return path


def attention(folder, text):
    path = os.path.join(folder, "attention.json")
    open(path, "w").write(text)
    return path


def test_plan_roles(folder):
    roles = {}
    for entry in plan()["roles"]:
        for layer in range(entry["first"], entry["last"] + 1):
            roles[layer] = (entry["role"], entry["ratio"], entry["k_owner"], entry["source"])
    assert len(plan()["roles"]) == 18
    index, owners = [2, 8, 14, 20, 24, 28, 32, 36], [2, 8, 14, 20]
    for layer in range(43):
        if layer < 2 or layer >= 40:
            expected = ("none", 0, None, None)
        else:
            ratio, owner = 2 if layer < 20 else 1, max(o for o in owners if o <= layer)
            if layer == 20:
                expected = ("source", ratio, owner, None)
            elif layer in index:
                expected = ("consumer", ratio, owner, 20) if layer > 20 else ("full", ratio, owner, None)
            else:
                expected = ("reuse", ratio, owner, max(i for i in index if i <= layer))
        assert roles.pop(layer) == expected, (layer, expected)
    assert not roles


def test_plan_kv_vectors(folder):
    def kv(page_size, row, align, *more, sparse=SPARSE):
        return plan(*sparse, "--page-size", page_size, "--main-row-bytes", row, "--main-align", align, *more)["kv"]

    wide = kv(256, 584, 576)
    assert (wide["bytes_unaligned"], wide["alignment"], wide["bytes_per_block"]) == (502848, 4608, 506880)
    assert round(wide["overhead_percent"], 3) == 0.802 and wide["index_page_bytes"] == 17856
    assert wide["page_stride"] == 506880 and wide["page_size_without_overhead"] == 256
    half = kv(128, 584, 576)
    assert (half["bytes_unaligned"], half["bytes_per_block"]) == (252288, 253440)
    assert round(half["overhead_percent"], 3) == 0.457
    even = kv(256, 528, 512)
    assert even["overhead_percent"] == 0 and even["bytes_per_block"] == 3 * (256 * 528 + 256 * 68)
    assert kv(256, 584, 576, sparse=[])["bytes_per_block"] == 502848
    pool = plan(*SPARSE)["kv"]
    assert (pool["page_size"], pool["overhead_percent"], pool["index_page_padding"]) == (128, 0, 0)
    assert pool["bytes_per_block"] == 3 * 128 * 68 and pool["index_row_bytes"] == 68
    assert pool["index_bytes_per_token"] == 3 * 68 / 2 + 68
    assert pool["bytes_per_token"] == pool["bytes_per_block"] * (1 / 128 + 1 / 256)
    assert pool["groups"] == [{"ratio": 1, "owners": 1, "bytes": 8704, "tokens": 128},
                              {"ratio": 2, "owners": 3, "bytes": 26112, "tokens": 256}]
    small = plan(*SPARSE, "--page-size", "64")["kv"]
    assert (small["bytes_unaligned"], small["bytes_per_block"], small["page_size_without_overhead"]) == (13056, 13312, 128)
    inside = plan(*SPARSE, "--page-size", "64", "--page-align", "512")["kv"]
    assert (inside["index_page_bytes"], inside["index_page_padding"], inside["overhead_percent"]) == (4608, 256, 0)
    for text, page in ((good("plan", FLASH, *SPARSE).out, None),
                       (good("plan", FLASH, *SPARSE, "--page-size", "64").out, 128)):
        assert ("for 0%" in text) == (page is not None) and ("pages of 128 positions\n" in text)


def test_plan_memory(folder):
    for size, number in (("40GiB", 40 << 30), ("1TiB", 1 << 40), ("3MiB", 3 << 20), ("7KiB", 7 << 10), ("26112", 26112)):
        kv = plan(*SPARSE, "--memory", size)["kv"]
        assert kv["memory"] == number and kv["blocks"] == number // 26112, kv
        assert kv["tokens"] == kv["blocks"] // 3 * 256
    assert "blocks" not in plan()["kv"]
    text = good("plan", FLASH, *SPARSE, "--memory", "40GiB").out
    assert "1,644,825 in 42,949,672,960 bytes" in text, text
    for wrong in ("40GB", "-1", "", "GiB", "1.5GiB", "9223372036854775808", "8388608TiB"):
        assert "--memory" in bad("plan", FLASH, "--memory", wrong)


def test_plan_chunks(folder):
    rows = {c["context"]: c for c in plan(*SPARSE)["chunks"]}
    for context, dense in ((32 << 10, 4096), (128 << 10, 1024), (256 << 10, 512), (1 << 20, 128)):
        assert rows[context]["positions"] == context and rows[context]["dense_rows"] == dense
        assert rows[context]["sparse_rows"] == dense
    assert rows[8192]["sparse_rows"] == rows[4096]["sparse_rows"] == 16384 and rows[4096]["dense_rows"] == 32768
    budget = attention(folder, '{"prefill_budget_mb": 64}')
    assert {c["context"]: c["dense_rows"] for c in plan("--attention", budget)["chunks"]}[1 << 20] == 16
    huge = attention(folder, '{"prefill_budget_mb": 2147483647}')
    assert plan("--attention", huge)["chunks"][-1]["dense_rows"] == (2147483647 << 20) // 4 >> 20


def test_plan_savings(folder):
    for entry in plan(*SPARSE)["positions_scored"]:
        n = entry["context"]
        assert entry["consumers_dense"] == 4 * n and entry["consumers_sparse"] == 4 * min(n, 16384)
        assert entry["all_dense"] == 3 * n // 2 + n + 4 * n
        assert entry["all_sparse"] == 3 * n // 2 + n + 4 * min(n, 16384)
    assert [e["context"] for e in plan()["positions_scored"]] == [16384, 65536, 262144, 1048576]
    assert "not measured" in good("plan", FLASH).out
    assert "indexer_sparse_logits is false" in good("plan", FLASH).out
    assert "indexer_sparse_logits is false" not in good("plan", FLASH, *SPARSE).out


def test_plan_workspace(folder):
    small = ["--max-batched-tokens", "512", "--threads", "1", "--max-requests", "16"]
    report = plan(*SPARSE, *small)
    bytes_needed = report["workspace_bytes"]
    assert report["max_rows"] == 512 and 2 * 512 * 2048 * 4 < bytes_needed < 16 << 20
    assert plan(*SPARSE, *small, "--drafts", "63")["max_rows"] == 1024
    assert plan(*SPARSE, *small, "--largest-graph", "4096")["max_rows"] == 4096
    assert plan(*SPARSE, *small, "--threads", "2")["workspace_bytes"] > bytes_needed
    assert plan(*small)["workspace_bytes"] > bytes_needed + (3 << 20)  # a row of scores
    assert plan(*small, "--max-context", "4096")["workspace_bytes"] < bytes_needed
    assert plan(*SPARSE, *small, "--workspace-limit", str(bytes_needed))["supported"]
    short, = faults(*SPARSE, *small, "--workspace-limit", str(bytes_needed - 1))
    assert short["id"] == "workspace-fits" and str(bytes_needed) in short["required"], short


def test_plan_faults(folder):
    """Faults of the model, the attention config, the pages, the limits and the machine in one report."""
    config = variant(folder, index_topk=5000, index_n_heads=33, candidate_block_size=12,
                     compress_ratios=[0, 0] + [4] + [2] * 17 + [1] * 20 + [0] * 3)
    settings = attention(folder, '{"indexer_kv_dtype": "int3", "topk_backend": "none", "prefill_budget_mb": 0, "numerics": "dg_bf16"}')
    found = faults("--attention", settings, "--page-size", "60", "--page-align", "24", "--page-stride", "100",
                   "--context-parallel", "65", "--decode-parallel", "4", "--tier", "none", "--drafts", "256",
                   "--max-requests", "0", "--max-batched-tokens", "-1", "--largest-graph", "-1", "--threads", "1025",
                   "--max-context", "2147483648", config=config)
    assert [f["id"] for f in found] == [
        "ratio", "block-multiple", "topk-limit", "heads", "kv-dtype-known", "page-size-multiple", "page-align",
        "page-stride-multiple", "prefill-budget", "numerics-serving", "topk-backend-known", "tier-known",
        "context-parallel", "decode-parallel", "limit-requests", "limit-tokens", "limit-drafts", "limit-graph",
        "limit-threads", "limit-context"], [f["id"] for f in found]
    by_id = {f["id"]: f for f in found}
    assert (by_id["ratio"]["setting"], by_id["ratio"]["found"]) == ("compress_ratios[2]", "4")
    assert (by_id["page-size-multiple"]["setting"], by_id["page-size-multiple"]["found"]) == ("page_size", "60")
    assert all(f["required"] and f["found"] and f["way_out"] for f in found)


def test_plan_faults_alone(folder):
    """One fault is reported as one, and what else can be told still is: the roles."""
    for options, expected in ((["--page-size", "60"], "page-size-multiple"), (["--drafts", "-1"], "limit-drafts"),
                              (["--tier", "none"], "tier-known"), (["--context-parallel", "0"], "context-parallel"),
                              (["--page-stride", "8688"], "page-stride-size"), (["--page-align", "48"], "page-align")):
        found = faults(*options)
        assert [f["id"] for f in found] == [expected], (options, found)
    assert json.loads(Run("plan", FLASH, "--json", "--tier", "none").out)["roles"][2]["first"] == 3
    assert [f["id"] for f in faults(config=variant(folder, candidate_topk_blocks=64))] == ["pool-covers-topk"]
    assert [f["id"] for f in faults(config=variant(folder, candidate_block_size=None))] == ["two-level-keys"]
    found, = faults(config=variant(folder, kv_source_layer_ids=[2, 8, 14]))
    assert found["id"] == "model-roles"
    assert json.loads(Run("plan", variant(folder, kv_source_layer_ids=[2, 8, 14]), "--json").out)["roles"] is None
    # The stride that blocks with main rows give is judged, though nobody set it.
    found, = faults("--page-size", "256", "--main-row-bytes", "584", "--main-align", "576", "--page-align", "512")
    assert (found["id"], found["found"]) == ("page-stride-align", "504576")
    run = Run("plan", FLASH, env={"TAMIS_TIER": "none"})
    assert run.status == 2 and "tier-known" in run.err
    assert plan("--tier", "ref")["tier"] == "ref"


def test_plan_one_level(folder):
    keys = dict.fromkeys(("candidate_source_layer_id", "candidate_topk_blocks", "candidate_block_size"))
    config = variant(folder, **keys)
    report = plan(config=config)
    assert {entry["role"] for entry in report["roles"]} == {"none", "full", "reuse"}
    assert all(c["sparse_rows"] is None and c["dense_rows"] > 0 for c in report["chunks"])
    assert all(s["consumers_dense"] == 0 and s["all_dense"] == s["all_sparse"] for s in report["positions_scored"])
    assert "one level" in good("plan", config).out
    windows = plan(config=variant(folder, compress_ratios=[0] * 43, kv_source_layer_ids=[], index_source_layer_ids=[], **keys))
    assert windows["kv"]["bytes_per_block"] == 0 and windows["kv"]["groups"] == []


def test_plan_nested(folder):
    path = os.path.join(folder, "nested.json")
    json.dump({"model_type": "vl", "text_config": json.load(open(FLASH))}, open(path, "w"))
    assert plan(config=path)["roles"] == plan()["roles"]


def test_plan_bad_json(folder):
    path = os.path.join(folder, "config.json")
    whole = open(FLASH).read()
    for text in ("", "{", "[]", "null", whole[:-4], whole + "}", '{"index_topk": 1, "index_topk": 2}', "\0"):
        open(path, "w").write(text)
        assert bad("plan", path).startswith("tamis: " + path + ": ")
        assert path in bad("plan", path, "--json")
    for text in ("", "{", "[]", '{"a": 1}', '{"numerics": "exact", "numerics": "exact"}'):
        settings = attention(folder, text)
        assert bad("plan", FLASH, "--attention", settings).startswith("tamis: " + settings + ": ")


def test_plan_wrong_types(folder):
    for key, value in (("index_topk", "512"), ("index_topk", 512.0), ("compress_ratios", 2), ("index_n_heads", True),
                       ("kv_source_layer_ids", [2, "8"]), ("index_source_layer_ids", {"2": 8}), ("index_topk", 2 ** 40),
                       ("index_head_dim", None), ("kv_source_layer_ids", [2, 8, 14, 99]), ("num_hidden_layers", 90)):
        assert key in bad("plan", variant(folder, **{key: value})), key
    for key, value in (("indexer_sparse_logits", 1), ("indexer_sparse_logits", "on"), ("indexer_kv_dtype", 4),
                       ("topk_backend", None), ("prefill_budget_mb", "512"), ("prefill_budget_mb", 2 ** 31), ("numerics", ["exact"])):
        assert key in bad("plan", FLASH, "--attention", attention(folder, json.dumps({key: value}))), key


def test_plan_settings(folder):
    given = plan(*SPARSE)
    assert given["settings"] == json.load(open(ATTENTION)) and given["attention"] == ATTENTION
    default = plan()
    assert default["settings"] == {**given["settings"], "indexer_sparse_logits": False} and default["attention"] is None
    auto = plan("--attention", attention(folder, '{"indexer_sparse_logits": "auto", "numerics": "bf16"}'))
    assert auto["settings"]["indexer_sparse_logits"] == "auto" and auto["settings"]["numerics"] == "bf16"
    assert auto["kv"]["alignment"] == 512 and default["kv"]["alignment"] == 1


def test_plan_table(folder):
    text = good("plan", FLASH, *SPARSE, "--memory", "40GiB").out
    lines = text.split("\n")
    assert any(line.split() == ["20", "source", "1", "20", "-"] for line in lines)
    assert any(line.split() == ["3-7", "reuse", "2", "2", "2"] for line in lines)
    assert any(line.split() == ["1,048,576", "1,048,576", "128", "128"] for line in lines)
    assert any(line.split() == ["1,048,576", "4,194,304", "65,536", "98.4%", "6,815,744", "2,686,976", "60.6%"] for line in lines)
    assert "requirements: all" in text and "bytes per block   26,112" in text
    assert max(len(line) for line in lines[3:]) < 120, text


def test_plan_exit_codes(folder):
    for args in ([], [FLASH, FLASH], [os.path.join(folder, "none.json")], [folder], [FLASH, "--attention", folder],
                 [FLASH, "--page-size", "4294967296"], [FLASH, "--page-size", "8x"], [FLASH, "--main-row-bytes", "0"],
                 [FLASH, "--main-align", "512"], [FLASH, "--workspace-limit", "-1"]):
        bad("plan", *args)
    unknown = Run("plan", FLASH, "--no-such")
    assert unknown.status == 2 and unknown.out == "" and unknown.err.startswith("tamis plan: ")
    vast = ["--page-size", "2147483640", "--main-row-bytes", "2147483647"]
    assert "specs" in bad("plan", FLASH, *vast)


def test_plan_ranks(folder):
    """Several ranks are supported on a CPU: the bytes are one rank's, and what it sends is printed."""
    small = ["--max-batched-tokens", "512", "--threads", "1", "--max-requests", "16"]
    one, four, eight = (plan(*SPARSE, *small, "--context-parallel", n) for n in ("1", "4", "8"))
    assert (one["context_parallel"], four["context_parallel"]) == (1, 4)
    assert four["cuda_plan_bytes"] is None and one["cuda_plan_bytes"] > 0
    # A rank more takes a tile of 64 rows more: 2,047 and 512 candidates of 8 bytes, and two counts.
    assert eight["workspace_bytes"] - four["workspace_bytes"] == 4 * 64 * (8 * (2047 + 512) + 8)
    text = good("plan", FLASH, "--context-parallel", "4").out
    assert "context parallel degree 4: supported" in text and "on a GPU instead" not in text
    assert "a rank sends for a row at most 4,100 bytes, at the source 20,480\n" in text
    ids = [f["id"] for f in faults("--context-parallel", "4", "--backend", "cuda")]
    assert ids[0] == "cuda-context-parallel", ids
    assert [f["id"] for f in faults("--context-parallel", "65")] == ["context-parallel"]


def test_plan_device(folder):
    """The bytes on a GPU need none; asking for this machine's GPU is a requirement like the others."""
    assert plan()["device"] is None
    rows, less = plan("--max-batched-tokens", "16384"), plan()
    # The published blocks and where they lie: 2,048 i32 each a row, and 11 words a row beside them; 4 words a request.
    assert rows["cuda_plan_bytes"] - less["cuda_plan_bytes"] == 8192 * 4 * (2 * 2048 + 11), (rows["cuda_plan_bytes"], less["cuda_plan_bytes"])
    assert 0 < less["cuda_plan_bytes"] < 8192 * 4 * (2 * 2048 + 11) + 4 * 4 * 256 + 2 ** 28 + 4096
    assert "on a GPU instead: %s bytes of device memory\n" % format(less["cuda_plan_bytes"], ",") in good("plan", FLASH).out
    assert "required --backend cpu" in bad("plan", FLASH, "--backend", "cuda", "--tier", "ref")
    assert "required cpu or cuda, found 'tpu'" in bad("plan", FLASH, "--backend", "tpu")
    if device(json.loads(good("info", "--json").out)["cuda"]):
        assert plan("--backend", "cuda")["device"] in good("plan", FLASH, "--backend", "cuda").out
        assert [f["id"] for f in faults("--backend", "cuda", "--memory", "1024TiB")] == ["cuda-memory"]
    else:
        assert [(f["id"], f["way_out"]) for f in faults("--backend", "cuda")] == [("cuda-device", "--backend cpu")]
        both = faults("--backend", "cuda", "--page-size", "12")
        assert len(both) > 1 and both[-1]["id"] == "cuda-device", both


main(globals())
