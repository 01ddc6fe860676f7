"""The measures by which the models of a sweep are compared, and their means over groups of pairs.

The first three are the spec's. The others leave out what changes no answer (entries of the forms that no input reaches,
what is added to all outputs), compare hidden units, or allow for the symmetries of addition. Each has its floors: the
same number for untrained models of the same widths, and for these models with scrambled phases, over the same pairs.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from assay.core.errors import UserError
from assay.core.grouping import grouped
from assay.metrics.intervals import Interval
from assay.report.thinning import evenly
from assay.studies.modular.files import Key, SweepResults, width_of
from assay.studies.modular.metrics.automorphisms import automorphism_similarity_matrix
from assay.studies.modular.metrics.frequency_law import Kind, law_divergences
from assay.studies.modular.metrics.permutation import Contrast, contrast, mantel
from assay.studies.modular.metrics.tensor_similarity import (
    Factors,
    activation_similarity_matrix,
    centred,
    hidden_similarity_matrices,
    logit_similarity_matrix,
    symmetric_similarity_matrix,
)

Matrix = Float[np.ndarray, "models models"]
Models = Sequence[Factors]
BANDS = 4
GOOD = 0.95
"""The validation accuracy from which this study counts a model as good."""


@dataclass(frozen=True)
class Measure:
    """One matrix, or several computed together. `slow`: a large sweep is thinned for it."""

    names: tuple[str, ...]
    compute: Callable[[Models], Sequence[Matrix]]
    slow: bool = True


def js_per_remainder(kind: Kind, n_evecs: int = 4) -> Callable[[Models], Matrix]:
    """The Jensen-Shannon divergence of two models' laws, averaged over remainders, in bits: 0 to 1."""
    return lambda models: law_divergences(models, kind, n_evecs) / (len(models[0].w_p) * np.log(2))


def measures(n_evecs: int) -> list[Measure]:
    """List all measures, by the names under which they are reported."""

    def one(name: str, compute: Callable[[Models], Matrix], *, slow: bool = True) -> Measure:
        return Measure((name,), lambda models: [compute(models)], slow)

    def of_centred(compute: Callable[..., Matrix], **options: Any) -> Callable[[Models], Matrix]:
        return lambda models: compute([centred(model) for model in models], **options)

    return [
        one("TN", symmetric_similarity_matrix, slow=False),
        one("activation", activation_similarity_matrix, slow=False),
        one("JS (bits)", js_per_remainder("eigen", n_evecs), slow=False),
        one("TN, reachable, centred", of_centred(symmetric_similarity_matrix, entries="reachable")),
        one("TN, best image", of_centred(automorphism_similarity_matrix)),
        one("activation, centred", of_centred(activation_similarity_matrix)),
        one("logit table, centred", of_centred(logit_similarity_matrix)),
        Measure(("hidden, CKA", "hidden, Procrustes"), hidden_similarity_matrices),
        one("JS of power (bits)", js_per_remainder("power")),
        one("JS of diagonal (bits)", js_per_remainder("diagonal")),
    ]


def spec_matrices(models: Models, n_evecs: int = 4) -> dict[str, Matrix]:
    """The spec's three matrices, by name."""
    quick = [measure for measure in measures(n_evecs) if not measure.slow]
    return {name: matrix for m in quick for name, matrix in zip(m.names, m.compute(models), strict=True)}


P_VALUES = ("p (width)", "p (band)", "p (|d - d'|)", "p (min)")
"""The columns of `summary` that are the p of a permutation test."""


def bands(widths: Sequence[int], count: int) -> list[int]:
    """Assign each width to one of `count` bands, with as many different widths in each."""
    distinct = sorted(set(widths))
    place = {width: i * count // len(distinct) for i, width in enumerate(distinct)}
    return [place[width] for width in widths]


def summary(
    name: str, matrix: Matrix, keys: Sequence[Key], accuracies: Sequence[float], *, permutations: int
) -> dict[str, Any]:
    """Summarise a matrix by width and by models that answer well, as one row of the table."""
    rng = np.random.default_rng(0)
    widths = [width_of(key) for key in keys]
    replicate = contrast(matrix, widths, rng=rng, permutations=permutations)
    # Quarters; of few widths fewer parts, so that each has pairs of different widths.
    parts = bands(widths, max(2, min(BANDS, len(set(widths)) // 2)))
    block = contrast(matrix, parts, rng=rng, permutations=permutations, units=widths)
    apart = np.abs(np.subtract.outer(widths, widths)).astype(np.float64)
    narrower = np.minimum.outer(widths, widths).astype(np.float64)
    means = {group: mean_over(matrix, chosen) for group, chosen in groups(accuracies).items()}
    gradient, growth = (mantel(matrix, x, rng=rng, permutations=permutations) for x in (apart, narrower))
    return {
        "measure": name,
        "models": len(keys),
        **means,
        **_titled(replicate, "same width", "other widths", "beyond (width)", "p (width)"),
        **_titled(block, "same band", "other bands", "beyond (band)", "p (band)"),
        "r with |d - d'|": gradient.r,
        "p (|d - d'|)": gradient.p,
        "r with min(d, d')": growth.r,
        "p (min)": growth.p,
    }


def _titled(found: Contrast | None, *titles: str) -> dict[str, float | None]:
    """The numbers of a contrast under their columns' titles."""
    return dict(zip(titles, astuple(found) if found else [None] * len(titles), strict=True))


def groups(accuracies: Sequence[float]) -> dict[str, np.ndarray]:
    """Pairs of models by the accuracy that both have, for the trained models and for their floors alike."""
    worse = np.minimum.outer(accuracies, accuracies)
    return {
        "all pairs": np.ones_like(worse, dtype=bool),
        f"both >= {GOOD:g}": worse >= GOOD,
        "both perfect": worse == 1,
    }


def mean_over_pairs(matrix: Matrix) -> Interval:
    """Return the mean over all pairs of different models, with its interval."""
    found = mean_over(matrix, np.ones_like(matrix, dtype=bool))
    assert found is not None, "a matrix of one model has no pairs"
    return found


def mean_over(matrix: Matrix, chosen: np.ndarray) -> Interval | None:
    """Return the mean over the chosen pairs of different models; None where none is chosen. Its 95 % interval leaves
    out a model at a time, since pairs that share a model are not independent: there is none for fewer than three."""
    chosen = chosen & ~np.eye(len(matrix), dtype=bool)
    sums, counts = np.where(chosen, matrix, 0.0).sum(axis=1), chosen.sum(axis=1)
    total, pairs, of_a_pair = sums.sum() / 2, int(counts.sum()) // 2, counts > 0
    if not pairs:
        return None
    left = (pairs - counts)[of_a_pair]
    if of_a_pair.sum() < 3 or not left.all():
        return Interval(float(total / pairs), None, None, pairs)
    return jackknife(float(total / pairs), (total - sums[of_a_pair]) / left, n=pairs)


def jackknife(whole: float, without: Sequence[float], *, n: int) -> Interval:
    """The 95 % interval of a number by what it is without each model in turn."""
    from scipy.special import stdtrit

    N = len(without)
    error = np.sqrt((N - 1) / N * ((np.asarray(without) - np.mean(without)) ** 2).sum())
    half = float(stdtrit(N - 1, 0.975) * error)
    return Interval(whole, whole - half, whole + half, n)


def by_width(matrix: Matrix, keys: Sequence[Key]) -> Iterator[dict[str, Any]]:
    """The mean over the pairs of models of two widths, never of a model with itself unless a width has but one."""
    groups = sorted(grouped(range(len(keys)), lambda place: width_of(keys[place])).items())
    for one, rows in groups:
        for other, columns in groups:
            block = matrix[np.ix_(rows, columns)]
            alone = one == other and len(rows) > 1
            values = block[~np.eye(len(rows), dtype=bool)] if alone else block
            yield {"d": one, "d'": other, "value": float(values.mean())}


def thinned(sweep: SweepResults, most: int) -> SweepResults:
    """Keep at most `most` models: whole widths, evenly chosen, the smallest and the largest among them."""
    if most <= 0 or len(sweep.models) <= most:
        return sweep
    widths = sorted({width_of(key) for key in sweep.models})
    count = most * len(widths) // len(sweep.models)
    if count < 3:
        each = -(-len(sweep.models) // len(widths))
        raise UserError(
            f"--most {most}: three widths can be compared, and there are {each} models of each: {3 * each}."
        )
    chosen = evenly(widths, count)
    return sweep.only(key for key in sweep.models if width_of(key) in chosen)
