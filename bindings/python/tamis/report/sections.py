# SPDX-License-Identifier: MIT
"""The parts of the page below the summary: time, what is selected, and why."""

from __future__ import annotations

from typing import Optional

from . import figures
from .markup import bar, count, duration, esc, plural, score, section, share, table, times
from .meters import DISTANCES, FAST_SPAN, FIRST, INTEGER_SPAN, NEWEST, SPAN_NAMES
from .parts import Data, consumers, name_of, present
from .summary import result

# ---- time ----------------------------------------------------------------------------------------


def _machine(took: Data) -> str:
    busy, ways = "", "dense and sparse in turns; " if took["ratio"] is not None else ""
    if took["load"] > took["processors"]:
        busy = f", on a busy machine (load {took['load']:.1f})"
    return (
        f"{esc(took['processor'])}, {esc(took['tier'])} tier, CPU time of one thread; "
        f"medians of {took['turns']} turns over {plural(took['rows'], 'row')} of "
        f"{plural(took['positions'], 'position')}, {ways}± half the distance "
        f"of the quartiles; measured when this page was made{busy}"
    )


def _time_row(entry: Data, most: float, both: bool) -> list[str]:
    dense, sparse = entry["dense"], entry.get("sparse")
    spread = max((way["high"] - way["low"]) / way["ns"] for way in (dense, sparse) if way)
    row = [f"Layer {entry['layer']} <small>{entry['role']}</small>", duration(dense["ns"])]
    if both and sparse:
        ratio = f"<strong>{times(dense['ns'] / sparse['ns'])}</strong>"
        row += [duration(sparse["ns"]), ratio]
    elif both:
        row += ["–", "–"]
    if both:
        row.append(figures.against(dense["ns"], sparse["ns"] if sparse else 0, most))
    return [*row, f"±{share(spread / 2, 0)}"]


def time(data: Data) -> str:
    took = data["time"]
    if not took:
        return ""
    both = took["ratio"] is not None
    most = max(e["dense"]["ns"] for e in took["layers"])
    rows = [_time_row(entry, most, both) for entry in took["layers"]]
    body = f'<p class="note">{_machine(took)}.</p>'
    if not both:
        table_of = table("Time of one row", ["Layer", "Time", "Spread"], rows, "numbers")
        why = "Every position that a row sees is scored, and the best are selected."
        return section("time", "Time of a row", why, table_of + body)
    legend = '<span class="key dense">dense</span> <span class="key sparse">sparse</span>'
    heads = ["Layer", "Dense", "Sparse", "Ratio", legend, "Spread"]
    body = (
        f'<p class="ratio"><strong>{times(took["ratio"])}</strong> {_ratio_note(took)}</p>'
        f"{table('Time of one row', heads, rows, 'numbers times')}{body}"
    )
    why = (
        "Sparse scores the published blocks alone; dense scores every position and masks, for the "
        "same selection."
    )
    return section("time", "Time of a row, dense and sparse", why, body)


def _ratio_note(took: Data) -> str:
    if took["positions"] <= took["pool"]:
        return (
            f"these contexts fit the pool of {count(took['pool'])} positions, so both ways score "
            f"the same: the levels pay from there on"
        )
    few = took["positions"] / took["pool"]
    return (
        f"faster than dense; the pool of {count(took['pool'])} positions is {times(few)} smaller "
        f"than the context"
    )


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
    body = table("Recall over rows", heads, rows, "numbers")
    if worst < 1:
        body += f'<div class="grid short">{cards}</div>'
    elif (
        data["widest"]
        <= data["model"]["candidate_topk_blocks"] * data["model"]["candidate_block_size"]
    ):
        body += '<p class="note">No context is longer than the pool: the levels cannot differ.</p>'
    return section("recall", "Recall of two levels", why, body)


def heat(data: Data) -> str:
    cards = ""
    for layer in present(data):
        newest, first = (layer[key] / max(layer["selected"], 1) for key in ("newest", "first"))
        note = (
            f"{share(newest)} of the selection is among the newest {count(NEWEST)} positions, "
            f"{share(first)} among the first {FIRST}"
        )
        cards += _heat_card(layer["heat"], name_of(layer), layer["role"], note)
    if data["blocks"]:
        b = data["blocks"]
        runs = b["runs"]
        note = "No row publishes any"
        if runs:
            note = f"A row's blocks are {count(round(runs['mean']))} runs of neighbours on average"
        cards += _heat_card(b["heat"], "Blocks", "published", note)
    why = (
        "One line a row, its context from left to right; stronger cells hold more of its "
        "selection, and what it cannot see is hatched."
    )
    return section("where", "What is selected", why, f'<div class="grid">{cards}</div>')


def _heat_card(heat_data: Data, name: str, role: str, note: str) -> str:
    label = f"{name}: members by row and place. {note}"
    what = "block" if name == "Blocks" else "position"
    return (
        f"<figure><figcaption>{esc(name)} <small>{esc(role)}</small></figcaption>"
        f"{figures.heat(heat_data['png'], heat_data, name, label)}"
        f'<p class="legend"><span class="ramp" aria-hidden="true"></span> 0 – '
        f"{count(round(heat_data['most'], 1))} of the {plural(heat_data['bin'], what)} of a cell. "
        f"{esc(note)}.</p></figure>"
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
            least, median, most = (score(cut[key], 4) for key in ("least", "median", "most"))
            note = f"Threshold {median} in the middle row, {least} to {most} over all."
        odd = [
            f"{count(layer[k])} {w}"
            for k, w in (("nan", "NaN"), ("infinite", "infinite"))
            if layer[k]
        ]
        if odd:
            note += f" Not drawn: {' and '.join(odd)} scores."
        cards += (
            f"<figure><figcaption>{name_of(layer)} <small>{layer['role']}</small></figcaption>"
            f'{figures.scores(s, name_of(layer), pooled)}<p class="legend">{note}</p></figure>'
        )
    pool = '<span class="key pool">in the published blocks</span> ' if consumers(data) else ""
    why = (
        "How many positions have which score, on a logarithmic axis: "
        f'<span class="key all">all that are visible</span> {pool}'
        '<span class="key cut">the lowest chosen score</span> (median row; shaded: every row).'
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
    pairs = [d["pairs"] for d in lists[0][1]]
    heads = ["List"] + [
        f"{plural(d, 'token')} on <small>{plural(n, 'pair')}</small>"
        for d, n in zip(DISTANCES, pairs)
    ]
    why = (
        "The share of a row’s list that the row 1, 4 or 16 tokens later keeps: what neighbours can "
        "share."
    )
    body = table("Mean share kept", heads, rows, "bars")
    if not any(pairs):
        body = '<p class="note">No two of the measured rows are 1, 4 or 16 tokens apart.</p>'
    return section("overlap", "Overlap of neighbours", why, body)


def ties(data: Data) -> str:
    lists = [
        (name_of(layer), layer["ties"], data["model"]["index_topk"]) for layer in present(data)
    ]
    if data["blocks"]:
        lists.append(
            ("Published blocks", data["blocks"]["ties"], data["model"]["candidate_topk_blocks"])
        )
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
                f"row {count(worst['row'])}: {count(worst['inside'])} in, "
                f"{count(worst['outside'])} out"
                if worst
                else "–",
            ]
        )
    heads = [
        "List",
        "Rows with a cut",
        "Crossed by a tie",
        "Equal at the cut",
        "The same in bf16",
        "Widest tie",
    ]
    why = (
        "Equal scores on both sides of the last chosen rank: there the rule of the lower position "
        "decides; “in bf16” is what rounding the scores would make of it (mean, most)."
    )
    return section(
        "ties",
        "Ties at the cut",
        why,
        table("Equal scores at the last rank", heads, rows, "numbers"),
    )


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
        rows.append(
            _span_row(f"Queries of layer {layer['layer']}", layer["q_spans"], fast, integer)
        )
    legend = " ".join(f'<span class="key s{i}">{esc(n)}</span>' for i, n in enumerate(SPAN_NAMES))
    heads = ["Vectors", legend, *(f"{n}" for n in SPAN_NAMES), "Fast pairs", "Integer pairs"]
    why = (
        f"How far the scale exponents of one vector lie apart; a pair of row and position is fast "
        f"on a GPU where all of its spans are at most {FAST_SPAN}, and integer arithmetic in every "
        f"kernel where they add up to at most {INTEGER_SPAN}."
    )
    return section(
        "spans", "Exponent spans", why, table("Vectors by span", heads, rows, "numbers spans")
    )


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
