"""Tests matrices of similarities by permutation: pairs share models, so no formula for independent values holds.

Models are permuted, never pairs; p is (1 + as extreme or more) / (1 + permutations), so never 0.

Models also differ in how alike they are to anything at all: where S_ij = u_i u_j and nothing else, pairs of one group
have the larger mean, by the variance of u between groups. A contrast is therefore of `beyond_strengths`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from assay.core.errors import UserError
from assay.studies.modular.metrics.distances import correlation

Square = Float[np.ndarray, "N N"]


@dataclass(frozen=True)
class Mantel:
    """The correlation of two matrices over pairs, and how often permuted models give one as large, either way."""

    r: float
    p: float


@dataclass(frozen=True)
class Contrast:
    """Means over the pairs of one group and over all other pairs, and how far they lie apart once each model's own
    strength is taken out; p: of so large a `beyond`, either way."""

    within: float
    between: float
    beyond: float
    p: float


def mantel(one: Square, other: Square, *, rng: np.random.Generator, permutations: int = 999) -> Mantel:
    """Mantel (1967)."""
    if len(one) < 3:
        raise UserError(f"{len(one)} models: matrices of 3 or more can be compared.")
    pairs = np.triu_indices(len(one), k=1)
    first = one[pairs]

    def statistic(order: Any) -> float:
        return correlation(first, other[np.ix_(order, order)][pairs])

    found = statistic(np.arange(len(one)))
    return Mantel(found, _p(found, [statistic(rng.permutation(len(one))) for _ in range(permutations)]))


def contrast(
    matrix: Square,
    groups: Sequence[Any],
    *,
    rng: np.random.Generator,
    permutations: int = 999,
    units: Sequence[Any] | None = None,
) -> Contrast | None:
    """Pairs of one group against all others; None where a side has no pair. `units` are permuted among the groups: the
    models, unless told which of them stay together. Pairs inside such a unit are then on neither side."""
    member = _numbered(range(len(matrix)) if units is None else units)
    labels = np.zeros(member.max() + 1, dtype=np.int64)
    labels[member] = _numbered(groups)
    assert (labels[member] == _numbered(groups)).all(), "a unit lies in one group"
    upper = np.triu_indices(len(matrix), k=1)
    counted = (member[:, None] != member)[upper]
    values, rest = (of[upper][counted] for of in (matrix, beyond_strengths(matrix)))

    def inside(of_unit: Any) -> Any:
        of_model = of_unit[member]
        return (of_model[:, None] == of_model)[upper][counted]

    def apart(same: Any) -> float:
        return float(rest[same].mean() - rest[~same].mean())

    same = inside(labels)
    if not same.any() or same.all():  # and so in every permutation: as many pairs of units are of one group
        return None
    found = apart(same)
    p = _p(found, [apart(inside(rng.permutation(labels))) for _ in range(permutations)])
    return Contrast(float(values[same].mean()), float(values[~same].mean()), found, p)


@dataclass(frozen=True)
class Step:
    """The largest step between neighbouring blocks, matrix by matrix; p: of so large a mean, were the order chance."""

    sizes: list[float]
    p: float


def largest_step(matrices: Sequence[Square], *, window: int, rng: np.random.Generator, permutations: int = 999) -> Step:
    """How much more alike models are within a side than across, at the border where that is most (Foote 2000, the
    checkerboard kernel): the mean of the `window` rows before the border and of those after it, each among themselves,
    over the mean between the two. Rows are ordered, here by width, and every permutation has its own best border.

    Blocks that are more alike inside by x make a step of x, one block of strong models beside weak ones of x / 2.
    Strengths that add to both sides of a border cancel, and strengths that grow slowly leave little."""
    kernels = _checkerboards(len(matrices[0]), window)

    def sizes(order: Any) -> list[float]:
        return [float((kernels @ matrix[np.ix_(order, order)].ravel()).max()) for matrix in matrices]

    found = sizes(np.arange(len(matrices[0])))
    others = [np.mean(sizes(rng.permutation(len(matrices[0])))) for _ in range(permutations)]
    return Step(found, float((1 + (np.array(others) >= np.mean(found)).sum()) / (1 + permutations)))


def _checkerboards(N: int, window: int) -> Float[np.ndarray, "borders entries"]:
    """For every border, the weights of the entries of a matrix: they sum to 1 within the two sides, to -1 across."""
    if not 2 <= window <= N // 2:
        raise UserError(f"window={window}: a side of a border among {N} widths has 2 to {N // 2} of them.")
    side = (1 - np.eye(window)) / (2 * window * (window - 1))
    across = np.full((window, window), -1 / (2 * window**2))
    kernels = np.zeros((N - 2 * window + 1, N, N))
    for start, kernel in enumerate(kernels):
        kernel[start : start + 2 * window, start : start + 2 * window] = np.block([[side, across], [across, side]])
    return kernels.reshape(len(kernels), -1)


def beyond_strengths(matrix: Square, *, steps: int = 100) -> Square:
    """The residual of S_ij after m + a_i + a_j + k a_i a_j, fitted by least squares over pairs of different models
    (Levenberg-Marquardt): one strength a_i per model, adding (k = 0) or multiplying, which is the case m = 1/k.
    The product of the strengths that add is Tukey's (1949) one degree of freedom. A diagonal of zeros. Where groups are
    ordered by strength some of what sets them apart is taken out too: what is left errs on the small side."""
    N = len(matrix)
    off = 1.0 - np.eye(N)
    S = matrix * off
    m = S.sum() / max(1, N * (N - 1))
    a, k, damping = (S.sum(axis=1) - m * (N - 1)) / max(1, N - 2), 0.0, 1e-3
    rest = _rest(S, off, a, m, k)
    for _ in range(steps):
        slope, product = off * (1 + k * a), np.outer(a, a) * off
        # The normal equations of (a, m, k) over ordered pairs: each is there twice, which changes nothing.
        normal, right = np.empty((N + 2, N + 2)), np.empty(N + 2)
        normal[:N, :N] = 2 * (np.diag((slope**2).sum(axis=1)) + slope * slope.T)
        normal[:N, N] = normal[N, :N] = 2 * slope.sum(axis=1)
        normal[:N, N + 1] = normal[N + 1, :N] = 2 * (slope * product).sum(axis=1)
        normal[N, N], normal[N + 1, N + 1] = off.sum(), (product**2).sum()
        normal[N, N + 1] = normal[N + 1, N] = product.sum()
        right[:N], right[N], right[N + 1] = 2 * (slope * rest).sum(axis=1), rest.sum(), (product * rest).sum()
        scale = damping * (normal.diagonal() + 1e-12 * normal.diagonal().max() + 1e-300)
        try:
            step = np.linalg.solve(normal + np.diag(scale), right)
        except np.linalg.LinAlgError:  # m can move into all a_i: singular, where the damping is below rounding
            damping *= 10
            continue
        tried = _rest(S, off, a + step[:N], m + step[N], k + step[N + 1])
        gained = (rest**2).sum() - (tried**2).sum()
        if gained > 0:
            a, m, k, rest, damping = a + step[:N], m + step[N], k + step[N + 1], tried, damping / 10
        else:
            damping *= 10
        if damping > 1e9 or 0 <= gained <= 1e-8 * (rest**2).sum():
            break
    # An exact fit leaves rounding errors, which are no structure.
    spread = np.abs(S - m * off).max(initial=0.0)
    return np.where(np.abs(rest) > 1e-9 * spread, rest, 0.0)


def _rest(S: Square, off: Square, a: Float[np.ndarray, " N"], m: float, k: float) -> Square:
    return S - off * (m + a[:, None] + a + k * np.outer(a, a))


def _numbered(groups: Any) -> Any:
    return np.unique(np.asarray([str(group) for group in groups]), return_inverse=True)[1]


def _p(found: float, others: Sequence[float]) -> float:
    # Permutations that change nothing must count as equal, whatever the order of the sum did to the last bit.
    extreme = np.abs(others) >= abs(found) * (1 - 1e-12)
    return float((1 + extreme.sum()) / (1 + len(others)))
