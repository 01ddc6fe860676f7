"""Capacity against carried state: how recall falls as the number of pairs grows, for mixtures of mqar.

Learning comes first: the share of seeds that left the plateau, and the steps they took. K90, where accuracy falls
through 90 %, and the recalled bits are of those seeds alone; a row without any says `not learned`, and nothing else of
it is shown. Mixers with a short convolution are never ranked with those without one: it does half the work.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from assay.core.errors import UserError
from assay.core.study import Report
from assay.metrics.intervals import Interval, student_t, wilson
from assay.report.draw import Column, Points, lines, table
from assay.report.recipes import widened
from assay.report.rows import Row, by_setting, labels
from assay.studies.icl.anchors import anchors
from assay.studies.icl.k90 import best_recalled_bits, capacity_interval, crossing
from assay.studies.icl.learning import Versus, best_of, bits, compared, curve, learned, measured, sizes
from assay.studies.icl.memories import Rule, memory_curve, memory_shape
from assay.tasks import tasks

BASELINE = "linear_attention"
"""The mixer that every other is compared with, besides the best: a matrix that is only added to."""
BEYOND = "bits beyond the set"
CONVOLUTIONS = ("base_conv", "hyena", "rwkv7")
"""Mixers that are convolutions themselves, or shift tokens, which is one of two."""
NOTE = (
    "learned: seeds that recall the smallest size at 98 %; steps to learn: the first validation at which they did; the "
    "rest is of those seeds. K90: pairs recalled at 90 %{interval}; bits beyond the set: K (log2 K - cross entropy) at "
    "the number of pairs where it is most, what the answers say of whose value it is; vs: difference in these bits, * "
    f"told apart (Holm over the comparisons with the best and with {BASELINE}; paired t, or where not every seed "
    "learned a bootstrap over seeds, which needs six), none between two whose K90 is the most asked; state at "
    "the longest sequence, in float32 bytes; edge: a rate beyond those tried may be better, so the row is not ranked. "
    "In parentheses: no training; a guess, the exact lookup, and memories of random keys."
)
IN_ZOOLOGY = (
    "learned: seeds that recall the smallest size at 98 %; published: the authors' accuracy, taken to be of one seed "
    "at the best of four rates; state at the longest sequence, in float32 bytes, with short convolutions, of which the "
    "authors count the one in front alone; edge: a rate beyond those tried may be better. In parentheses: no training."
)
PUBLISHED = "; ○: published points (zoology, accuracy read off a figure)"


def capacity(found: Sequence[Row], out: Report) -> None:
    """Draw tables and charts where recall was scored by size, apart for mixers with and without a short convolution."""
    sized = [row for row in found if any("by_size" in record.metrics for record in row.records)]
    for convolved, what in ((False, "without a short convolution"), (True, "with a short convolution")):
        own = [row for row in sized if has_convolution(row.options["model"]["seq_mixer"]) == convolved]
        if own:
            _report(_named_by_mixer(own), "conv" if convolved else "no_conv", what, out)


def has_convolution(mixer: Mapping[str, Any]) -> bool:
    """Return whether the mixer, or a mixer inside it, has or is a short convolution."""
    own = mixer.get("conv", 0) > 1 or mixer["name"] in CONVOLUTIONS
    return own or any(has_convolution(member) for member in mixer.get("pattern", ()))


def _named_by_mixer(found: Sequence[Row]) -> list[Row]:
    """Relabel the rows with the fewest words that tell their mixers apart."""
    words = labels([row.options["model"]["seq_mixer"] for row in found])
    return [replace(row, names={"seq_mixer": word}, label=word) for row, word in zip(found, words, strict=True)]


def _report(found: Sequence[Row], name: str, what: str, out: Report) -> None:
    in_zoology = any(row.options["task"].get("cells") == "zoology" for row in found)
    versus: dict[tuple[str, str], Versus] = {}
    for rivals in by_setting(found).values():
        versus |= compared([row for row in rivals if not row.at_the_edge], with_all(rivals))
    best_first = sorted(found, key=_place)
    untrained = [*_known(best_first), *_memories(best_first)]
    interval = ", with the 95 % interval over seeds" if any(row.n > 1 for row in found) else ""
    told = [f"Mixers {what}.", NOTE.format(interval=interval)] if not in_zoology else [IN_ZOOLOGY]
    note = " ".join([*told, *_to_widen(best_first)])
    table(out, f"capacity_{name}", best_first, _columns(versus, in_zoology=in_zoology), extra=untrained, note=note)
    done = [row for row in found if row.finished]
    lines(
        out, f"recall_by_pairs_{name}", done, _by_pairs, bounded=True, x_title="pairs", y_title="accuracy", log_x=True,
        references={"90 %": 0.9}, caption=f"Recall by number of pairs, {what}.",
    )  # fmt: skip
    lines(
        out, f"recall_by_state_{name}", sorted(done, key=lambda row: (_mixer(row), _state(row))), _by_state,
        series=_mixer, bounded=True, x_title="state, bytes", y_title="accuracy", log_x=True,
        extra=_published(done) if in_zoology else (),  # of other sizes than its own they say nothing
        caption=f"Mean recall over all sizes against carried state, {what}{PUBLISHED if in_zoology else ''}.",
    )  # fmt: skip


def _columns(versus: Mapping[tuple[str, str], Versus], *, in_zoology: bool) -> tuple[Column, ...]:
    """The columns; in zoology's cells its own measure leads, the mean accuracy, with what was published beside it."""
    ours = not in_zoology
    return (
        Column("learned", lambda row: f"{len(learned(row))}/{row.n}", always=True, lead=True),
        Column(
            "share learned",
            lambda row: wilson(len(learned(row)), row.n) if row.n > 1 else None,
            note="share learned: with its Wilson interval.",
        ),
        Column("steps to learn", _steps, ".0f", lead=ours),
        Column("K90", _k90, always=True, lead=ours),
        Column(BEYOND, lambda row: _mean(bits(row, beyond=True)), ".0f", lead=ours),
        Column("bits", lambda row: _mean(bits(row)), ".0f", note="bits: K (log2 M - cross entropy), M = V/2 values."),
        Column(
            "accuracy",
            "accuracy",
            share=True,
            lead=in_zoology,
            note="accuracy: the mean over sizes, of all seeds, also of those that did not learn.",
        ),
        Column("published", _published_accuracy if in_zoology else lambda row: None, lead=True),
        Column("vs best", lambda row: _told(versus.get((row.series, "best")))),
        Column(f"vs {BASELINE}", lambda row: _told(versus.get((row.series, BASELINE)))),
        Column("state bytes", lambda row: _state(row) if row.first else None, always=True, lead=True),
        Column("bits/state scalar", _bits_per_scalar, ".3f"),
        Column("k-layer params", lambda row: row.first["layer_params"] / 1000 if row.first else None),
        Column("diverged", lambda row: f"{row.diverged}/{row.n}" if row.diverged else None),
        Column(
            "lr", lambda row: chosen_rate(row) if learned(row) or in_zoology else None, always=True, lead=in_zoology
        ),
    )


def chosen_rate(row: Row) -> str | None:
    """The rate that was chosen; whether it is at an edge is asked of rows that learned."""
    words = row.tuned_words
    return words if words is None or learned(row) else words.removesuffix(" edge")


def _mean(by_seed: Mapping[int, float]) -> Interval | None:
    return student_t(list(by_seed.values())) if by_seed else None


def _place(row: Row) -> tuple[int, float]:
    """Rows that learned come first, by their bits beyond the set; last are those that diverged."""
    if own := bits(row, beyond=True):
        return 0, -fmean(own.values())
    accuracies = row.values("accuracy").values()
    return (1, -fmean(accuracies)) if accuracies else (2, 0.0)


def with_all(found: Sequence[Row]) -> dict[str, Row]:
    """The rows that all others of the setting are compared with: the best, and the baseline that learned most."""
    best = best_of(found)
    plain = best_of([row for row in found if measured(row) == BASELINE])
    return {name: row for name, row in (("best", best), (BASELINE, plain)) if row is not None}


def _told(versus: Versus | None) -> str | None:
    return None if versus is None else str(versus)


def _steps(row: Row) -> Interval | None:
    """The first validation at which each seed had left the plateau; records of earlier versions do not say."""
    found = [record.metrics.get("left_plateau") for record in learned(row)]
    steps = [float(step) for step in found if step is not None]
    return student_t(steps) if steps else None


def _k90(row: Row) -> str | None:
    if not row.first:
        return None
    curves = [curve(record) for record in learned(row)]
    return str(capacity_interval(sizes(row), curves)) if curves else "not learned"


def _bits_per_scalar(row: Row) -> Interval | None:
    return student_t([each / row.first["state_scalars"] for each in bits(row).values()]) if learned(row) else None


def _known(found: Sequence[Row]) -> list[dict[str, Any]]:
    """The guess that recalls nothing, and the exact lookup, where all rows are of one task."""
    try:
        (task,) = {tasks.load(row.options["task"]) for row in found if row.options["task"]["name"] == "mqar"}
    except (UserError, ValueError):
        return []
    parts = task.scored_parts()
    floors, vocab = [part.floor() for part in parts], task.shape().outputs.vocab
    pairs, known = [part.num_kv_pairs for part in parts], [1.0] * len(parts)
    guess = "1/K, a guess" if task.values == "hidden" else "H_K/K, elimination"
    return [
        {"seq_mixer": f"({guess})", "K90": str(crossing(pairs, floors)), "accuracy": fmean(floors)},
        {
            "seq_mixer": "(oracle)", "K90": str(crossing(pairs, known)), "accuracy": 1.0,
            **{name: best_recalled_bits(pairs, known, vocab, beyond=name == BEYOND) for name in (BEYOND, "bits")},
        },
    ]  # fmt: skip


def _memories(found: Sequence[Row]) -> list[dict[str, Any]]:
    """Untrained memories of the sizes that mixers which learned carry. They have no losses, and so no bits."""
    made: dict[Any, dict[str, Any]] = {}
    rules: tuple[Rule, ...] = ("hebbian", "least squares")
    for row in (row for row in found if learned(row)):
        shape = memory_shape(row.options["model"]["seq_mixer"], row.options["model"]["model_dim"])
        pairs, vocab = tuple(sizes(row)), row.options["task"]["vocab_size"]
        for rule in rules:
            if shape is not None and (rule, shape, pairs) not in made:
                recall = memory_curve(rule, shape, pairs, vocab - vocab // 2)
                made[rule, shape, pairs] = {
                    "seq_mixer": f"({rule}, {shape})", "K90": str(crossing(pairs, recall)), "accuracy": fmean(recall),
                    "state bytes": 4 * shape.scalars(rule),
                }  # fmt: skip
    return list(made.values())


def _to_widen(found: Sequence[Row]) -> list[str]:
    """Say which rates to add where a row that learned chose the smallest or largest that was tried."""
    wanted = [f"{row.series} {','.join(map('{:g}'.format, rates))}" for row in found if (rates := missing_rates(row))]
    return [f"Rows at an edge, and what to add to --grid optimizer.lr: {'; '.join(wanted)}."] if wanted else []


def missing_rates(row: Row) -> list[float]:
    """The next rate beyond each end that a row which learned chose; all, where none was tried with every seed."""
    if not (learned(row) and row.at_the_edge):
        return []
    if not (rates := row.tried_by_all):
        return sorted(row.tried)
    ends = [("lr", end) for end, rate in ((False, rates[0]), (True, rates[-1])) if rate in row.chosen]
    return sorted(set(widened({"lr": rates}, ends, {"lr": rates})["lr"]) - set(rates))


def _state(row: Row) -> int:
    """Carried state in bytes of float32."""
    return int(4 * row.first["state_scalars"])


def _mixer(row: Row) -> str:
    """The chart's line: the mixer's name and the setting, whatever the size of the state."""
    where = replace(row, setting={key: value for key, value in row.setting.items() if not key.endswith("model_dim")})
    return f"{measured(row)} {where.where}".strip()


def _by_pairs(row: Row) -> Points:
    return [(size, row.values("by_size", str(size))) for size in sizes(row)]


def _by_state(row: Row) -> Points:
    return [(_state(row), {record.run.seed: fmean(curve(record)) for record in row.finished})]


def _published_accuracy(row: Row) -> float | None:
    """The published point of the mixer that is nearest in state, if it is at most a quarter smaller: the authors do not
    count the short convolutions inside a mixer, which are counted here."""
    own = [anchor for anchor in anchors() if anchor.ours == measured(row)] if row.first else []
    near = [anchor for anchor in own if 0.75 < anchor.state_bytes / _state(row) < 1.05]
    return max(near, key=lambda anchor: anchor.state_bytes).accuracy if near else None


def _published(found: Sequence[Row]) -> list[dict[str, Any]]:
    ours = {measured(row) for row in found}
    return [
        {"series": f"○ {anchor.mixer}", "x": anchor.state_bytes, "y": anchor.accuracy}
        for anchor in anchors()
        if anchor.ours in ours
    ]
