# SPDX-License-Identifier: MIT
"""`tamis replay`: each script exact and its digest the same however it is run; each planted fault caught; random scripts; bad scripts."""
import glob
import json
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(FOLDER, "..", "command"))
from support import Run, bad, device, good, main, skip  # noqa: E402

PLANTS = ["page_swap", "group_off_by_one", "stale_table", "missing_last_insert", "wrong_slot", "chunk_offset",
          "reused_stamp", "swapped_rows", "dropped_tail", "wrong_ratio"]
WAYS = [["--chunk", "5"], ["--chunk", "33", "--page-size", "32"], ["--page-size", "64", "--threads", "1"], ["--threads", "3"],
        ["--tier", "ref"], ["--sparse", "off"], ["--sparse", "auto", "--chunk", "96"], ["--ranks", "3"], ["--ranks", "2", "--chunk", "17", "--page-size", "32"]]
REFUSED = ("pitfall_09_ratio_of_consumers", "pitfall_09_ratio_unknown", "pitfall_20_decode_parallel",
           "pitfall_20_ranks_that_are_not_supported")


def script(name):
    return os.path.join(FOLDER, name + ".script")


def replay(*args):
    """The report of a replay in which everything was exact."""
    report = json.loads(good("replay", *args, "--json").out)
    assert report["verdict"] in ("exact", "refused as required") and report["mismatch"] is None, report
    return report


def check_script(name, ways=WAYS):
    """Exact, and of one digest, by every way to run it."""
    first = replay(script(name), "--threads", "2")
    assert first["rows"] > 100 and first["judged"] >= first["steps"], first
    for way in ways:
        again = replay(script(name), *way, "--rows", "1")
        assert again["digest"] == first["digest"], (name, way, again, first)
    return first


def names():
    return sorted(os.path.basename(path)[:-len(".script")] for path in glob.glob(os.path.join(FOLDER, "*.script")))


def test_replay_every_script_has_a_test(folder):
    """The list in CMakeLists.txt is that of the scripts, and each says what it guards."""
    listed = re.findall(r"^ +([a-z_0-9]+)$", open(os.path.join(FOLDER, "CMakeLists.txt")).read(), re.M)
    assert sorted(listed) == names(), set(listed) ^ set(names())
    for name in names():
        lines = open(script(name)).read().split("\n")
        assert lines[1].startswith("# ") and len(lines[1]) > 40, name


def test_replay_script(folder):
    name = sys.argv[3]
    if name.startswith("full_"):
        first = replay(script(name), "--rows", "2")
        again = replay(script(name), "--rows", "1", "--page-size", "256", "--chunk", "1000", "--sparse", "auto")
        assert again["digest"] == first["digest"], (again, first)
    elif name in REFUSED:
        report = replay(script(name))
        assert report["verdict"] == "refused as required" and report["steps"] == 0, report
    else:
        # Larger pages need more of a pool of 640 than there is.
        check_script(name, [way for way in WAYS if "--page-size" not in way or name != "pages_change_hands"])


def test_replay_alone_is_in_a_batch(folder):
    """Pitfall 25: the same histories alone and in a batch."""
    alone, batch = replay(script("pitfall_25_alone")), replay(script("pitfall_25_batch"))
    assert alone["digest"] == batch["digest"] and alone["rows"] == batch["rows"] and alone["steps"] > 3 * batch["steps"]


def wrong(*args):
    """One line on stderr and status 1; the line."""
    run = Run("replay", *args)
    assert run.status == 1 and run.err.count("\n") == 1 and run.err.startswith("tamis: "), (args, run.status, run.out, run.err)
    assert run.out.startswith("replay: WRONG, "), run.out
    report = json.loads(Run("replay", *args, "--json").out)
    assert report["verdict"] == "WRONG" and report["mismatch"] in run.err, report
    return run.err


def test_replay_plants(folder):
    """Without a fault the script is exact; with each it is caught, by the judge or by a refusal."""
    path = script("faults")
    assert replay(path)["steps"] == 10
    for name in PLANTS:
        line = wrong(path, "--plant", name)
        if name == "reused_stamp":
            assert re.match(r"tamis: .*faults.script:\d+: step \d+: refused: .*published blocks", line), line
        else:
            assert re.match(r"tamis: .*faults.script:\d+: step \d+: request [AB], token \d+, layer \d: [a-z ]+ \d+: "
                            r"expected -?\d+, found -?\d+$", line.rstrip("\n")), line
    assert "--plant" in bad("replay", path, "--plant", "none")


def test_replay_plants_random(folder):
    """Each fault is caught in random scripts, too, and by a group of ranks."""
    for name in PLANTS:
        for seed in (11, 12):
            wrong("--generate", seed, "--steps", "60", "--plant", name)
        wrong(script("faults"), "--ranks", "3", "--plant", name)


def test_replay_random(folder):
    """A few hundred random steps; `make replay` runs 10,000 under ASan."""
    for seed in range(1, 10):
        first = replay("--generate", seed, "--steps", "60")
        assert first["steps"] >= 60 and first["rows"] > 100
        way = WAYS[seed % len(WAYS)]
        assert replay("--generate", seed, "--steps", "60", *way, "--rows", "1")["digest"] == first["digest"], (seed, way)
    for seed in (79, 555, 826):  # would begin with a step older than the first
        replay("--generate", seed, "--steps", "10")


def test_replay_generated_is_a_script(folder):
    """What --print shows is what --generate runs, and the same every time."""
    text = good("replay", "--generate", "5", "--steps", "40", "--print").out
    assert text == good("replay", "--generate", "5", "--steps", "40", "--print").out
    assert text != good("replay", "--generate", "6", "--steps", "40", "--print").out
    path = os.path.join(folder, "made.script")
    open(path, "w").write(text)
    assert replay(path)["digest"] == replay("--generate", "5", "--steps", "40")["digest"]
    assert good("replay", path, "--digest").out.split("\n")[0] == "digest: " + replay(path)["digest"]


def test_replay_judge_sees_a_sample(folder):
    whole, part = replay(script("faults")), replay(script("faults"), "--rows", "2")
    assert part["judged"] < whole["judged"] and part["digest"] == whole["digest"]


def test_replay_trace(folder):
    """Rows of a trace's tensors instead of made ones; other values, so another digest."""
    trace = os.path.join(folder, "t.st")
    good("gen", trace, "--positions", "400", "--rows", "40", "--heads", "8", "--dim", "64", "--topk", "24", "--blocks", "16",
         "--layers", "2")
    path = os.path.join(folder, "t.script")
    open(path, "w").write("model heads=8 dim=64 topk=24 blocks=16 block=8 ratios=0,2,1,1 owners=1,2 index=1,2,3 source=2\n"
                          "limits tokens=64\narrive A prompt=200 seed=3\nprefill A\nstep A:1+2\naccept A 1\nstep A:1\n")
    made, given = replay(path), replay(path, trace)
    assert made["digest"] != given["digest"] and made["rows"] == given["rows"]
    assert replay(path, trace, "--chunk", "7", "--tier", "ref")["digest"] == given["digest"]
    assert "heads=8 dim=64" in bad("replay", script("faults"), trace)
    # One row that sees nothing: a good trace, but without a key to take.
    def write(tensors):
        header, body = {"__metadata__": {"format": "tamis-trace/1", "model": json.dumps({
            "compress_ratios": [2], "kv_source_layer_ids": [0], "index_source_layer_ids": [0], "index_n_heads": 8, "index_head_dim": 64,
            "index_topk": 24})}}, b""
        for name, (kind, shape, data) in tensors.items():
            header[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
            body += data
        text = json.dumps(header).encode()
        open(trace, "wb").write(len(text).to_bytes(8, "little") + text + body)

    write({"position": ("I64", [1], bytes(8)), "q.0": ("BF16", [1, 8, 64], bytes(1024)), "w.0": ("BF16", [1, 8], bytes(16)),
           "k.0": ("BF16", [0, 64], b"")})
    good("run", trace)
    assert "rows and keys, found one without keys" in bad("replay", path, trace)


GOOD_HEAD = "model ratios=1,1 owners=0 index=0,1 source=0\n"


def test_replay_bad_scripts(folder):
    """One line: file, line, what was required, what was found."""
    path = os.path.join(folder, "bad.script")
    for text, line, words in (
            ("", 0, "a model line"), ("model heads=x\n", 1, "heads: required 0 .. 1048576, found 'x'"),
            ("model head=4\n", 1, "heads="), ("model dim=96\n", 1, "64 or 128"), (GOOD_HEAD * 2, 2, "one such line"),
            (GOOD_HEAD + "walk A\n", 2, "found 'walk'"), (GOOD_HEAD + "arrive A seed=1\n", 2, "required prompt"),
            (GOOD_HEAD + "arrive A prompt=4 seed=1 seed=2\n", 2, "docs/replay.md"),
            (GOOD_HEAD + "arrive A prompt=0 seed=1\n", 2, "prompt: required 1 .. 2147483647, found '0'"),
            (GOOD_HEAD + "arrive A prompt=4 seed=1\narrive A prompt=4 seed=1\n", 3, "a live one"),
            (GOOD_HEAD + "arrive A prompt=4 seed=1\ncache seed=1\n", 3, "before anything happens"),
            (GOOD_HEAD + "step A\n", 2, "NAME:TOKENS"), (GOOD_HEAD + "step A:1 A:2\n", 2, "A again"),
            (GOOD_HEAD + "step A:1\n", 2, "none of that name"), (GOOD_HEAD + "prefill A\n", 2, "none of that name"),
            (GOOD_HEAD + "arrive A prompt=9 seed=1\nprefill A\nstep A:1+9\n", 4, "drafts within limits"),
            (GOOD_HEAD + "arrive A prompt=9 seed=1\nstep A:3+1\n", 3, "no drafts while tokens wait"),
            (GOOD_HEAD + "arrive A prompt=9 seed=1\nprefill A\nstep A:1+1\nstep A:1\n", 5, "accept for its drafts"),
            (GOOD_HEAD + "arrive A prompt=9 seed=1\nprefill A\nstep A:1+1\naccept A 2\n", 5, "2 of 1"),
            (GOOD_HEAD + "arrive A prompt=9 seed=1\nprefill A\nprefill A\n", 4, "0 left"),
            (GOOD_HEAD + "arrive A prompt=9 seed=1\nresume A\n", 3, "a preempted request"),
            (GOOD_HEAD + "arrive A prompt=9 seed=1\npreempt A\nrestore A\n", 4, "that was saved"),
            (GOOD_HEAD + "arrive A prompt=9 seed=1\nshare A from B tokens=2\n", 3, "in its cache"),
            (GOOD_HEAD + "arrive A prompt=9 seed=1\naccept A 0\n", 3, "drafts in flight, and no more than them, found 0 of 0"),
            (GOOD_HEAD + "arrive A prompt=9 seed=1\nfinish A\nfinish A\n", 4, "a live request, found none that lives"),
            (GOOD_HEAD + "arrive A prompt=9 seed=1\nprefill A\nsave A\npreempt A\nresume A\narrive B prompt=9 seed=2\n"
             "prefill B\nshare A from B tokens=3\n", 9, "found one with pages, saved"),
            (GOOD_HEAD + "arrive A prompt=9 seed=1\nprefill A\nagain 3\n", 4, "behind it, found the end"),
            (GOOD_HEAD + "arrive A prompt=9 seed=1\nprefill A\nwrong layout\nfinish A\n", 4, "behind it, found finish"),
            (GOOD_HEAD + "arrive A prompt=9 seed=1\nwrong old_step\nprefill A\n", 3, "a step before it"),
            ("model ratios=1,1 owners=0 index=0,1\narrive A prompt=9 seed=1\nwrong layout\nprefill A\n", 3, "a source and a consumer layer"),
            ("model ratios=1 owners=0 index=0 context_parallel=2\n", 1, "number of --ranks, found 2"),
            (GOOD_HEAD + "wrong way\n", 2, "consumer_first"), (GOOD_HEAD + "again 0\n", 2, "1 .. 1000"),
            (GOOD_HEAD + "cache positions=16\narrive A prompt=90 seed=1\nprefill A\n", 4, "a free page"),
            (GOOD_HEAD + "limits context=50\narrive A prompt=90 seed=1\n", 3, "limit of context"),
            (GOOD_HEAD + "limits tokens=8\narrive A prompt=90 seed=1\nstep A:20\n", 4, "in limits"),
            (GOOD_HEAD + "refused ratio\nstep A:1\n", 3, "creation fails"), (GOOD_HEAD + "x" * 1100 + "\n", 2, "1023 bytes"),
            ("model ratios=1,1 owners=0 index=0,9 source=0\n", 0, "model-roles"), ("model ratios=1 owners=0 index=0\ncache page_size=12\n", 0, "page-size-multiple")):
        open(path, "w").write(text)
        message = bad("replay", path)
        assert message.startswith("tamis: %s:%s" % (path, "%d: " % line if line else "")) and words in message, (text, message)
    open(path, "wb").write(b"model\0\n")
    assert "a byte 0" in bad("replay", path)
    open(path, "w").write(GOOD_HEAD + "refused ratio\n")
    assert Run("replay", path).status == 1
    assert "256 MiB" in bad("replay", "/dev/zero")
    for args in ([], [os.path.join(folder, "none")], [folder], [path, path, path], ["--generate", "x"], ["--generate", "1", path],
                 [path, "--steps", "4"], [path, "--print"], [path, "--graph"], [path, "--backend", "cuda", "--tier", "ref"],
                 [path, "--page-size", "4"], [path, "--ranks", "65"], [path, "--ranks", "2", "--backend", "cuda"], [path, "--sparse", "maybe"], [script("faults"), path]):
        bad("replay", *args)


def test_replay_gpu(folder):
    """A few hundred steps on the GPU, with and without graphs: the CPU's digests."""
    if not device(json.loads(good("info", "--json").out)["cuda"]):
        skip("no GPU that the kernels run on")
    ways = (["--backend", "cuda"], ["--backend", "cuda", "--graph"], ["--backend", "cuda", "--sparse", "off", "--chunk", "16"])

    def same(what, *judged):
        first = replay(*what, *judged)
        for way in ways:
            assert replay(*what, *way, *judged)["digest"] == first["digest"], (what, way)

    jobs = [([script(name)], *(("--rows", "2") if name.startswith("full_") else ())) for name in names() if name not in REFUSED]
    jobs += [(["--generate", seed, "--steps", "60"],) for seed in range(1, 9)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda job: same(*job), jobs))
        list(pool.map(lambda name: wrong(script("faults"), "--backend", "cuda", "--plant", name), PLANTS))
        list(pool.map(lambda name: wrong(script("faults"), "--backend", "cuda", "--graph", "--plant", name), PLANTS))


main(globals())
