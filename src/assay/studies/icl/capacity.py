"""Capacity against carried state: what is left of recall as the number of pairs grows, for mixtures of mqar.

K90 is where accuracy falls through 90 %; recalled bits are the most, over the sizes, that the answers say of the
values. Mixers with a short convolution are never ranked with those without one: the convolution does half the work.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any

from assay.core.study import Report
from assay.metrics.intervals import letters, share, student_t
from assay.report.cells import labels
from assay.report.charts import interval_lines
from assay.studies.icl.anchors import anchors
from assay.studies.icl.contenders import Contender
from assay.studies.icl.k90 import best_recalled_bits, capacity_interval

Member = tuple[Contender, Mapping[str, Any]]
"""A contender, and the settings that tell it apart."""

NOTE = (
    "K90: pairs recalled at 90 %, with the 95 % interval over seeds; recalled: bits, at the number of pairs where they "
    "are most; rows that share a letter are not told apart by them (paired t, Holm); state at the longest sequence; "
    "layer params: of all layers, without tables."
)


def capacity(found: Sequence[Contender], settings: Mapping[str, Sequence[Any]], out: Report) -> None:
    """Tables and charts, with and without the short convolution apart; nothing where nothing was scored by size.
    `settings` tell the contenders apart, besides their plug-ins."""
    own = [{key: values[index] for key, values in settings.items()} for index in range(len(found))]
    sized = [(c, setting) for c, setting in zip(found, own, strict=True) if c.scored("by_size")]
    for convolved, what in ((False, "without a short convolution"), (True, "with a short convolution")):
        members = [
            (c, setting) for c, setting in sized if has_convolution(c.options["model"]["seq_mixer"]) == convolved
        ]
        if members:
            _report(members, "conv" if convolved else "no_conv", what, out)


def has_convolution(mixer: Mapping[str, Any]) -> bool:
    """Whether it, or a mixer that it is made of, has a short convolution."""
    return mixer["conv"] > 0 or any(has_convolution(member) for member in mixer.get("pattern", ()))


def _report(members: Sequence[Member], name: str, what: str, out: Report) -> None:
    names = _names(members)
    groups = letters({label: _bits(c) for label, (c, _) in zip(names, members, strict=True) if c.finished})
    mixers = labels([c.options["model"]["seq_mixer"] for c, _ in members])
    rows = [
        _row(c, {"seq_mixer": mixer, **setting}, groups.get(label))
        for (c, setting), mixer, label in zip(members, mixers, names, strict=True)
    ]
    rows.sort(key=lambda row: -row["recalled bits"].mean if row["recalled bits"] else math.inf)
    kept = [key for key in rows[0] if key != "diverged" or any(row[key] for row in rows)]
    shown = [{key: row[key] for key in kept} for row in rows]
    out.table(f"capacity_{name}", shown, formats={"bits/state scalar": ".3f"}, note=f"Mixers {what}. {NOTE}")
    trained = [(member, label) for member, label in zip(members, names, strict=True) if member[0].finished]
    if trained:
        _charts(trained, name, what, out)


def _charts(trained: Sequence[tuple[Member, str]], name: str, what: str, out: Report) -> None:
    out.chart(f"recall_by_pairs_{name}", _by_pairs(trained), caption=f"Recall by number of pairs, {what}.")
    published = (
        "; ○: published points (zoology, read off a figure; other sizes, a kernel-3 convolution before every mixer)"
        if name == "conv"
        else ""
    )
    out.chart(
        f"recall_by_state_{name}",
        _by_state([member for member, _ in trained], anchored=name == "conv"),
        caption=f"Mean recall over all sizes against carried state, {what}{published}.",
    )


def _names(members: Sequence[Member]) -> list[str]:
    """A name for each that no other has."""
    mixers = labels([c.options["model"]["seq_mixer"] for c, _ in members])
    return [_named(mixer, setting) for mixer, (_, setting) in zip(mixers, members, strict=True)]


def _named(mixer: str, setting: Mapping[str, Any]) -> str:
    return " ".join([mixer, *(f"{key.rpartition('.')[2]}={value}" for key, value in setting.items())])


def _curves(c: Contender) -> tuple[list[int], list[list[float]]]:
    sizes = sorted(map(int, c.first.get("by_size", {})))
    return sizes, [[record.metrics["by_size"][str(size)] for size in sizes] for record in c.finished]


def _bits(c: Contender) -> dict[int, float]:
    """Recalled bits by seed."""
    sizes, curves = _curves(c)
    vocab = c.options["task"]["vocab_size"]
    pairs = zip(c.finished, curves, strict=True)
    return {record.run.seed: best_recalled_bits(sizes, curve, vocab) for record, curve in pairs}


def _row(c: Contender, titles: Mapping[str, Any], group: str | None) -> dict[str, Any]:
    """Without scores and sizes where every seed diverged."""
    bits, first = list(_bits(c).values()), c.first
    return {
        **titles,
        "K90": str(capacity_interval(*_curves(c))) if first else None,
        "recalled bits": student_t(bits) if first else None,
        "group": group,
        "state bytes": 4 * first["state_scalars"] if first else None,
        "bits/state scalar": student_t([one / first["state_scalars"] for one in bits]) if first else None,
        "k-layer params": first["layer_params"] / 1000 if first else None,
        "diverged": c.diverged,
        "lr": c.rates,
    }


def _by_pairs(trained: Sequence[tuple[Member, str]]) -> Any:
    lines, dots = [], []
    for (c, _), name in trained:
        sizes, curves = _curves(c)
        for size, values in zip(sizes, zip(*curves, strict=True), strict=True):
            lines.append({"series": name, "pairs": size, "accuracy": partial(share, list(values))})
            dots += [{"series": name, "pairs": size, "accuracy": value} for value in values]
    return interval_lines(
        lines, x="pairs", y="accuracy", series="series", dots=dots, references={"90 %": 0.9}, log_x=True
    )


def _by_state(members: Sequence[Member], *, anchored: bool) -> Any:
    """A line per mixer, its sizes of state along it; published points as lines of their own."""
    lines: list[dict[str, Any]] = []
    dots: list[dict[str, Any]] = []
    for c, setting in members:
        means = [fmean(curve) for curve in _curves(c)[1]]
        series = _named(c.options["model"]["seq_mixer"]["name"], setting)
        where = {"series": series, "state": 4 * c.first["state_scalars"]}
        lines.append(where | {"accuracy": partial(share, means)})
        dots += [where | {"accuracy": mean} for mean in means]
    lines.sort(key=lambda line: (line["series"], line["state"]))
    ours = {c.options["model"]["seq_mixer"]["name"] for c, _ in members}
    lines += [
        {"series": f"○ {anchor.mixer}", "state": anchor.state_bytes, "accuracy": anchor.accuracy}
        for anchor in anchors()
        if anchored and anchor.ours in ours
    ]
    return interval_lines(
        lines, x="state", y="accuracy", series="series", dots=dots, x_title="state, bytes", log_x=True
    )
