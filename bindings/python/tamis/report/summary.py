# SPDX-License-Identifier: MIT
"""The first parts of the page: what stands out, the layers, and how a result is judged."""

from __future__ import annotations

from .markup import chip, count, duration, esc, plural, score, section, share, table, times
from .meters import FAST_SPAN
from .parts import Data, consumers, present
from .verdict import VERDICTS

_CHIPS = dict(zip(VERDICTS, ("good", "ties", "rounding", "wrong")))
_ROLES = {
    "full": "scores and selects over its whole context",
    "source": "scores everything, publishes the blocks",
    "consumer": "scores inside the published blocks alone",
}


def _tile(value: str, title: str, note: str, kind: str = "") -> str:
    return (
        f'<li class="tile {kind}"><span class="title">{esc(title)}</span>'
        f"<strong>{esc(value)}</strong><span>{esc(note)}</span></li>"
    )


def _recall_tile(data: Data) -> str:
    recalls = [layer["recall"] for layer in consumers(data) if layer["recall"]]
    if not recalls:
        return ""
    mean = sum(r["mean"] for r in recalls) / len(recalls)
    worst = min(r["least"] for r in recalls)
    return _tile(
        share(mean), "Recall of two levels", f"of each layer's own best; worst row {share(worst)}"
    )


def _time_tile(data: Data) -> str:
    took = data["time"]
    if not took:
        return ""
    if took["ratio"] is None:
        entry = took["layers"][0] if took["layers"] else None
        if entry is None:
            return ""
        return _tile(
            duration(entry["dense"]["ns"]),
            "Time of a row",
            f"layer {entry['layer']}, {plural(took['positions'], 'position')}",
        )
    return _tile(
        times(took["ratio"]),
        "Dense over sparse",
        f"time of a consumer's row at {plural(took['positions'], 'position')}",
        "accent",
    )


def _overlap_tile(data: Data) -> str:
    shares = [layer["overlap"][0]["share"] for layer in present(data)]
    means = [s["mean"] for s in shares if s]
    if not means:
        return ""
    text = share(sum(means) / len(means), 0)
    return _tile(text, "Kept by the next token", "of a row's selection, mean of the layers")


def _ties_tile(data: Data) -> str:
    ties = [layer["ties"] for layer in present(data)]
    crossed, cuts = sum(t["rows_crossed"] for t in ties), sum(t["rows_with_a_cut"] for t in ties)
    if not cuts:
        return _tile("no cut", "Ties at the cut", "every row selects all that it sees")
    return _tile(
        count(crossed), "Ties across a cut", f"of {plural(cuts, 'row')} that leave out some"
    )


def _fast_tile(data: Data) -> str:
    scored = sum(layer["scored"] for layer in present(data))
    if not scored:
        return ""
    fast = sum(layer["fast"] for layer in present(data)) / scored
    return _tile(share(fast), "On the fast path", f"spans of at most {FAST_SPAN} in query and key")


def _facts(data: Data) -> str:
    model, rows = data["model"], data["rows"]
    facts = [
        ("Rows", f"{count(rows['in_trace'])} in {plural(data['requests'], 'request')}"),
        ("Longest context", plural(data["widest"], "position")),
        ("Heads", f"{model['index_n_heads']} × {model['index_head_dim']} dims"),
        ("Selected", f"{count(model['index_topk'])} a row"),
    ]
    if data["two_level"]:
        blocks, size = model["candidate_topk_blocks"], model["candidate_block_size"]
        facts.append(("Pool", f"{count(blocks)} blocks × {size} = {count(blocks * size)}"))
    else:
        facts.append(("Levels", "one"))
    if rows["measured"] < rows["in_trace"]:
        facts.append(
            ("Measured", f"{count(rows['measured'])} rows, in {plural(rows['runs'], 'run')}")
        )
    nan = sum(layer["nan"] for layer in present(data))
    if nan:
        facts.append(("NaN scores", f"{count(nan)} (they rank below everything)"))
    return "<dl>" + "".join(f"<div><dt>{k}</dt><dd>{v}</dd></div>" for k, v in facts) + "</dl>"


def _banner(data: Data) -> str:
    result = data["result"]
    if not result:
        return ""
    words = {
        "good": ("Right", "every list holds exactly what it must"),
        "ties": ("Tie order only", "some lists hold other members, but of equal score"),
        "rounding": ("Rounding only", "some lists are what scores rounded another way select"),
        "wrong": ("Wrong", "some lists hold what no rounding and no tie explains"),
    }
    kind = _CHIPS[result["verdict"]]
    title, note = words[kind]
    total = sum(entry["rows"] for entry in result["lists"])
    tally = f"{count(total)} lists"
    if kind != "good":
        bad = sum(entry["verdicts"][result["verdict"]] for entry in result["lists"])
        tally = f'{count(bad)} of {tally}; <a href="#result">the differences</a>'
    return (
        f'<p class="banner {kind}"><strong>{title}</strong> '
        f"<span>{esc(result['file'])}: {note} ({tally}).</span></p>"
    )


def summary(data: Data) -> str:
    tiles = [
        _recall_tile(data),
        _time_tile(data),
        _overlap_tile(data),
        _ties_tile(data),
        _fast_tile(data),
    ]
    rows = []
    for layer in data["layers"]:
        head = [
            f"{layer['layer']}",
            f'<span title="{_ROLES[layer["role"]]}">{layer["role"]}</span>',
        ]
        head += [f"{layer['ratio']}", f"layer {layer['k_owner']}"]
        head.append(f"layer {layer['source']}" if layer["role"] == "consumer" else "–")
        if not layer["present"]:
            rows.append([*head, chip("absent", "absent"), "–"])
            continue
        n = max(data["rows"]["measured"], 1)
        rows.append([*head, count(round(layer["scored"] / n)), count(round(layer["selected"] / n))])
    heads = ["Layer", "Role", "Ratio", "Keys of", "Blocks of", "Scored a row", "Selected a row"]
    return (
        f'<section id="summary" aria-label="Summary">{_banner(data)}<ul class="tiles">'
        f"{''.join(tiles)}</ul>{_facts(data)}"
        f"{table('Layers that select', heads, rows, 'numbers layers')}"
        "</section>"
    )


# ---- the result ----------------------------------------------------------------------------------


def _kinds(entry: Data) -> str:
    return ", ".join(f"{esc(k)} ({count(n)})" for k, n in entry["kinds"].items()) or "–"


def _difference(d: Data, requests: int) -> list[str]:
    a, b = d["expected_score"], d["found_score"]
    where = f"{d['row']}" + (f" <small>request {d['request']}</small>" if requests > 1 else "")
    notes = "".join(f"<br><small>{esc(note)}</small>" for note in d["notes"])
    return [
        where,
        f"{chip(d['kind'], _CHIPS[d['verdict']])}{notes}",
        count(d["token"]),
        "–" if d["rank"] < 0 else count(d["rank"]),
        "–" if d["expected"] < 0 else count(d["expected"]),
        score(a, 9),
        "–" if d["found"] == -1 else count(d["found"]),
        score(b, 9),
        "–" if a is None or b is None else score(a - b, 3),
        f"−{d['missing']} +{d['extra']}" if d["missing"] or d["extra"] else "–",
    ]


def _differences(entry: Data, requests: int, opened: bool) -> str:
    heads = ["Row", "What it is", "Token", "Place", "Expected", "Score", "Found", "Score"]
    heads += ["Difference", "Members"]
    rows = [_difference(d, requests) for d in entry["differences"]]
    bad = entry["rows"] - entry["verdicts"]["good"]
    name = entry["list"].capitalize()
    caption = f"{name}: {count(len(rows))} of {plural(bad, 'different row')}"
    return (
        f"<details{' open' if opened else ''}><summary>{esc(caption)}</summary>"
        f"{table(caption, heads, rows, 'numbers differences')}</details>"
    )


def _list_row(entry: Data) -> list[str]:
    verdicts, followed = entry["verdicts"], ""
    if entry["followed"]:
        followed = f"<br><small>{plural(entry['followed'], 'row')} by its own blocks</small>"
    return [
        esc(entry["list"].capitalize()),
        chip(entry["verdict"], _CHIPS[entry["verdict"]]) + followed,
        *(count(verdicts[v]) for v in VERDICTS),
        share(entry["overlap"], 2),
        _kinds(entry),
    ]


def result(data: Data) -> str:
    judged = data["result"]
    if not judged:
        return ""
    heads = ["List", "Verdict", "Good", "Ties", "Rounding", "Wrong", "Shared members", "Kinds"]
    rows = [_list_row(entry) for entry in judged["lists"]]
    body = table("Lists of the result", heads, rows, "numbers result")
    different = [entry for entry in judged["lists"] if entry["differences"]]
    worst = [entry for entry in different if entry["verdict"] == judged["verdict"]]
    for entry in different:
        body += _differences(entry, data["requests"], entry is worst[0])
    if judged["not_in_the_result"]:
        names = esc(", ".join(judged["not_in_the_result"]))
        body += f'<p class="note">Not in the result: {names}.</p>'
    if different:
        body += (
            '<p class="note"><em>Expected</em> is the best member left out and <em>found</em> the '
            "worst that does not belong; where the list itself is at fault, what stands there.</p>"
        )
    why = (
        "Each list held against what these scores select; <code>tamis check</code> does the same "
        "with scores from an oracle apart from the library."
    )
    return section("result", f"The result: {judged['verdict']}", why, body)
