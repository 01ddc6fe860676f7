"""Turns similarities into distances, and scores how far two matrices of distances agree in values and in neighbours.

Neighbours are never the point itself, and every share is also given beyond chance: with k of N - 1 others near, two
unrelated matrices already share k / (N - 1) of their neighbours. The names are the spec's.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from assay.core.errors import UserError

Distances = Float[np.ndarray, "N N"]
K_VALUES = (1, 2, 3, 5, 10, 15, 20, 30)


def cosine_similarity_to_metric(sim_mat: Distances) -> Distances:
    """sqrt(2 (1 - s)): the distance of two vectors of length 1 with that cosine."""
    return _apart(2 * (1 - np.clip(np.asarray(sim_mat, dtype=np.float64), -1, 1)))


def inner_product_to_metric(inner_mat: Distances) -> Distances:
    """sqrt(<i,i> + <j,j> - 2 <i,j>)."""
    inner = np.asarray(inner_mat, dtype=np.float64)
    own = np.diag(inner)
    return _apart(own[:, None] + own - 2 * inner)


def divergence_to_metric(div_mat: Distances) -> Distances:
    """The root, which for Jensen-Shannon is a metric."""
    return _apart(np.asarray(div_mat, dtype=np.float64))


def _apart(squares: Distances) -> Distances:
    found = np.sqrt(np.maximum(squares, 0))
    np.fill_diagonal(found, 0)
    return found


def get_knn_indices(D: Distances, k: int) -> Int[np.ndarray, "N k"]:
    """The k nearest others of each point, the nearest first; of equals the first."""
    if not 0 < k < len(D):
        raise UserError(f"k={k}: a point among {len(D)} has 1 to {len(D) - 1} neighbours.")
    return _order(D)[:, :k]


def compute_knn_overlap(D1: Distances, D2: Distances, k: int) -> float:
    """The mean share of the k nearest that two matrices have in common."""
    return float(_common(D1, D2, k).mean() / k)


def chance_overlap(N: int, k: int) -> float:
    """The expected `compute_knn_overlap` of unrelated matrices."""
    return k / (N - 1)


def compute_jaccard_index(D1: Distances, D2: Distances, k: int) -> float:
    """The mean of |common| / |either| over points."""
    common = _common(D1, D2, k)
    return float((common / (2 * k - common)).mean())


def compute_trustworthiness(D_high: Distances, D_low: Distances, k: int) -> float:
    """1 minus the penalty of false neighbours, their rank in D_high beyond k, over the largest possible (Venna and
    Kaski 2001): 1 where all neighbours in D_low are neighbours in D_high, 0 at the worst, for every k < N.

    The published scale 2 / (N k (2N - 3k - 1)) is that of k < N / 2; of more neighbours only N - 1 - k can be false.
    """
    N = len(D_high)
    ranks = np.empty((N, N), dtype=np.int64)
    np.put_along_axis(ranks, _order(D_high), np.arange(1, N)[None], axis=1)
    beyond = np.take_along_axis(ranks, get_knn_indices(D_low, k), axis=1) - k
    worst = N * _worst_penalty(N, k)
    return float(1 - np.maximum(beyond, 0).sum() / worst) if worst else 1.0


def compute_continuity(D_high: Distances, D_low: Distances, k: int) -> float:
    """`compute_trustworthiness` with the roles exchanged: are those that are near in D_high still near in D_low?"""
    return compute_trustworthiness(D_low, D_high, k)


def chance_trustworthiness(N: int, k: int) -> float:
    """The expected `compute_trustworthiness` of unrelated matrices: a stranger is near with probability k / (N - 1)."""
    strangers = N - 1 - k
    worst = _worst_penalty(N, k)
    return 1 - k / (N - 1) * strangers * (strangers + 1) / 2 / worst if worst else 1.0


def beyond_chance(score: float, chance: float) -> float:
    """0 at chance, 1 at the best; 0 where chance is the best already."""
    return (score - chance) / (1 - chance) if chance < 1 else 0.0


def compute_optimal_scale(D: Distances, D_prime: Distances) -> float:
    """The alpha with the least |D - alpha D'|."""
    first, second = get_upper_triangular(D), get_upper_triangular(D_prime)
    scale = second @ second
    return float(first @ second / scale) if scale else 0.0


def compute_stress(D: Distances, D_prime: Distances, normalize: bool = True, *, scale: float | None = None) -> float:
    """|D - alpha D'| / |D| over pairs: alpha is the best there is, 1 without `normalize`, or the given scale."""
    if scale is None:
        scale = compute_optimal_scale(D, D_prime) if normalize else 1.0
    first, second = get_upper_triangular(D), get_upper_triangular(D_prime)
    size = first @ first
    return float(np.sqrt(((first - scale * second) ** 2).sum() / size)) if size else 0.0


def compare_metrics(
    D1: Any,
    D2: Any,
    name1: str = "D1",
    name2: str = "D2",
    k_values: Sequence[int] | None = None,
    *,
    k: int | None = None,
) -> dict[str, Any]:
    """All scores of two matrices: the spec's keys, the rank correlation, and neighbour scores beyond chance. `k` is
    one number of neighbours instead of several."""
    from scipy.stats import rankdata

    D1, D2 = np.asarray(D1, dtype=np.float64), np.asarray(D2, dtype=np.float64)
    N = len(D1)
    if D1.shape != D2.shape or D1.shape != (N, N) or N < 3:
        raise UserError(f"distances of the same 3 or more points are compared, not {D1.shape} and {D2.shape}.")
    asked = [k] if k is not None else K_VALUES if k_values is None else k_values
    ks = [k for k in asked if 0 < k < N]
    pairs = get_upper_triangular(D1), get_upper_triangular(D2)
    found: dict[str, Any] = {
        "name1": name1,
        "name2": name2,
        "pearson": correlation(*pairs),
        "spearman": correlation(*map(rankdata, pairs)),
        "optimal_scale": compute_optimal_scale(D1, D2),
        "stress": compute_stress(D1, D2),
        "stress_unnorm": compute_stress(D1, D2, normalize=False),
        "k_values": ks,
    }
    for name, score, chance in (
        ("knn_overlap", compute_knn_overlap, chance_overlap),
        ("jaccard", compute_jaccard_index, None),
        ("trustworthiness", compute_trustworthiness, chance_trustworthiness),
        ("continuity", compute_continuity, chance_trustworthiness),
    ):
        found[name] = [score(D1, D2, k) for k in ks]
        if chance:
            found[f"{name}_adjusted"] = [beyond_chance(s, chance(N, k)) for s, k in zip(found[name], ks, strict=True)]
    return found | {"knn_overlap_chance": [chance_overlap(N, k) for k in ks]}


def print_comparison_results(results: Mapping[str, Any]) -> None:
    """Print the result of `compare_metrics`."""
    print(f"{results['name1']} and {results['name2']}")
    for name in ("pearson", "spearman", "optimal_scale", "stress", "stress_unnorm"):
        print(f"  {name:<16} {results[name]:.4f}")
    columns = ("knn_overlap", "knn_overlap_chance", "jaccard", "trustworthiness", "continuity")
    print(f"  {'k':<4}" + "".join(f"{name:>20}" for name in columns))
    for k, *scores in zip(results["k_values"], *(results[name] for name in columns), strict=True):
        print(f"  {k:<4}" + "".join(f"{score:>20.4f}" for score in scores))


def get_upper_triangular(mat: Any, k: int = 1) -> Float[np.ndarray, " pairs"]:
    """The entries above the diagonal, or from the k-th diagonal on: every pair once."""
    values = np.asarray(mat, dtype=np.float64)
    return values[np.triu_indices(len(values), k=k)]


def pearson_correlation(D1: Any, D2: Any) -> float:
    """Pearson's correlation over the pairs of two matrices, or of two vectors."""
    first, second = (np.asarray(x, dtype=np.float64) for x in (D1, D2))
    if first.ndim == 2:
        first, second = get_upper_triangular(first), get_upper_triangular(second)
    return correlation(first, second)


def correlation(x: Float[np.ndarray, " pairs"], y: Float[np.ndarray, " pairs"]) -> float:
    """Pearson's; 0 where one side does not vary."""
    x, y = x - x.mean(), y - y.mean()
    scale = np.sqrt((x @ x) * (y @ y))
    return float(np.clip(x @ y / scale, -1, 1)) if scale else 0.0


def _worst_penalty(N: int, k: int) -> int:
    """The penalty of one point whose false neighbours are the farthest of all."""
    return sum(N - 1 - place - k for place in range(min(k, N - 1 - k)))


def _common(D1: Distances, D2: Distances, k: int) -> Int[np.ndarray, " N"]:
    near1, near2 = get_knn_indices(D1, k), get_knn_indices(D2, k)
    return (near1[:, :, None] == near2[:, None, :]).sum(axis=(1, 2))


def _order(distances: Distances) -> Int[np.ndarray, "N others"]:
    """The others of each point by distance. The diagonal is set beyond all: with ties a point could precede itself."""
    masked = np.array(distances, dtype=np.float64)
    np.fill_diagonal(masked, np.inf)
    return np.argsort(masked, axis=1, kind="stable")[:, :-1]
