"""Capacity against carried state: how recall falls as the number of pairs grows, for mixtures of mqar.

K90 is where accuracy falls through 90 %; recalled bits are the most, over the sizes, that the answers say of the
values. Mixers with a short convolution are never ranked with those without one: the convolution does half the work.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from assay.core.study import Report
from assay.metrics.intervals import letters, student_t
from assay.report.draw import Column, Points, lines, table
from assay.report.rows import Row, labels
from assay.studies.icl.anchors import anchors
from assay.studies.icl.k90 import best_recalled_bits, capacity_interval

NOTE = (
    "K90: pairs recalled at 90 %, with the 95 % interval over seeds; recalled: bits, at the number of pairs where they "
    "are most; rows that share a letter are not told apart by them (paired t, Holm); state at the longest sequence; "
    "layer params: of all layers, without tables."
)
PUBLISHED = "; ○: published points (zoology, read off a figure; other sizes, a kernel-3 convolution before every mixer)"


def capacity(found: Sequence[Row], out: Report) -> None:
    """Draw tables and charts where recall was scored by size, apart for mixers with and without a short convolution."""
    sized = [row for row in found if any("by_size" in record.metrics for record in row.records)]
    for convolved, what in ((False, "without a short convolution"), (True, "with a short convolution")):
        own = [row for row in sized if has_convolution(row.options["model"]["seq_mixer"]) == convolved]
        if own:
            _report(_named_by_mixer(own), "conv" if convolved else "no_conv", what, out)


def has_convolution(mixer: Mapping[str, Any]) -> bool:
    """Return whether the mixer, or a mixer inside it, has a short convolution."""
    return mixer["conv"] > 0 or any(has_convolution(member) for member in mixer.get("pattern", ()))


def _named_by_mixer(found: Sequence[Row]) -> list[Row]:
    """Relabel the rows with the fewest words that tell their mixers apart."""
    words = labels([row.options["model"]["seq_mixer"] for row in found])
    return [replace(row, names={"seq_mixer": word}, label=word) for row, word in zip(found, words, strict=True)]


def _report(found: Sequence[Row], name: str, what: str, out: Report) -> None:
    groups = letters({row.series: _bits(row) for row in found if row.finished})
    columns = (
        Column("K90", lambda row: str(capacity_interval(*_curves(row))) if row.first else None, always=True),
        Column("recalled bits", lambda row: student_t(list(_bits(row).values())) if row.first else None, always=True),
        Column("group", lambda row: groups.get(row.series), always=True),
        Column("state bytes", lambda row: _state(row) if row.first else None, always=True),
        Column("bits/state scalar", _bits_per_scalar, ".3f", always=True),
        Column("k-layer params", lambda row: row.first["layer_params"] / 1000 if row.first else None, always=True),
        Column("diverged", lambda row: f"{row.diverged}/{row.n}" if row.diverged else None),
        Column("lr", lambda row: row.tuned_words, always=True),
    )
    best_first = sorted(found, key=lambda row: -fmean(_bits(row).values()) if row.first else float("inf"))
    table(out, f"capacity_{name}", best_first, columns, note=f"Mixers {what}. {NOTE}")
    done = [row for row in found if row.finished]
    lines(
        out, f"recall_by_pairs_{name}", done, _by_pairs, bounded=True, x_title="pairs", y_title="accuracy", log_x=True,
        references={"90 %": 0.9}, caption=f"Recall by number of pairs, {what}.",
    )  # fmt: skip
    anchored = name == "conv"
    lines(
        out, f"recall_by_state_{name}", sorted(done, key=lambda row: (_mixer(row), _state(row))), _by_state,
        series=_mixer, bounded=True, x_title="state, bytes", y_title="accuracy", log_x=True,
        extra=_published(done) if anchored and done else (),
        caption=f"Mean recall over all sizes against carried state, {what}{PUBLISHED if anchored else ''}.",
    )  # fmt: skip


def _curves(row: Row) -> tuple[list[int], list[list[float]]]:
    """The sizes, and the accuracy at each, seed by seed."""
    sizes = sorted(map(int, row.first.get("by_size", {})))
    return sizes, [[record.metrics["by_size"][str(size)] for size in sizes] for record in row.finished]


def _bits(row: Row) -> dict[int, float]:
    """Recalled bits by seed."""
    sizes, curves = _curves(row)
    vocab = row.options["task"]["vocab_size"]
    pairs = zip(row.finished, curves, strict=True)
    return {record.run.seed: best_recalled_bits(sizes, curve, vocab) for record, curve in pairs}


def _bits_per_scalar(row: Row) -> Any:
    return student_t([bits / row.first["state_scalars"] for bits in _bits(row).values()]) if row.first else None


def _state(row: Row) -> int:
    """Carried state in bytes of float32."""
    return int(4 * row.first["state_scalars"])


def _mixer(row: Row) -> str:
    """The chart's line: the mixer's name and the setting, whatever the size of the state."""
    return f"{row.options['model']['seq_mixer']['name']} {row.where}".strip()


def _by_pairs(row: Row) -> Points:
    return [(size, row.values("by_size", str(size))) for size in _curves(row)[0]]


def _by_state(row: Row) -> Points:
    means = zip(row.finished, map(fmean, _curves(row)[1]), strict=True)
    return [(_state(row), {record.run.seed: mean for record, mean in means})]


def _published(found: Sequence[Row]) -> list[dict[str, Any]]:
    ours = {row.options["model"]["seq_mixer"]["name"] for row in found}
    return [
        {"series": f"○ {anchor.mixer}", "x": anchor.state_bytes, "y": anchor.accuracy}
        for anchor in anchors()
        if anchor.ours in ours
    ]
