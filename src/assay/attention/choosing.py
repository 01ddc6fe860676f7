"""The keys with the highest scores are chosen, as many as a budget allows."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.attention.budget import Budget
from assay.attention.layer import Layer

SCORES_AT_ONCE = 2**22  # query-key pairs sorted together


def best(
    score: Float[Tensor, "rows heads query key"], layer: Layer, budget: Budget
) -> Bool[Tensor, "rows heads query key"]:
    """Return a mask of each query's own key and its highest-scoring keys, as many as the budget allows."""
    return best_in_parts(lambda first, end: score[:, :, first:end, :end], layer, budget)


def best_in_parts(
    score: Callable[[int, int], Float[Tensor, "#rows heads query key"]], layer: Layer, budget: Budget
) -> Bool[Tensor, "rows heads query key"]:
    """Return the same as `best`, where `score(first, end)` scores the keys before `end` for the queries first..end-1.
    It is called for some queries at a time, since scores for all of them would fill memory."""
    counts = torch.tensor([0] + [budget.keys(n + 1) for n in range(layer.time)], device=layer.q.device)
    allowed = counts[layer.visible.sum(-1)][:, None, :, None]
    own = torch.eye(layer.time, dtype=torch.bool, device=layer.q.device)
    kept = torch.zeros(layer.rows, layer.q.shape[1], *own.shape, dtype=torch.bool, device=own.device)
    at_once = max(1, SCORES_AT_ONCE // (layer.rows * layer.q.shape[1] * layer.time))
    for first in range(0, layer.time, at_once):
        end = min(first + at_once, layer.time)
        given = score(first, end).masked_fill(own[first:end, :end], float("inf")).expand(layer.rows, -1, -1, -1)
        kept[:, :, first:end, :end] = highest(given, allowed[:, :, first:end], layer.visible[:, None, first:end, :end])
    return kept


def highest(
    score: Float[Tensor, "*rows choice"], count: Int[Tensor, "*#rows 1"], among: Bool[Tensor, "*#rows choice"]
) -> Bool[Tensor, "*rows choice"]:
    """Return a mask of the `count` highest-scoring choices in each row; among equals, the first."""
    score = score.masked_fill(~among, float("-inf"))
    order = score.argsort(dim=-1, descending=True, stable=True)
    taken = torch.arange(score.shape[-1], device=score.device) < count
    return torch.zeros_like(order, dtype=torch.bool).scatter(-1, order, taken.expand(order.shape)) & among
