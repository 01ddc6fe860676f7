"""Learning and capacity are two questions: did a seed leave the plateau of guessing, and what do those hold that did?

    seed   accuracy at the smallest size    left the plateau    counts for K90 and bits
    0      1.00                             yes                 yes
    1      0.26                             no                  no
    2      0.99                             yes                 yes        -> learned 2/3

A seed that recalls the smallest size at 98 % has left it. Outcomes are bimodal: a mean over all seeds describes none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from assay.core.run import Record
from assay.metrics.intervals import (
    SIGNIFICANT,
    Interval,
    bootstrap_difference,
    holm,
    least_p,
    paired_difference,
    paired_p,
)
from assay.report.rows import Row
from assay.studies.icl.k90 import LEARNED, answered_bits, beyond_the_set, crossing, recalled_bits


def sizes(row: Row) -> list[int]:
    """The numbers of pairs, smallest first."""
    return sorted(map(int, row.first.get("by_size", {})))


def measured(row: Row) -> str:
    """The name of the mixer that the row is about: of a hybrid, the last of its members."""
    mixer: Mapping[str, Any] = row.options["model"]["seq_mixer"]
    return str(mixer["pattern"][-1]["name"] if mixer.get("pattern") else mixer["name"])


def learned(row: Row) -> list[Record]:
    """The seeds that left the plateau."""
    return [record for record in row.finished if has_learned(record)]


def has_learned(record: Record) -> bool:
    """Whether it recalls the smallest size."""
    return curve(record)[0] >= LEARNED


def curve(record: Record) -> list[float]:
    """The accuracy at each size."""
    by_size: Mapping[str, float] = record.metrics["by_size"]
    return [by_size[size] for size in sorted(by_size, key=int)]


def bits_of(record: Record, *, beyond: bool = False) -> float:
    """The most bits recalled at any size, or beyond the set of values, from the stored losses; Fano's bound of the
    accuracies in records without."""
    vocab, losses = record.run.options["task"]["vocab_size"], record.metrics.get("loss_by_size")
    by_size, measure = (losses, answered_bits) if losses else (record.metrics["by_size"], recalled_bits)
    found = [(measure(value, int(size), vocab), int(size)) for size, value in by_size.items()]
    return max(beyond_the_set(bits, size, vocab) if beyond else bits for bits, size in found)


def bits(row: Row, *, beyond: bool = False) -> dict[int, float]:
    """Recalled bits by seed, of those that learned; or `beyond` the set, those that say whose value it is: what rows
    are ranked by, since to know which values there were is no recall."""
    return {record.run.seed: bits_of(record, beyond=beyond) for record in learned(row)}


@dataclass(frozen=True)
class Versus:
    """A row's bits beyond the set less those of another, and whether the two are told apart after Holm over all that
    were tested. p is None where no test of these seeds could have a small one."""

    difference: Interval
    p: float | None

    def __str__(self) -> str:
        bounds = "" if self.difference.low is None else f" [{self.difference.low:+z.0f}, {self.difference.high:+z.0f}]"
        return f"{self.difference.mean:+z.0f}{bounds}{' *' * (self.p is not None and self.p < SIGNIFICANT)}"


def compared(found: Sequence[Row], others: Mapping[str, Row]) -> dict[tuple[str, str], Versus]:
    """Compare the bits beyond the set of each row with those of a few others, by the row's series and the other's name.
    Only these comparisons count for Holm, each once: over all pairs of 15 rows, three seeds would tell none apart. One
    whose p could not be small does not count (Tarone 1990); which seeds learned decides that, and the tests hold given
    that these did. Two rows whose K90 is the most that was asked are not compared: the sizes end before what would tell
    them apart, and of one that was stopped as solved the answers are less sure."""
    pairs = {
        (row.series, name): _difference(row, other)
        for row in found
        for name, other in others.items()
        if row is not other and learned(row) and learned(other) and not (holds_all(row) and holds_all(other))
    }
    known = {key: value for key, value in pairs.items() if value is not None}
    # Two of the others are compared with each other from both sides, which is one test.
    both = {(series, name): frozenset((series, others[name].series)) for series, name in known}
    adjusted = holm({both[key]: p for key, (_, p) in known.items() if p is not None})
    return {key: Versus(difference, adjusted.get(both[key])) for key, (difference, _) in known.items()}


def holds_all(row: Row) -> bool:
    """Whether the K90 of the seeds that learned is the most that was asked."""
    curves = [curve(record) for record in learned(row)]
    means = [fmean(column) for column in zip(*curves, strict=True)]
    return bool(means) and crossing(sizes(row), means).censored == "above"


def _difference(row: Row, other: Row) -> tuple[Interval, float | None] | None:
    """Compare over the seeds of both: by a paired t where every seed learned, else by drawing the seeds anew."""
    one, two = bits(row, beyond=True), bits(other, beyond=True)
    shared = set(row.seeds) & set(other.seeds)
    if not shared & one.keys() or not shared & two.keys():
        return None
    if shared <= one.keys() and shared <= two.keys():
        return paired_difference(one, two), paired_p(one, two) if len(shared) > 1 else None
    sides = [{seed: own.get(seed) for seed in shared} for own in (one, two)]
    difference, p = bootstrap_difference(*sides)
    return difference, p if least_p(len(shared)) < SIGNIFICANT else None


def best_of(found: Sequence[Row]) -> Row | None:
    """The row that recalls most, among those that carry a state of fixed size (attention is a ceiling, no rival) and
    whose rate is at no edge; where all are at one, among those."""
    rivals = [row for row in found if learned(row) and measured(row) != "attention"]
    inside = [row for row in rivals if not row.at_the_edge]
    return max(inside or rivals, key=lambda row: fmean(bits(row, beyond=True).values()), default=None)
