"""Turns similarities into distances, and scores how far two matrices of distances agree in values and in neighbours.

Neighbours are never the point itself, and every share is also given beyond chance: with k of N - 1 others near, two
unrelated matrices already share k / (N - 1) of their neighbours.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from assay.core.errors import UserError

Distances = Float[np.ndarray, "N N"]
K_VALUES = (1, 2, 3, 5, 10, 15, 20, 30)


def cosine_similarity_to_metric(similarity: Distances) -> Distances:
    """sqrt(2 (1 - s)): the distance of two vectors of length 1 with that cosine."""
    found = np.sqrt(2 * (1 - np.clip(np.asarray(similarity, dtype=np.float64), -1, 1)))
    np.fill_diagonal(found, 0)
    return found


def inner_product_to_metric(inner: Distances) -> Distances:
    """sqrt(<i,i> + <j,j> - 2 <i,j>)."""
    inner = np.asarray(inner, dtype=np.float64)
    own = np.diag(inner)
    found = np.sqrt(np.maximum(own[:, None] + own - 2 * inner, 0))
    np.fill_diagonal(found, 0)
    return found


def divergence_to_metric(divergence: Distances) -> Distances:
    """The root, which for Jensen-Shannon is a metric."""
    return np.sqrt(np.maximum(np.asarray(divergence, dtype=np.float64), 0))


def neighbours(distances: Distances, k: int) -> Int[np.ndarray, "N k"]:
    """The k nearest others of each point, the nearest first; of equals the first."""
    return _order(distances)[:, : _checked(distances, k)]


def knn_overlap(D1: Distances, D2: Distances, k: int) -> float:
    """The mean share of the k nearest that two matrices have in common."""
    return float(_common(D1, D2, k).mean() / k)


def chance_overlap(N: int, k: int) -> float:
    """The expected `knn_overlap` of unrelated matrices."""
    return k / (N - 1)


def jaccard(D1: Distances, D2: Distances, k: int) -> float:
    """The mean of |common| / |either| over points."""
    common = _common(D1, D2, k)
    return float((common / (2 * k - common)).mean())


def trustworthiness(D1: Distances, D2: Distances, k: int) -> float:
    """1 minus the penalty of false neighbours, their rank in D1 beyond k, over the largest possible (Venna and Kaski
    2001): 1 where all neighbours in D2 are neighbours in D1, 0 at the worst, for every k < N.

    The published scale 2 / (N k (2N - 3k - 1)) is that of k < N / 2; of more neighbours only N - 1 - k can be false.
    """
    N = len(D1)
    ranks = np.empty((N, N), dtype=np.int64)
    np.put_along_axis(ranks, _order(D1), np.arange(1, N)[None], axis=1)
    beyond = np.take_along_axis(ranks, neighbours(D2, k), axis=1) - k
    worst = N * _worst_penalty(N, k)
    return float(1 - np.maximum(beyond, 0).sum() / worst) if worst else 1.0


def continuity(D1: Distances, D2: Distances, k: int) -> float:
    """`trustworthiness` with the roles exchanged: are those that are near in D1 still near in D2?"""
    return trustworthiness(D2, D1, k)


def chance_trustworthiness(N: int, k: int) -> float:
    """The expected `trustworthiness` of unrelated matrices: a stranger is near with probability k / (N - 1)."""
    strangers = N - 1 - k
    worst = _worst_penalty(N, k)
    return 1 - k / (N - 1) * strangers * (strangers + 1) / 2 / worst if worst else 1.0


def beyond_chance(score: float, chance: float) -> float:
    """0 at chance, 1 at the best; 0 where chance is the best already."""
    return (score - chance) / (1 - chance) if chance < 1 else 0.0


def optimal_scale(D1: Distances, D2: Distances) -> float:
    """The alpha with the least |D1 - alpha D2|."""
    first, second = _pairs(D1), _pairs(D2)
    scale = second @ second
    return float(first @ second / scale) if scale else 0.0


def stress(D1: Distances, D2: Distances, scale: float = 1.0) -> float:
    """|D1 - scale D2| / |D1| over pairs."""
    first, second = _pairs(D1), _pairs(D2)
    size = first @ first
    return float(np.sqrt(((first - scale * second) ** 2).sum() / size)) if size else 0.0


def compare_metrics(
    D1: Any, D2: Any, name1: str = "D1", name2: str = "D2", k_values: Sequence[int] | None = None
) -> dict[str, Any]:
    """All scores of two matrices: the spec's keys, the rank correlation, and neighbour scores beyond chance."""
    D1, D2 = np.asarray(D1, dtype=np.float64), np.asarray(D2, dtype=np.float64)
    N = len(D1)
    if D1.shape != D2.shape or D1.shape != (N, N) or N < 3:
        raise UserError(f"distances of the same 3 or more points are compared, not {D1.shape} and {D2.shape}.")
    ks = [k for k in (K_VALUES if k_values is None else k_values) if 0 < k < N]
    alpha = optimal_scale(D1, D2)
    found: dict[str, Any] = {
        "name1": name1,
        "name2": name2,
        "pearson": correlation(_pairs(D1), _pairs(D2)),
        "spearman": correlation(_ranked(_pairs(D1)), _ranked(_pairs(D2))),
        "optimal_scale": alpha,
        "stress": stress(D1, D2, alpha),
        "stress_unnorm": stress(D1, D2),
        "k_values": ks,
    }
    for score in (knn_overlap, jaccard, trustworthiness, continuity):
        found[score.__name__] = [score(D1, D2, k) for k in ks]
    found["knn_overlap_chance"] = [chance_overlap(N, k) for k in ks]
    for name, chance in (
        ("knn_overlap", chance_overlap),
        ("trustworthiness", chance_trustworthiness),
        ("continuity", chance_trustworthiness),
    ):
        found[f"{name}_adjusted"] = [beyond_chance(s, chance(N, k)) for s, k in zip(found[name], ks, strict=True)]
    return found


def correlation(x: Float[np.ndarray, " pairs"], y: Float[np.ndarray, " pairs"]) -> float:
    """Pearson's; 0 where one side does not vary."""
    x, y = x - x.mean(), y - y.mean()
    scale = np.sqrt((x @ x) * (y @ y))
    return float(np.clip(x @ y / scale, -1, 1)) if scale else 0.0


def _worst_penalty(N: int, k: int) -> int:
    """The penalty of one point whose false neighbours are the farthest of all."""
    strangers = min(k, N - 1 - k)
    return sum(N - 1 - place - k for place in range(strangers))


def _common(D1: Distances, D2: Distances, k: int) -> Int[np.ndarray, " N"]:
    near1, near2 = neighbours(D1, k), neighbours(D2, k)
    return (near1[:, :, None] == near2[:, None, :]).sum(axis=(1, 2))


def _order(distances: Distances) -> Int[np.ndarray, "N others"]:
    """The others of each point by distance. The diagonal is set beyond all: with ties a point could precede itself."""
    masked = np.array(distances, dtype=np.float64)
    np.fill_diagonal(masked, np.inf)
    return np.argsort(masked, axis=1, kind="stable")[:, :-1]


def _checked(distances: Distances, k: int) -> int:
    if not 0 < k < len(distances):
        raise UserError(f"k={k}: a point among {len(distances)} has 1 to {len(distances) - 1} neighbours.")
    return k


def _pairs(distances: Distances) -> Float[np.ndarray, " pairs"]:
    return np.asarray(distances, dtype=np.float64)[np.triu_indices(len(distances), k=1)]


def _ranked(values: Float[np.ndarray, " pairs"]) -> Float[np.ndarray, " pairs"]:
    from scipy.stats import rankdata

    return rankdata(values)
