"""Finds the width from which on something holds: by a rule, and by a fit with an interval.

Many widths are tried, so the first that passes is often one that was lucky. The rule asks every wider width to pass
too, which one unlucky width can spoil; the fit uses all runs alike, and says how far the seeds decide.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from assay.core.run import Record

RESAMPLES = 1000
BEYOND = 1.5
"""The fit's thresholds range from the narrowest width over this to the widest times this."""
PLACES, SLOPES = 300, np.geomspace(0.5, 64, 12)


def is_perfect(record: Record) -> bool:
    """Whether it answers every test pair, which neither its training nor its recipe has seen; by a recipe that keeps
    none, the spec's, every validation pair at the end."""
    if record.status != "done":
        return False
    return bool(record.metrics["val_acc" if record.metrics["test_acc"] is None else "test_acc"] == 1)


def was_perfect(record: Record) -> bool:
    """Whether it answers every validation pair at some epoch: the spec's criterion."""
    return record.status == "done" and record.metrics["best_val_acc"] == 1


def seeds_of(records: Sequence[Record]) -> int:
    return len({record.run.seed for record in records})


def from_here_on(passed: Mapping[int, bool]) -> int | None:
    """The smallest width that passes together with every wider one; None where the widest fails.

    8: no, 12: yes, 16: no, 24: yes, 32: yes  ->  24
    """
    found = None
    for width in sorted(passed, reverse=True):
        if not passed[width]:
            break
        found = width
    return found


@dataclass(frozen=True)
class Half:
    """The width at which half of the runs pass. Outside the widths tried only the side is given."""

    width: float
    low: float | None
    high: float | None
    tried: tuple[int, int]

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return self._shown(self.width)
        return f"{self._shown(self.width)} [{self._shown(self.low)}, {self._shown(self.high)}]"

    def _shown(self, width: float) -> str:
        narrowest, widest = self.tried
        return f"< {narrowest}" if width < narrowest else f"> {widest}" if width > widest else f"{width:.1f}"


def half_pass(passed: Mapping[int, Mapping[int, bool]]) -> Half:
    """A logistic curve in log width, fitted by maximum likelihood to runs (width -> seed -> whether it passed), with
    the 95 % percentile interval over bootstrap samples of whole seeds: the widths of a seed share its split.

    The likelihood is looked up on a grid: where widths part cleanly the best slope is infinite.
    """
    widths, seeds = sorted(passed), sorted({seed for runs in passed.values() for seed in runs})
    outcomes = [[passed[width].get(seed) for width in widths] for seed in seeds]
    yes, no = (np.array([[o is wanted for o in row] for row in outcomes], dtype=float) for wanted in (True, False))
    places = np.geomspace(widths[0] / BEYOND, widths[-1] * BEYOND, PLACES)
    logits = (SLOPES[:, None, None] * np.log(np.array(widths) / places[:, None])).reshape(-1, len(widths))
    log_yes, log_no = -np.logaddexp(0, -logits), -np.logaddexp(0, logits)

    def fitted(weights: np.ndarray) -> np.ndarray:
        likelihood = weights @ yes @ log_yes.T + weights @ no @ log_no.T
        return np.asarray(places[likelihood.argmax(axis=1) % PLACES])

    (width,) = fitted(np.ones((1, len(seeds))))
    tried = widths[0], widths[-1]
    if len(seeds) == 1:
        return Half(float(width), None, None, tried)
    drawn = np.random.default_rng(0).multinomial(len(seeds), np.full(len(seeds), 1 / len(seeds)), size=RESAMPLES)
    # Few seeds draw the same samples again and again.
    samples, counts = np.unique(drawn, axis=0, return_counts=True)
    low, high = np.quantile(np.repeat(fitted(samples.astype(float)), counts), [0.025, 0.975])
    return Half(float(width), float(low), float(high), tried)
