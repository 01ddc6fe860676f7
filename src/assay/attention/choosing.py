"""The keys of highest worth, as many as a budget allows."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.attention.budget import Budget
from assay.attention.layer import Layer

WORTHS_AT_ONCE = 2**22  # of queries and keys, sorted together


def best(
    worth: Float[Tensor, "rows heads query key"], layer: Layer, budget: Budget
) -> Bool[Tensor, "rows heads query key"]:
    """Each query's own key and the keys of highest worth, as many as the budget allows of those in sight."""
    return best_in_parts(lambda first, end: worth[:, :, first:end, :end], layer, budget)


def best_in_parts(
    worth: Callable[[int, int], Float[Tensor, "#rows heads query key"]], layer: Layer, budget: Budget
) -> Bool[Tensor, "rows heads query key"]:
    """The same, where `worth(first, end)` says what the keys before `end` are worth to the queries first..end-1: it is
    asked for some queries at a time, since numbers for all of them would fill memory."""
    counts = torch.tensor([0] + [budget.keys(n + 1) for n in range(layer.time)], device=layer.q.device)
    allowed = counts[layer.visible.sum(-1)][:, None, :, None]
    own = torch.eye(layer.time, dtype=torch.bool, device=layer.q.device)
    kept = torch.zeros(layer.rows, layer.q.shape[1], *own.shape, dtype=torch.bool, device=own.device)
    at_once = max(1, WORTHS_AT_ONCE // (layer.rows * layer.q.shape[1] * layer.time))
    for first in range(0, layer.time, at_once):
        end = min(first + at_once, layer.time)
        given = worth(first, end).masked_fill(own[first:end, :end], float("inf")).expand(layer.rows, -1, -1, -1)
        kept[:, :, first:end, :end] = highest(given, allowed[:, :, first:end], layer.visible[:, None, first:end, :end])
    return kept


def highest(
    worth: Float[Tensor, "*rows choice"], count: Int[Tensor, "*#rows 1"], among: Bool[Tensor, "*#rows choice"]
) -> Bool[Tensor, "*rows choice"]:
    """The `count` choices of highest worth in each row; of equals, the first."""
    worth = worth.masked_fill(~among, float("-inf"))
    order = worth.argsort(dim=-1, descending=True, stable=True)
    taken = torch.arange(worth.shape[-1], device=worth.device) < count
    return torch.zeros_like(order, dtype=torch.bool).scatter(-1, order, taken.expand(order.shape)) & among
