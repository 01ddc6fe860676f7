"""Attention to the keys that a mask keeps is computed here: by fused kernels, or in parts where none applies."""

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from assay.attention.layer import Layer, attention_weights

SCORES_AT_ONCE = 2**26
"""Scores computed together where no fused kernel applies."""


def masked_attention(
    layer: Layer, kept: Bool[Tensor, "rows heads_or_1 query key"] | None
) -> Float[Tensor, "rows heads time e"]:
    """Return softmax attention to what is kept (None: everything before); zeros if a query sees nothing."""
    if not layer.plain:
        return weighted_values(layer, layer.visible[:, None] if kept is None else kept)
    k, v = (repeat(x, "r h t d -> r (h g) t d", g=layer.group) for x in (layer.k, layer.v))
    return scaled_dot_product_attention(layer.q, k, v, attn_mask=kept, is_causal=kept is None, scale=layer.scale)


def weighted_values(
    layer: Layer,
    kept: Bool[Tensor, "rows heads_or_1 query key"],
    *,
    far: Layer | None = None,
    is_far: Bool[Tensor, "rows key"] | None = None,
) -> Float[Tensor, "rows heads time e"]:
    """Return attention to what is kept, some queries at a time, for what no fused kernel computes: capped scores,
    learned sinks, and keys that are `is_far`, whose scores are those of the layer `far`."""
    at_once, parts = max(1, SCORES_AT_ONCE // (layer.rows * layer.q.shape[1] * layer.time)), []
    heads = 1 if kept.shape[1] == 1 else layer.k.shape[1]  # the mask is shared by all heads, or there is one per head
    for first in range(0, layer.time, at_once):
        end = min(first + at_once, layer.time)
        scores = layer.scores_between(first, end)
        if far is not None and is_far is not None:
            scores = torch.where(is_far[:, None, None, None, :end], far.scores_between(first, end), scores)
        hidden = ~rearrange(kept[:, :, first:end, :end], "r (h g) q k -> r h g q k", h=heads)
        weights = attention_weights(scores.masked_fill(hidden, float("-inf")), layer)
        mixed = weights.to(layer.v.dtype) @ layer.v[:, :, None, :end]
        parts.append(rearrange(mixed, "r h g q e -> r (h g) q e"))
    return torch.cat(parts, dim=2)
