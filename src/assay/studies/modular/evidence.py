"""Measures from the weights of a sweep what the spec's key findings say of them (claims.py)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
import torch

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
    all_logits,
    symmetric_similarity_matrix,
    unit_products,
    weights,
)
from assay.studies.modular.records import saved_sweep
from assay.studies.modular.thresholds import is_perfect, seeds_of

MOST = 60
"""Perfect models that are compared with each other, evenly chosen."""
SIDE = 8
"""Of how many widths a side of a border between blocks has one: eight of 64."""
LIKE, NOISE = 0.95, 0.1
"""The activation similarity of planted models that answer unlike, and the noise in readouts of up to .5."""
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


def weights_follow_forms(records: Sequence[Record]) -> Interval:
    """The rank correlation, over pairs of models, of TN similarity with the mean cosine of their matched units."""
    models = _some(records)
    matched = np.eye(len(models))
    for i, j in combinations(range(len(models)), 2):
        matched[i, j] = matched_units(models[i], models[j])
    return replace(_ranked(symmetric_similarity_matrix(models), matched), n=seeds_of(records))


def matched_units(one: Weights, other: Weights) -> float:
    """The mean cosine of units, as tensors l r^T of a readout, matched one to one for the largest sum."""
    from scipy.optimize import linear_sum_assignment

    products = unit_products(one, other)
    norms = [unit_products(each, each).diagonal().sqrt() for each in (one, other)]
    cosine = (products / torch.outer(*norms)).numpy()
    return float(cosine[linear_sum_assignment(cosine, maximize=True)].mean())


def answers_follow_logits(records: Sequence[Record]) -> Interval:
    """The rank correlation, over pairs of models, of activation similarity with the share of inputs that both answer
    alike."""
    models = _some(records)
    return replace(_ranked(activation_similarity_matrix(models), alike(models)), n=seeds_of(records))


def alike(models: Sequence[Weights]) -> np.ndarray:
    """The share of inputs that two models answer alike, of all pairs."""
    answers = np.stack([all_logits(model).argmax(dim=1).numpy() for model in models])
    return np.array([(answers == row).mean(axis=1) for row in answers])


def units_of_one_form(records: Sequence[Record]) -> Interval:
    """The mean cosine of matched units of two models built by hand whose forms, and so logits, are the same."""
    one, other = (weights(constructive_model(records[0].run.options["P"], phase=phase)) for phase in (0, math.pi / 4))
    return Interval(matched_units(one, other), None, None, 1)


def answers_of_like_logits(records: Sequence[Record]) -> Interval:
    """The share of inputs that a model built by hand answers as before, once noise in its readout has left it an
    activation similarity of LIKE or more."""
    plain = weights(constructive_model(records[0].run.options["P"]))
    shares = []
    for seed in sorted({record.run.seed for record in records}):
        noise = NOISE * torch.randn(plain.w_p.shape, generator=torch.Generator().manual_seed(seed))
        pair = [plain, replace(plain, w_p=plain.w_p + noise)]
        assert activation_similarity_matrix(pair)[0, 1] >= LIKE, "the noise is too loud"
        shares.append(float(alike(pair)[0, 1]))
    return student_t(shares)


def _some(records: Sequence[Record]) -> list[Weights]:
    """Models, evenly chosen over widths and seeds."""
    sweep = saved_sweep(evenly(list(records), MOST))
    return weights_of(sweep.models, sweep.P)


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
