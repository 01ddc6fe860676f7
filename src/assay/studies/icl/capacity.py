"""Capacity against carried state: what is left of recall as the number of pairs grows, for mixtures of mqar.

K90 is where accuracy falls through 90 %; recalled bits are the most, over the sizes, that the answers say of the
values. Mixers with a short convolution are never ranked with those without one: the convolution does half the work.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from assay.core.study import Report
from assay.metrics.capacity import best_recalled_bits, capacity_interval
from assay.metrics.intervals import share, student_t
from assay.report.cells import labels
from assay.report.charts import interval_lines
from assay.studies.icl.anchors import anchors
from assay.studies.icl.contenders import Contender

NOTE = (
    "K90: pairs recalled at 90 %, with the 95 % interval over seeds; recalled: bits, at the number of pairs where they "
    "are most; state at the longest sequence; layer params: of all layers, without tables."
)


def capacity(found: Sequence[Contender], out: Report) -> None:
    """Tables and charts, with and without the short convolution apart; nothing where nothing was scored by size."""
    sized = [c for c in found if "by_size" in c.records[0].metrics]
    for name, members in (("no_conv", _with_conv(sized, False)), ("conv", _with_conv(sized, True))):
        if not members:
            continue
        names = _names(members)
        rows = [_row(c, label) for c, label in zip(members, names, strict=True)]
        rows.sort(key=lambda row: -row["recalled bits"].mean)
        what = "with a short convolution" if name == "conv" else "without a short convolution"
        out.table(f"capacity_{name}", rows, formats={"bits/state scalar": ".3f"}, note=f"Mixers {what}. {NOTE}")
        out.chart(f"recall_by_pairs_{name}", _by_pairs(members, names), caption=f"Recall by number of pairs, {what}.")
        out.chart(
            f"recall_by_state_{name}",
            _by_state(members),
            caption=f"Mean recall over all sizes against carried state, {what}; hollow names are published points "
            "(zoology, read off a figure; other sizes and a kernel-3 convolution in front of every mixer).",
        )


def _with_conv(found: Sequence[Contender], wanted: bool) -> list[Contender]:
    return [c for c in found if (c.options["model"]["seq_mixer"]["conv"] > 0) == wanted]


def _names(members: Sequence[Contender]) -> list[str]:
    return labels([c.options["model"]["seq_mixer"] for c in members])


def _curves(c: Contender) -> tuple[list[int], list[list[float]]]:
    sizes = sorted(map(int, c.records[0].metrics["by_size"]))
    return sizes, [[record.metrics["by_size"][str(size)] for size in sizes] for record in c.records]


def _row(c: Contender, label: str) -> dict[str, Any]:
    sizes, curves = _curves(c)
    vocab, scalars = c.options["task"]["vocab_size"], c.records[0].metrics["state_scalars"]
    bits = [best_recalled_bits(sizes, curve, vocab) for curve in curves]
    return {
        "seq_mixer": label,
        "K90": str(capacity_interval(sizes, curves)),
        "recalled bits": student_t(bits),
        "state bytes": 4 * scalars,
        "bits/state scalar": student_t([one / scalars for one in bits]),
        "k-layer params": c.records[0].metrics["layer_params"] / 1000,
        "lr": f"{c.rate:g} edge" if c.at_the_edge else f"{c.rate:g}",
    }


def _by_pairs(members: Sequence[Contender], names: Sequence[str]) -> Any:
    lines, dots = [], []
    for c, name in zip(members, names, strict=True):
        sizes, curves = _curves(c)
        for size, values in zip(sizes, zip(*curves, strict=True), strict=True):
            lines.append({"series": name, "pairs": size, "accuracy": share(list(values))})
            dots += [{"series": name, "pairs": size, "accuracy": value} for value in values]
    return interval_lines(
        lines, x="pairs", y="accuracy", series="series", dots=dots, references={"90 %": 0.9}, log_x=True
    )


def _by_state(members: Sequence[Contender]) -> Any:
    """A line per mixer, its sizes of state along it; anchors as lines of their own."""
    lines: list[Mapping[str, Any]] = []
    for c in members:
        _, curves = _curves(c)
        bytes_ = 4 * c.records[0].metrics["state_scalars"]
        name = c.options["model"]["seq_mixer"]["name"]
        lines.append({"series": name, "state": bytes_, "accuracy": share([fmean(curve) for curve in curves])})
    lines.sort(key=lambda line: (line["series"], line["state"]))
    ours = {line["series"] for line in lines}
    lines += [
        {"series": f"○ {anchor.mixer}", "state": anchor.state_bytes, "accuracy": anchor.accuracy}
        for anchor in anchors()
        if anchor.ours in ours
    ]
    return interval_lines(lines, x="state", y="accuracy", series="series", x_title="state, bytes", log_x=True)
