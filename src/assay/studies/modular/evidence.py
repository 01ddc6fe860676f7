"""Measures from the weights of a sweep what the spec's key findings say of them (claims.py)."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from assay.core.grouping import grouped
from assay.core.run import Record
from assay.metrics.intervals import Interval, student_t
from assay.metrics.ranks import spearman
from assay.report.thinning import evenly
from assay.studies.modular.bilinear import constructive_model
from assay.studies.modular.matrices import weights_of
from assay.studies.modular.measures import jackknife, js_per_remainder, mean_over_pairs
from assay.studies.modular.metrics.distances import get_upper_triangular
from assay.studies.modular.metrics.frequency_law import Kind, dominant_frequencies, frequency_use
from assay.studies.modular.metrics.permutation import Step, largest_step
from assay.studies.modular.metrics.spectra import shares_of
from assay.studies.modular.metrics.tensor_similarity import (
    Weights,
    activation_similarity_matrix,
    symmetric_similarity_matrix,
)
from assay.studies.modular.records import saved_sweep
from assay.studies.modular.thresholds import is_perfect, seeds_of

MOST = 60
"""Perfect models that are compared with each other, evenly chosen."""
SIDE = 8
"""Of how many widths a side of a border between blocks has one: eight of 64."""
SETS, LOUDNESS = 16, (0.5, 1.5)
"""Planted models, and how loud a planted frequency is: from, to."""


def blocks(records: Sequence[Record]) -> Interval:
    """The largest step of the similarity between neighbouring blocks of widths, among the models of a seed."""
    return student_t(_step(records, permutations=1).sizes)


def blocks_by_chance(records: Sequence[Record]) -> Interval:
    """How often permuted widths have so large a step, all seeds together."""
    return Interval(_step(records, permutations=999).p, None, None, seeds_of(records))


def _step(records: Sequence[Record], permutations: int) -> Step:
    sweeps = [saved_sweep(own) for own in grouped(records, lambda record: record.run.seed).values()]
    widths = sorted(set.intersection(*(set(sweep.models) for sweep in sweeps)))  # those where no seed diverged
    chosen = (sweep.only(widths) for sweep in sweeps)
    matrices = [symmetric_similarity_matrix(weights_of(sweep.models, sweep.P)) for sweep in chosen]
    window = max(2, len(widths) // SIDE)
    return largest_step(matrices, window=window, rng=np.random.default_rng(0), permutations=permutations)


def alike_answers(records: Sequence[Record]) -> Interval | None:
    """The mean cosine of the logits over pairs of perfect models, with the interval of leaving out one at a time."""
    return _of_perfect(records, lambda models: mean_over_pairs(activation_similarity_matrix(models)))


def divergence_follows_use(records: Sequence[Record], *, kind: Kind = "eigen") -> Interval | None:
    """The rank correlation, over pairs of perfect models, of the divergence with how differently they use frequencies:
    half the difference of the shares of the right answer's logit that each frequency gives."""

    def agreement(models: Sequence[Weights]) -> Interval:
        shares = _use(models)
        return _ranked(js_per_remainder(kind)(models), np.abs(shares[:, None] - shares).sum(axis=-1) / 2)

    return _of_perfect(records, agreement)


def divergence_follows_overlap(records: Sequence[Record]) -> Interval | None:
    """Build models that add with known sets of frequencies, as many as the perfect models use, and return the rank
    correlation of the spec's divergence with the number of frequencies that two sets do not share."""
    used = frequencies_used(records)
    if used is None:
        return None
    P, size, rng = records[0].run.options["P"], round(used.mean), np.random.default_rng(0)
    pool = rng.permutation(np.arange(1, (P + 1) // 2)).tolist()
    # Stretches of one circle of frequencies: near ones share nearly all, far ones few or none.
    starts = [place * len(pool) // SETS for place in range(SETS)]
    sets = [{pool[(start + i) % len(pool)]: rng.uniform(*LOUDNESS) for i in range(size)} for start in starts]
    # Equally loud frequencies would have equal eigenvalues, and any solver its own vectors for them.
    matrix = js_per_remainder("eigen")([constructive_model(P, chosen) for chosen in sets])
    return _ranked(matrix, np.array([[size - len(one.keys() & other.keys()) for other in sets] for one in sets]))


def frequencies_used(records: Sequence[Record]) -> Interval | None:
    """How many frequencies give 90 % of the right answer's logit, on average over perfect models."""
    return _of_perfect(records, lambda models: student_t(dominant_frequencies(_use(models)).astype(float).tolist()))


def _use(models: Sequence[Weights]) -> np.ndarray:
    """The shares of the right answer's logit that frequencies give, by model; one that takes some away gives none."""
    return np.stack([shares_of(np.maximum(frequency_use(model), 0)) for model in models])


def _ranked(matrix: np.ndarray, apart: np.ndarray) -> Interval:
    """The rank correlation of two matrices over pairs, with its interval of leaving out a model at a time."""

    def agreement(kept: np.ndarray) -> float:
        # Values that differ by rounding alone are one rank.
        one, other = (get_upper_triangular(of[np.ix_(kept, kept)]).round(6) for of in (matrix, apart))
        return float(spearman(one, other))

    every = np.arange(len(matrix))
    return jackknife(agreement(every), [agreement(np.delete(every, i)) for i in every], n=len(every))


def _of_perfect(records: Sequence[Record], measure: Callable[[Sequence[Weights]], Interval]) -> Interval | None:
    """Measure some of the perfect models, evenly chosen over widths and seeds; None for fewer than three."""
    found = [record for record in records if is_perfect(record)]
    if len(found) < 3:
        return None
    sweep = saved_sweep(evenly(found, MOST))
    return replace(measure(weights_of(sweep.models, sweep.P)), n=seeds_of(records))
