# SPDX-License-Identifier: MIT
"""The parts of the page, each made from the measured dictionary alone.

So every number that a reader sees is also in the page's JSON, and the tests hold that one to numpy.
"""

from __future__ import annotations

from typing import Any, Optional

from . import figures
from .markup import bar, chip, count, duration, esc, plural, score, section, share, table, times
from .meters import DISTANCES, FAST_SPAN, INTEGER_SPAN, SPAN_NAMES
from .verdict import VERDICTS

Data = dict[str, Any]

_CHIPS = dict(zip(VERDICTS, ("good", "ties", "rounding", "wrong")))
_ROLES = {
    "full": "scores and selects over its whole context",
    "source": "scores everything, publishes the blocks",
    "consumer": "scores inside the published blocks alone",
}


def present(data: Data) -> list[Data]:
    return [layer for layer in data["layers"] if layer["present"]]


def consumers(data: Data) -> list[Data]:
    return [layer for layer in present(data) if layer["role"] == "consumer"]


def name_of(layer: Data) -> str:
    return f"Layer {layer['layer']}"


# ---- the summary ---------------------------------------------------------------------------------


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
    return _tile(count(crossed), "Ties across a cut", f"of {plural(cuts, 'row')} that leave out some")


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
        "ties": ("Tie order only", "other members, but of equal score"),
        "rounding": ("Rounding only", "what scores rounded another way select"),
        "wrong": ("Wrong", "lists hold what no rounding and no tie explains"),
    }
    kind = _CHIPS[result["verdict"]]
    title, note = words[kind]
    lists = len(result["lists"])
    more = "" if kind == "good" else ' <a href="#result">The differences</a>'
    return (
        f'<p class="banner {kind}"><strong>{title}</strong> <span>{esc(result["file"])}: {note} '
        f"({plural(lists, 'list')} × {plural(data['rows']['measured'], 'row')}).{more}</span></p>"
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
        head = [f"{layer['layer']}", f'<span title="{_ROLES[layer["role"]]}">{layer["role"]}</span>']
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
        f"{''.join(tiles)}</ul>{_facts(data)}{table('Layers that select', heads, rows, 'numbers layers')}"
        "</section>"
    )


# ---- the result ----------------------------------------------------------------------------------


def _kinds(entry: Data) -> str:
    return ", ".join(f"{esc(k)} ({count(n)})" for k, n in entry["kinds"].items()) or "–"


def _differences(entry: Data, requests: int) -> str:
    heads = ["Row", "Token", "Place", "Expected", "Score", "Found", "Score", "Difference", "Members"]
    rows = []
    for d in entry["differences"]:
        a, b = d["expected_score"], d["found_score"]
        where = f"{d['row']}" + (f" <small>request {d['request']}</small>" if requests > 1 else "")
        notes = "".join(f"<br><small>{esc(note)}</small>" for note in d["notes"])
        rows.append(
            [
                where,
                count(d["token"]),
                "–" if d["rank"] < 0 else count(d["rank"]),
                "–" if d["expected"] < 0 else count(d["expected"]),
                score(a, 9),
                "–" if d["found"] == -1 else count(d["found"]),
                score(b, 9),
                "–" if a is None or b is None else score(a - b, 3),
                f"−{d['missing']} +{d['extra']}",
                f"{chip(d['kind'], _CHIPS[d['verdict']])}{notes}",
            ]
        )
    bad = entry["rows"] - entry["verdicts"]["good"]
    caption = f"{entry['list']}: {plural(len(rows), 'row')} of {count(bad)} that differ"
    return (
        f"<details{' open' if entry['open'] else ''}><summary>{esc(caption)}</summary>"
        f"{table(caption, [*heads, 'What it is'], rows, 'numbers differences')}</details>"
    )


def result(data: Data) -> str:
    judged = data["result"]
    if not judged:
        return ""
    rows = []
    for entry in judged["lists"]:
        verdicts = entry["verdicts"]
        followed = f", {plural(entry['followed'], 'row')} by its own blocks" * bool(entry["followed"])
        rows.append(
            [
                esc(entry["list"]),
                chip(entry["verdict"], _CHIPS[entry["verdict"]]) + followed,
                *(count(verdicts[v]) for v in VERDICTS),
                share(entry["overlap"], 2),
                _kinds(entry),
            ]
        )
    heads = ["List", "Verdict", "Good", "Ties", "Rounding", "Wrong", "Shared members", "Kinds"]
    body = table("Lists of the result", heads, rows, "numbers result")
    first = True
    for entry in judged["lists"]:
        if entry["differences"]:
            body += _differences(entry | {"open": first}, data["requests"])
            first = False
    if judged["not_in_the_result"]:
        body += f'<p class="note">Not in the result: {esc(", ".join(judged["not_in_the_result"]))}.</p>'
    if any(entry["verdicts"]["wrong"] for entry in judged["lists"]):
        body += (
            f'<p class="note">Whether dg_bf16 or ref_bf16 rounding explains a list was tried for its '
            f"first {judged['slow_rows']} rows that differ. <em>Expected</em> is the best member left "
            f"out, <em>found</em> the worst that does not belong; where the list itself is at fault, "
            f"the entry there.</p>"
        )
    why = (
        "Each list held against what these scores select; <code>tamis check</code> does the same with "
        "scores from an oracle apart from the library."
    )
    return section("result", f"The result: {judged['verdict']}", why, body)


# ---- time ----------------------------------------------------------------------------------------


def _machine(took: Data) -> str:
    return (
        f"{esc(took['processor'])}, {esc(took['tier'])} tier, {plural(took['threads'], 'thread')}; medians of {took['turns']} "
        f"turns over {plural(took['rows'], 'row')} of {plural(took['positions'], 'position')}, dense and "
        f"sparse in turns; measured when this page was made"
    )


def time(data: Data) -> str:
    took = data["time"]
    if not took:
        return ""
    most = max(e["dense"]["ns"] for e in took["layers"])
    rows = []
    for e in took["layers"]:
        dense, sparse = e["dense"], e.get("sparse")
        spread = max((way["high"] - way["low"]) / way["ns"] for way in (dense, sparse) if way)
        rows.append(
            [
                f"Layer {e['layer']} <small>{e['role']}</small>",
                duration(dense["ns"]),
                duration(sparse["ns"]) if sparse else "–",
                f"<strong>{times(dense['ns'] / sparse['ns'])}</strong>" if sparse else "–",
                figures.against(dense["ns"], sparse["ns"] if sparse else 0, most),
                f"±{share(spread / 2, 0)}",
            ]
        )
    body = ""
    if took["ratio"] is not None:
        body = f'<p class="ratio"><strong>{times(took["ratio"])}</strong> {_ratio_note(took)}</p>'
    heads = ["Layer", "Dense", "Sparse", "Ratio", '<span class="key dense">dense</span> <span class="key sparse">sparse</span>', "Spread"]
    body += table("Time of one row", heads, rows, "numbers times")
    body += f'<p class="note">{_machine(took)}.</p>'
    why = "Sparse scores the published blocks alone; dense scores every position and masks, for the same selection."
    return section("time", "Time of a row, dense and sparse", why, body)


def _ratio_note(took: Data) -> str:
    if took["positions"] <= took["pool"]:
        return (
            f"these contexts fit the pool of {count(took['pool'])} positions, so both ways score the "
            f"same: the levels pay from there on"
        )
    few = took["positions"] / took["pool"]
    return f"faster than dense; the pool of {count(took['pool'])} positions is {times(few)} smaller than the context"


# ---- what is selected ----------------------------------------------------------------------------


def recall(data: Data) -> str:
    layers = [layer for layer in consumers(data) if layer["recall"]]
    if not layers:
        return ""
    worst = min(layer["recall"]["least"] for layer in layers)
    floor = max(0.0, min(0.9, int(worst * 10 - 1e-9) / 10))
    cards, rows = "", []
    for layer in layers:
        r = layer["recall"]
        rows.append(
            [
                name_of(layer),
                *(share(r[key], 2) for key in ("mean", "median", "p05", "least")),
                f"row {count(r['worst_row'])}",
            ]
        )
        cards += (
            f"<figure><figcaption>{name_of(layer)} <b>{share(r['mean'], 2)}</b></figcaption>"
            f"{figures.recall(layer['recall_by_row'], floor, name_of(layer))}</figure>"
        )
    topk = data["model"]["index_topk"]
    why = (
        f"The share of a layer's own best {count(topk)} positions of the whole context that its "
        f"selection inside the published blocks holds."
    )
    heads = ["Layer", "Mean", "Median", "Worst 5%", "Worst", "Where"]
    body = table("Recall over rows", heads, rows, "numbers") + f'<div class="grid short">{cards}</div>'
    return section("recall", "Recall of two levels", why, body)


def heat(data: Data) -> str:
    cards = ""
    for layer in present(data):
        where, total = layer["where"], max(layer["selected"], 1)
        note = (
            f"{share(where['newest'] / total)} of the selection is among the newest 1,024 positions, "
            f"{share(where['first'] / total)} among the first 128"
        )
        cards += _heat_card(layer["heat"], name_of(layer), layer["role"], note)
    if data["blocks"]:
        b = data["blocks"]
        runs = b["runs"]
        note = "No row publishes any"
        if runs:
            note = f"A row's blocks are {count(round(runs['mean']))} runs of neighbours on average"
        cards += _heat_card(b["heat"], "Blocks", "published", note)
    why = "One line a row, from the start of its context on the left; darker cells hold more of the row’s selection, and what a row cannot see is hatched."
    return section("where", "What is selected", why, f'<div class="grid">{cards}</div>')


def _heat_card(heat_data: Data, name: str, role: str, note: str) -> str:
    label = f"{name}: members by row and place. {note}"
    what = "block" if name == "Blocks" else "position"
    return (
        f"<figure><figcaption>{esc(name)} <small>{esc(role)}</small></figcaption>"
        f"{figures.heat(heat_data['png'], heat_data, name, label)}"
        f'<p class="legend"><span class="ramp" aria-hidden="true"></span> 0 – '
        f"{count(round(heat_data['most'], 1))} of the {plural(heat_data['bin'], what)} of a cell. {esc(note)}.</p></figure>"
    )


def scores(data: Data) -> str:
    cards = ""
    for layer in present(data):
        s = layer["scores"]
        if s is None:
            continue
        pooled = layer["role"] == "consumer"
        cut = s["threshold"]
        note = "No row leaves anything out: there is no threshold."
        if cut:
            note = f"Threshold {score(cut['median'], 4)} in the middle row, {score(cut['least'], 4)} to {score(cut['most'], 4)} over all."
        odd = [f"{count(layer[k])} {w}" for k, w in (("nan", "NaN"), ("infinite", "infinite")) if layer[k]]
        if odd:
            note += f" Not drawn: {' and '.join(odd)} scores."
        cards += (
            f"<figure><figcaption>{name_of(layer)} <small>{layer['role']}</small></figcaption>"
            f'{figures.scores(s, name_of(layer), pooled)}<p class="legend">{note}</p></figure>'
        )
    why = (
        'How many positions have which score, on a logarithmic axis: <span class="key all">all that are '
        'visible</span> <span class="key pool">in the published blocks</span> <span class="key cut">the '
        "lowest chosen score</span> (median row; shaded: every row)."
    )
    return section("scores", "Scores and the threshold", why, f'<div class="grid">{cards}</div>')


def overlap(data: Data) -> str:
    rows = []
    lists = [(name_of(layer), layer["overlap"]) for layer in present(data)]
    if data["blocks"]:
        lists.append(("Published blocks", data["blocks"]["overlap"]))
    for name, distances in lists:
        cells = [name]
        for d in distances:
            s = d["share"]
            low = f"<small>worst {share(s['least'], 0)}</small>" if s else ""
            cells.append(bar(s["mean"] if s else None) + low)
        rows.append(cells)
    pairs = [d["pairs"] for d in lists[0][1]] if lists else [0] * len(DISTANCES)
    heads = ["List"] + [
        f"{plural(d, 'token')} on <small>{plural(n, 'pair')}</small>" for d, n in zip(DISTANCES, pairs)
    ]
    why = "The share of a row’s list that the row 1, 4 or 16 tokens later keeps: what neighbours can share."
    return section("overlap", "Overlap of neighbours", why, table("Mean share kept", heads, rows, "bars"))


def ties(data: Data) -> str:
    lists = [(name_of(layer), layer["ties"], data["model"]["index_topk"]) for layer in present(data)]
    if data["blocks"]:
        lists.append(("Published blocks", data["blocks"]["ties"], data["model"]["candidate_topk_blocks"]))
    rows = []
    for name, t, rank in lists:
        worst = t["worst"]
        rows.append(
            [
                f"{name} <small>rank {count(rank)}</small>",
                f"{count(t['rows_with_a_cut'])} of {count(t['rows'])}",
                count(t["rows_crossed"]),
                _mean_most(t["equal"]),
                _mean_most(t["equal_as_bf16"]),
                f"row {count(worst['row'])}: {count(worst['inside'])} in, {count(worst['outside'])} out" if worst else "–",
            ]
        )
    heads = ["List", "Rows with a cut", "Crossed by a tie", "Equal at the cut", "The same in bf16", "Widest tie"]
    why = (
        "Equal scores on both sides of the last chosen rank: there the rule of the lower position "
        "decides; “in bf16” is what rounding the scores would make of it (mean, most)."
    )
    return section("ties", "Ties at the cut", why, table("Equal scores at the last rank", heads, rows, "numbers"))


def _mean_most(values: Optional[Data]) -> str:
    if not values:
        return "–"
    return f"{values['mean']:,.1f} <small>most {count(values['most'])}</small>"


def spans(data: Data) -> str:
    rows, seen = [], set()
    for layer in present(data):
        owner = layer["k_owner"]
        if owner not in seen:
            seen.add(owner)
            rows.append(_span_row(f"Keys of layer {owner}", layer["k_spans"], "–", "–"))
    for layer in present(data):
        scored = layer["scored"]
        fast, integer = (
            share(layer[key] / scored, 2) if scored else "–" for key in ("fast", "integer")
        )
        rows.append(_span_row(f"Queries of layer {layer['layer']}", layer["q_spans"], fast, integer))
    legend = " ".join(f'<span class="key s{i}">{esc(n)}</span>' for i, n in enumerate(SPAN_NAMES))
    heads = ["Vectors", legend, *(f"{n}" for n in SPAN_NAMES), "Fast pairs", "Integer pairs"]
    why = (
        f"How far the scale exponents of one vector lie apart; a pair of row and position is fast on a "
        f"GPU where all of its spans are at most {FAST_SPAN}, and integer arithmetic in every kernel "
        f"where they add up to at most {INTEGER_SPAN}."
    )
    return section("spans", "Exponent spans", why, table("Vectors by span", heads, rows, "numbers spans"))


def _span_row(name: str, counts: list[int], fast: str, integer: str) -> list[str]:
    total = sum(counts)
    cells = [share(n / total) if total else "–" for n in counts]
    return [name, figures.stacked(counts, SPAN_NAMES, name), *cells, fast, integer]


ALL = (result, time, recall, heat, scores, overlap, ties, spans)
TITLES = {
    "result": "Result",
    "time": "Time",
    "recall": "Recall",
    "where": "Selection",
    "scores": "Scores",
    "overlap": "Overlap",
    "ties": "Ties",
    "spans": "Spans",
}
