"""Measures from the weights of a sweep what the spec's key findings say of them (claims.py)."""

from collections.abc import Sequence
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
    Factors,
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
    models = _perfect(records)
    if models is None:
        return None
    return replace(mean_over_pairs(activation_similarity_matrix(models)), n=seeds_of(records))


def divergence_follows_use(records: Sequence[Record], *, kind: Kind = "eigen") -> Interval | None:
    """The rank correlation, over pairs of perfect models, of the divergence with how differently they use frequencies:
    half the difference of the shares of the right answer's logit that each frequency gives."""
    models = _perfect(records)
    if models is None:
        return None
    shares = np.stack([_use(model) for model in models])
    apart = np.abs(shares[:, None] - shares).sum(axis=-1) / 2
    return replace(_ranked(js_per_remainder(kind)(models), apart), n=seeds_of(records))


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
    models = _perfect(records)
    if models is None:
        return None
    counts = dominant_frequencies(np.stack([_use(model) for model in models]))
    return replace(student_t(counts.astype(float).tolist()), n=seeds_of(records))


def _use(model: Factors) -> np.ndarray:
    """The shares of the right answer's logit that frequencies give; one that takes some away gives none."""
    found: np.ndarray = shares_of(np.maximum(frequency_use(model), 0))
    return found


def _ranked(matrix: np.ndarray, apart: np.ndarray) -> Interval:
    """The rank correlation of two matrices over pairs, with its interval of leaving out a model at a time."""

    def agreement(kept: np.ndarray) -> float:
        # Values that differ by rounding alone are one rank.
        one, other = (get_upper_triangular(of[np.ix_(kept, kept)]).round(6) for of in (matrix, apart))
        return float(spearman(one, other))

    every = np.arange(len(matrix))
    return jackknife(agreement(every), [agreement(np.delete(every, i)) for i in every], n=len(every))


def _perfect(records: Sequence[Record]) -> list[Weights] | None:
    """Some of the perfect models, evenly chosen over widths and seeds; None where there are fewer than three."""
    found = [record for record in records if is_perfect(record)]
    if len(found) < 3:
        return None
    sweep = saved_sweep(evenly(found, MOST))
    return weights_of(sweep.models, sweep.P)
