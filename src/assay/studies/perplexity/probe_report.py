"""A table of probes, a line per probe, method, context length and budget, and a map of depth against length for each
method."""

import warnings
from collections.abc import Sequence
from typing import Any

from assay.core.run import canonical
from assay.core.study import Report
from assay.metrics.bootstrap import LEAST, ratio, ratio_difference
from assay.metrics.intervals import Interval, wilson
from assay.report.charts import heatmap
from assay.report.draw import filled
from assay.report.rows import Row
from assay.studies.perplexity.cells import after_prefix, budget_of, by_fact, error, facts, in_short, is_dense, sums
from assay.studies.perplexity.document import Sweeps
from assay.studies.perplexity.figures import budget_words
from assay.studies.perplexity.probing import PROBE
from assay.studies.perplexity.scoring import DECODED

FORMATS = {"Nats/token": ".3f", "Floor": ".3f", "Δ vs dense": ".3f"}
LEAD = ("Probe", "Method", "Context", "Sparsity", "Nats/token", "Decoded", "Kept")
NOT_DONE = "dense does not do it"
NOTE = (
    "Nats/token: loss of the answer's tokens under the exact replay, with its 95 % interval (bootstrap over texts, "
    f"none below {LEAST}). Floor: dense, without what answers the question. Δ vs dense is paired. Tokens right: those "
    "of the answer that are the likeliest; Exact: texts in which all are (Wilson); Decoded: texts whose answer was "
    "generated greedily with the keys that the method evicts really gone. Kept: (floor - own) / (floor - dense) of the "
    "loss."
)
NOTHING = (
    f"'{NOT_DONE}': it is not told from the floor, by its loss or by the tokens that are right, so that the row says "
    "nothing about methods."
)
Key = tuple[str, int, bool]


def report_probes(found: Sequence[Row], out: Report, *, name: str, sweeps: Sweeps) -> None:
    """Add the table and the maps of the cells of probes, if there are any."""
    if not (lines := probe_lines(found, sweeps)):
        return
    note = f"{NOTE} {NOTHING}" if any(line.get("Kept") == NOT_DONE for line in lines) else NOTE
    lead = [column for column in LEAD if column in lines[0]]  # with too few texts nothing is said to be kept
    out.table(f"{name}_probes", lines, formats=FORMATS, lead=lead, note=note)
    for probe, chart in maps(found, sweeps).items():
        caption = f"{probe}: share of the answer's tokens that are the likeliest, by depth and length."
        out.chart(f"{name}_{probe.replace(':', '_').replace('=', '')}_depth", chart, caption=caption)


def probe_lines(found: Sequence[Row], sweeps: Sweeps) -> list[dict[str, Any]]:
    """A line per cell, dense first."""
    floors = {_key(cell): cell for cell in found if cell.options["dataset"]["floor"]}
    dense = {_key(cell): cell for cell in found if is_dense(cell) and not _is_floor(cell)}
    lines = [
        _line(cell, dense.get(_key(cell)), floors.get(_key(cell)), sweeps) for cell in found if not _is_floor(cell)
    ]
    order = list(dict.fromkeys(line["Method"] for line in lines))
    lines.sort(key=lambda line: (line["Probe"], line["Context"], order.index(line["Method"]), str(line["Sparsity"])))
    return filled(lines)


def _is_floor(cell: Row) -> bool:
    return bool(cell.options["dataset"]["floor"])


def _key(cell: Row) -> Key:
    """What cells share that are compared: the samples, the context and the protocol."""
    dataset = {key: value for key, value in cell.options["dataset"].items() if key != "floor"}
    return canonical(dataset), cell.options["context"], after_prefix(cell)


def _line(cell: Row, dense: Row | None, floor: Row | None, sweeps: Sweeps) -> dict[str, Any]:
    head = {
        "Probe": _name(cell),
        "Method": sweeps.title(cell),
        "Context": cell.options["context"],
        "Sparsity": budget_words(budget_of(cell)),
    }
    if reason := error(cell):
        return head | {"Nats/token": in_short(reason)}
    nll, tokens, right, exact = sums(cell, "nll", "tokens", "right", "exact")
    line: dict[str, Any] = head | {
        "Nats/token": ratio(nll, tokens),
        "Tokens right": ratio(right, tokens),
        "Exact": wilson(round(sum(exact)), len(exact)),
        "Decoded": _decoded(cell),
        "Texts": len(exact),
    }
    if dense is None or floor is None or error(dense) or error(floor):
        return line
    bottom, count = sums(floor, "nll", "tokens")
    line["Floor"] = ratio(bottom, count)
    if not is_dense(cell):
        line["Δ vs dense"] = ratio_difference(nll, tokens, *sums(dense, "nll", "tokens"))
    return line | {"Kept": _kept(cell, dense, floor)}


def _decoded(cell: Row) -> Interval | str | None:
    if not cell.options["dataset"].get("decode", True):
        return None
    if any(DECODED not in record.metrics["sums"] for record in cell.records):
        return "evicts nothing"
    (right,) = sums(cell, DECODED)
    return wilson(round(sum(right)), len(right))


def _kept(cell: Row, dense: Row, floor: Row) -> float | str | None:
    """The share of what dense attention gains from the context; none where it is not known to gain anything."""
    top, bottom = sums(dense, "nll", "tokens", "right"), sums(floor, "nll", "tokens", "right")
    gain = ratio_difference(*bottom[:2], *top[:2])
    right = ratio_difference(top[2], top[1], bottom[2], bottom[1])
    if gain.low is None or right.low is None:
        return None
    if min(gain.low, right.low) <= 0:
        return NOT_DONE
    return ratio_difference(*bottom[:2], *sums(cell, "nll", "tokens")).mean / gain.mean


def _name(cell: Row) -> str:
    return str(cell.options["dataset"]["name"]).removeprefix(f"{PROBE}:")


def maps(found: Sequence[Row], sweeps: Sweeps) -> dict[str, Any]:
    """For each probe with depths, a map for each method and budget, side by side."""
    import altair as alt

    panels: dict[str, dict[tuple[str, str], list[Row]]] = {}
    for cell in found:
        if _is_floor(cell) or error(cell) or None in facts(cell, "depths"):
            continue
        size = "" if is_dense(cell) else f" {budget_words(budget_of(cell))}"
        panels.setdefault(_name(cell), {}).setdefault((cell.label, size), []).append(cell)
    charts = dict[str, Any]()
    for probe, methods in panels.items():
        drawn = [
            heatmap(
                sorted((p for cell in own for p in _points(cell)), key=lambda p: (p["length"], p["depth"])),
                x="length", y="depth", value="right", x_title="tokens", title=sweeps.title(*own) + size,
                domain=(0.0, 1.0),
            )
            for (_, size), own in methods.items()
        ]  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            charts[probe] = alt.concat(*drawn, columns=4)
    return charts


def _points(cell: Row) -> list[dict[str, Any]]:
    by_depth, context = by_fact(cell, "depths", "right"), cell.options["context"]
    return [{"length": context, "depth": depth, "right": right} for depth, right in by_depth.items()]
