"""Patterns and prefixes become lifetimes here, one number per key, where a mask of all queries would fill memory.

What a cache of first and latest keys has let go, and what a prefix was cut down to, never comes back, so that the last
query of each key says everything, as for an eviction history (lifetimes.py):

    window, 2 slots        last = 2 3 4 5 5 5           key j is read until query j + 2
    prefix of 4, 2 kept    last = 3 5 5 3 5 5           of the prefix keys 1 and 2 stay

At 32,768 tokens a mask is 1 GiB, and one for each of 32 heads 32 GiB.
"""

import torch
from jaxtyping import Int
from torch import Tensor

from assay.attention.base import Budget, Method, Pattern, Prefix
from assay.attention.layer import Layer


def lasting(method: Method, layer: Layer, budget: Budget) -> Int[Tensor, "rows kv_heads key"] | None:
    """Return the last query that attends to each key, where the model itself hides nothing of the past; None for
    methods that come back to keys."""
    end, place = layer.time - 1, torch.arange(layer.time, device=layer.q.device)
    shape = layer.rows, layer.k.shape[1], layer.time
    if isinstance(method, Prefix):
        length = method.length(layer.time)
        last = place.new_full(shape, end)
        last[..., :length] = torch.where(method.kept_of_prefix(layer, budget), end, length - 1)
        return last
    held = method.cache(budget.cache(layer.time)) if isinstance(method, Pattern) else None
    if held is None:
        return None
    first, latest = held
    return torch.where(place < first, end, (place + latest).clamp(max=end)).expand(shape).contiguous()
