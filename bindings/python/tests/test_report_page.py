# SPDX-License-Identifier: MIT
"""The report's page: well-formed, loads nothing, small, and sound in a browser; and its command."""

import html.parser
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tamis import report, safetensors, traces
from tamis.report import page

BUNDLED = Path(__file__).resolve().parents[3] / "data" / "trace_a.safetensors"
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
VOID = {"meta", "link", "br", "img", "path", "rect"}


@pytest.fixture(scope="module")
def bundled(tmp_path_factory):
    """The bundled trace's page, with a result that is damaged in two rows."""
    trace = traces.read(BUNDLED)
    found = report.build(str(BUNDLED), rows=64, timed=False)
    blank = np.full((trace.rows, trace.model.index_topk), -1, np.int32)
    path = tmp_path_factory.mktemp("report") / "<b>\"result'.safetensors"
    traces.Result({9: blank}).save(path)
    data = report.build(str(BUNDLED), str(path), timed=True)
    return page.render(data), data, found


class Checker(html.parser.HTMLParser):
    """Tags that close in the order in which they open, and every address that is loaded."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.loads, self.ids, self.images = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.loads += [attrs[k] for k in ("src", "href", "data", "srcset") if k in attrs]
        self.ids += [attrs["id"]] if "id" in attrs else []
        if tag == "img":
            self.images.append(attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()


def test_well_formed(bundled):
    checked = Checker(bundled[0])
    assert not checked.open
    assert len(checked.ids) == len(set(checked.ids))
    assert all(image.get("alt") for image in checked.images)
    for link in checked.loads:
        if link.startswith("#"):
            assert link[1:] in checked.ids


def test_loads_nothing(bundled):
    text = bundled[0]
    assert all(x.startswith(("#", "data:")) for x in Checker(text).loads)
    assert not re.search(
        r"https?://|//[a-z]|@import|url\(|fetch\(|XMLHttp|import\(", _no_data(text)
    )


def _no_data(text):
    return re.sub(r'"data:image/png;base64,[^"]*"|/\*.*?\*/', "", text, flags=re.S)


def test_small(bundled):
    assert 100_000 < len(bundled[0].encode()) < 3_000_000


def test_names_are_escaped(bundled):
    text = bundled[0]
    assert "<b>" not in text.replace("<b>9", "") or "&lt;b&gt;&quot;result&#x27;" in text
    assert "&lt;b&gt;&quot;result&#x27;.safetensors" in text
    raw = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)[1]
    assert "<" not in raw and json.loads(raw)["result"]["file"] == "<b>\"result'.safetensors"


PUBLISHED = {6: 0.9748, 7: 0.9805, 8: 0.9795, 9: 0.9645}


def test_published_figures(bundled):
    """What data/README.md and docs/numerics.md say of the trace, measured apart from this."""
    data = bundled[1]
    recalls = {x["layer"]: x["recall"]["mean"] for x in data["layers"] if x["recall"]}
    assert {k: round(v, 4) for k, v in recalls.items()} == {
        6: 0.9748,
        7: 0.9805,
        8: 0.9795,
        9: 0.9645,
    }
    spans = np.array(data["layers"][0]["k_spans"]) / 131072
    assert np.round(spans, 3).tolist() == [0.063, 0.558, 0.372, 0.006, 0, 0]
    assert all(x["ties"]["equal"]["most"] == 1 for x in data["layers"])
    assert all(15 <= x["ties"]["equal_as_bf16"]["mean"] <= 19 for x in data["layers"])


def test_sampling_measures_the_same(bundled):
    """Fewer rows give the same numbers for those rows."""
    _, full, some = bundled
    assert len(some["rows"]["row"]) == 64 and len(full["rows"]["row"]) == 232
    for a, b in zip(full["layers"][1:], some["layers"][1:]):
        by_row = dict(zip(full["rows"]["row"], a["recall_by_row"]))
        assert [by_row[row] for row in some["rows"]["row"]] == b["recall_by_row"]


def _luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


@pytest.mark.parametrize("theme", [0, 1])
def test_contrast(bundled, theme):
    """Text against what it stands on, by the formula of WCAG 2: at least 4.5 to 1."""
    style = re.search(r"<style>(.*?)</style>", bundled[0], re.S)[1]
    blocks = re.findall(r"color-scheme: (?:light|dark);(.*?)\}", style, re.S)
    colour = dict(re.findall(r"--([\w-]+): (#\w{6})", blocks[theme]))
    pairs = [(text, on) for text in ("text", "soft", "accent") for on in ("card", "page")]
    pairs += [(kind, f"{kind}-bg") for kind in ("good", "ties", "rounding", "wrong")]
    pairs += [("text", f"{kind}-bg") for kind in ("good", "ties", "rounding", "wrong")]
    pairs += [("soft", "faint"), ("card", "text")]
    for text, on in pairs:
        low, high = sorted(_luminance(colour[x]) for x in (text, on))
        assert (high + 0.05) / (low + 0.05) >= 4.5, (text, on)


# ---- a browser --------------------------------------------------------------------------------

PROBE = """
const frame = document.getElementById("frame");
frame.addEventListener("load", () => setTimeout(() => {
  const doc = frame.contentDocument, win = frame.contentWindow, out = {};
  out.errors = win.errors;
  out.overflow = doc.documentElement.scrollWidth - win.innerWidth;
  out.canvases = doc.querySelectorAll("canvas").length;
  out.images = doc.querySelectorAll("img").length;
  const colours = () => {
    const style = win.getComputedStyle(doc.body);
    const c = doc.querySelector("canvas"), copy = doc.createElement("canvas");
    copy.width = c.width;
    copy.height = c.height;
    copy.getContext("2d").drawImage(c, 0, 0);
    const p = copy.getContext("2d").getImageData(0, 0, c.width, c.height).data;
    const seen = new Set();
    for (let i = 0; i < p.length; i += 4) seen.add(p.slice(i, i + 3).join());
    return { page: style.backgroundColor, text: style.color, canvas: seen.size };
  };
  out.before = colours();
  doc.getElementById("theme").click();
  out.after = colours();
  const box = doc.querySelector("canvas").getBoundingClientRect();
  doc.querySelector("canvas").dispatchEvent(new win.PointerEvent("pointermove",
    { bubbles: true, clientX: box.right - 0.1, clientY: box.bottom - 0.1 }));
  out.tip = doc.querySelector(".tip").innerText;
  document.title = JSON.stringify(out);
}, 600));
frame.srcdoc = document.getElementById("page").content;
"""


def script_text(text):
    """A string inside a script element."""
    return json.dumps(text).replace("<", "\\u003c")


@pytest.mark.skipif(
    not CHROMIUM, reason="SKIPPED: chromium is not installed, so that no browser rendered the page"
)
@pytest.mark.parametrize("width", [390, 1400])
def test_in_a_browser(bundled, tmp_path, width):
    """No error, nothing wider than the screen, heat maps painted, the other theme at a click."""
    trap = "<script>window.errors=[];window.onerror=(m)=>{window.errors.push(m)}</script>"
    inner = bundled[0].replace("<head>", "<head>" + trap, 1)
    outer = (
        '<!doctype html><title>none</title><meta id="page"><script>'
        f'document.getElementById("page").content={script_text(inner)};'
        f'</script><iframe id="frame" style="width:{width}px;height:3000px;border:0"></iframe>'
        f"<script>{PROBE}</script>"
    )
    file = tmp_path / "probe.html"
    file.write_text(outer, encoding="utf-8")
    arguments = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    arguments += ["--window-size=1500,900", "--virtual-time-budget=9000", "--dump-dom"]
    plain = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}  # of a sanitized build
    ran = subprocess.run(
        [CHROMIUM, *arguments, f"--user-data-dir={tmp_path}/profile", file.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env=plain,
    )
    assert "CONSOLE" not in ran.stderr
    seen = json.loads(html.unescape(re.search(r"<title>(.*?)</title>", ran.stdout, re.S)[1]))
    assert seen["errors"] == [] and seen["overflow"] <= 0
    assert (seen["canvases"], seen["images"]) == (6, 0)
    for theme in ("before", "after"):
        assert seen[theme]["canvas"] > 8
    assert seen["before"]["page"] != seen["after"]["page"]
    assert seen["before"]["text"] != seen["after"]["text"]
    assert re.match(r"row 231, token 131,071\n\d+ in positions 130,816–131,071", seen["tip"])


# ---- the command ------------------------------------------------------------------------------


def run(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "tamis.report", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        **options,
    )


def tiny(path, rows=2):
    model = {
        "compress_ratios": [1],
        "kv_source_layer_ids": [0],
        "index_source_layer_ids": [0],
        "index_n_heads": 4,
        "index_head_dim": 64,
        "index_topk": 4,
    }
    rng = np.random.default_rng(0)
    tensors = {
        "position": np.arange(rows, dtype=np.int64),
        "k.0": rng.standard_normal((rows, 64)).astype(np.float32),
        "q.0": rng.standard_normal((rows, 4, 64)).astype(np.float32),
        "w.0": rng.standard_normal((rows, 4)).astype(np.float32),
    }
    traces.write(path, model, tensors)
    return path


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_tiny_traces(tmp_path, rows):
    trace = tiny(tmp_path / "t.safetensors", rows)
    ran = run(trace, "-o", tmp_path / "page.html")
    assert (ran.returncode, ran.stderr) == (0, "")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert not Checker(text).open
    assert not list(tmp_path.glob(".tamis*"))
    assert (os.stat(tmp_path / "page.html").st_mode & 0o777) == (0o666 & ~_umask())


def _umask():
    now = os.umask(0)
    os.umask(now)
    return now


def test_bad_input_leaves_the_old_page(tmp_path):
    trace, out = tiny(tmp_path / "t.safetensors"), tmp_path / "page.html"
    out.write_text("old")
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(trace.read_bytes()[:-1])
    other = tmp_path / "other.safetensors"
    safetensors.write(other, {"selected.0": np.zeros((3, 4), np.int32)}, {})
    for arguments, words in (
        ([tmp_path / "none"], [str(tmp_path / "none"), "No such file"]),
        ([cut], [str(cut), "file"]),
        ([trace, other], [str(other), "selected.0", "[2, 4]", "[3, 4]"]),
        ([trace, "--tier", "avx9"], ["avx9"]),
    ):
        ran = run(*arguments, "-o", out)
        assert ran.returncode == 2 and ran.stdout == ""
        assert ran.stderr.count("\n") == 1 and "Traceback" not in ran.stderr
        assert all(word in ran.stderr for word in words), ran.stderr
        assert out.read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
        ["t.safetensors", "cut.safetensors", "other.safetensors", "page.html"]
    )


def test_never_over_its_input(tmp_path):
    trace = tiny(tmp_path / "t.safetensors")
    before = trace.read_bytes()
    ran = run(trace, "-o", trace)
    assert ran.returncode == 2 and "would replace" in ran.stderr
    assert trace.read_bytes() == before


def test_json(tmp_path):
    """Numbers alone, and no page that nobody asked for."""
    trace = tiny(tmp_path / "t.safetensors")
    ran = run(trace, "--json", cwd=tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    data = json.loads(ran.stdout)
    assert data["format"] == "tamis-report/1" and data["layers"][0]["selected"] == 3
    assert [p.name for p in tmp_path.iterdir()] == ["t.safetensors"]


@pytest.mark.parametrize("words", [(), ("a", "b", "c"), ("t", "--rows", "0"), ("t", "--no-such")])
def test_usage_is_one_line(tmp_path, words):
    ran = run(*words, cwd=tmp_path)
    assert ran.returncode == 2 and ran.stderr.count("\n") == 1
    assert ran.stderr.startswith("tamis report: ") and not list(tmp_path.iterdir())


def test_no_folder_for_the_page(tmp_path):
    trace = tiny(tmp_path / "t.safetensors")
    for out in (tmp_path / "none" / "page.html", tmp_path):
        ran = run(trace, "-o", out)
        assert ran.returncode == 2 and ran.stderr.count("\n") == 1, ran.stderr
        assert f"{out}: required" in ran.stderr and "found" in ran.stderr


def test_output_that_nobody_reads_is_no_traceback(tmp_path):
    trace = tiny(tmp_path / "t.safetensors")
    words = [sys.executable, "-m", "tamis.report", str(trace), "--json"]
    there, here = os.pipe()
    os.close(there)
    with os.fdopen(here, "w") as pipe:
        ran = subprocess.run(words, stdout=pipe, stderr=subprocess.PIPE, text=True)
    assert (ran.returncode, ran.stderr) == (2, "")
    with open("/dev/full", "w") as full:
        ran = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True)
    assert ran.returncode == 2 and ran.stderr == "tamis report: output: No space left on device\n"


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    def full(_handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(report.os, "fsync", full)
    (tmp_path / "page.html").write_text("old")
    with pytest.raises(OSError):
        report.write(str(tmp_path / "page.html"), "new")
    assert (tmp_path / "page.html").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]
