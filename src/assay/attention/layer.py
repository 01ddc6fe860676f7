"""A method is shown one attention layer: its queries, keys and values, and what the model lets each query see.
Attention to the keys that it keeps is computed here too: by fused kernels, or in parts where none applies."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from assay.core.errors import UserError

Turn = Callable[[Float[Tensor, "rows heads time d"], Int[Tensor, "rows time"]], Float[Tensor, "rows heads time d"]]
"""Rotates queries or keys further by so many positions each; models with rotary positions provide it."""
Queries = Float[Tensor, "rows heads time d"]
Keys = Float[Tensor, "rows kv_heads key d"]
Values = Float[Tensor, "rows kv_heads key e"]
Scores = Float[Tensor, "rows kv_heads group query key"]
Output = Float[Tensor, "rows heads time e"]
Mask = Bool[Tensor, "rows heads_or_1 query key"]
"""Keys that each query attends to: one mask for all heads, or one for each."""
Blocks = Bool[Tensor, "rows heads block block"]
"""Blocks of keys that each block of queries reads."""
Last = Int[Tensor, "rows kv_heads key"]
"""The last query that attends to each key (lifetimes.py)."""
SCORES_AT_ONCE = 2**26
"""Scores computed together where no fused kernel applies."""


@dataclass(frozen=True, eq=False)
class Call:
    """How a language model called an attention module, for methods that ask for more than queries, keys and values."""

    model: nn.Module
    module: nn.Module
    hidden: Float[Tensor, "rows time d_model"]
    rotary: tuple[Float[Tensor, "rows_or_1 time d"], ...] | None
    """Cosines and sines of the positions."""

    def __getitem__(self, rows: slice | Tensor) -> "Call":
        """Return the same call for some of the sequences."""
        every = len(self.hidden)
        rotary = self.rotary and tuple(part.expand(every, -1, -1)[rows] for part in self.rotary)
        return replace(self, hidden=self.hidden[rows], rotary=rotary)


@dataclass(frozen=True, eq=False)
class Layer:
    """One attention layer's queries, keys and values for a batch of sequences, positions already applied."""

    q: Float[Tensor, "rows heads time d"]
    k: Float[Tensor, "rows kv_heads time d"]
    v: Float[Tensor, "rows kv_heads time e"]
    mask: Bool[Tensor, "rows time time"] | None = None
    """Keys that the model itself lets each query see (padding, a sliding window); None: the past and the present."""
    index: int = 0
    """Index of the layer in the model."""
    scale: float | None = None
    """Factor of the dot products; None: 1 / sqrt(d)."""
    layers: int = 1
    """Number of layers in the model."""
    turn: Turn | None = None
    """The model's rotary positions; None: queries and keys are not rotated."""
    cap: float | None = None
    """Scores s become cap tanh(s / cap), as in Gemma 2; None: they stay."""
    sinks: Float[Tensor, " heads"] | None = None
    """Learned scores of a key without a value, one for each query head, as in gpt-oss; None: there is no such key."""
    call: Call | None = None
    """How the model called the layer; only for methods that ask for it (`asks_call`)."""
    heads: Float[Tensor, "layers kv_heads"] | None = None
    """Scores of all KV heads of the model by a calibration pass; only for methods that ask for it (`asks_heads`)."""

    def check(self) -> None:
        """Raise UserError for a model that is not causal."""
        if self.mask is not None and (self.mask & ~self.causal).any():
            raise UserError("the model's mask lets queries see later keys, and attention methods are causal.")

    def __getitem__(self, rows: slice | Tensor) -> "Layer":
        """Return the same layer for some of the sequences."""
        mask = None if self.mask is None else self.mask[rows]
        call = None if self.call is None else self.call[rows]
        return replace(self, q=self.q[rows], k=self.k[rows], v=self.v[rows], mask=mask, call=call)

    def parts(self, count: int) -> list["Layer"]:
        """Return the layer of each lane, where the rows are those of so many lanes, one after another."""
        batch, rest = divmod(self.rows, count)
        assert rest == 0, f"{self.rows} rows for {count} lanes"
        return [self[first : first + batch] for first in range(0, self.rows, batch)]

    @property
    def rows(self) -> int:
        return len(self.q)

    @property
    def time(self) -> int:
        return self.q.shape[2]

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.q.shape[1] // self.k.shape[1]

    @property
    def plain(self) -> bool:
        """Whether attention is a softmax of scaled dot products and nothing else, as fused kernels compute it."""
        return self.cap is None and self.sinks is None

    @property
    def factor(self) -> float:
        """Factor of the dot products."""
        return self.q.shape[-1] ** -0.5 if self.scale is None else self.scale

    @cached_property
    def causal(self) -> Bool[Tensor, "time time"]:
        return torch.ones(self.time, self.time, dtype=torch.bool, device=self.q.device).tril()

    @cached_property
    def visible(self) -> Bool[Tensor, "rows query key"]:
        return self.causal.expand(self.rows, -1, -1) if self.mask is None else self.mask

    def visible_between(self, first: int, end: int) -> Bool[Tensor, "rows query key"]:
        """Return which keys before `end` the queries first..end-1 see, without a mask of all queries."""
        if self.mask is not None:
            return self.mask[:, first:end, :end]
        place = torch.arange(end, device=self.q.device)
        return (place <= place[first:, None]).expand(self.rows, -1, -1)

    @cached_property
    def exists(self) -> Bool[Tensor, "rows key"]:
        """Marks keys that some query may see, that is, not padding."""
        if self.mask is None:
            return torch.ones(self.rows, self.time, dtype=torch.bool, device=self.q.device)
        return self.mask.any(dim=1)

    @cached_property
    def start(self) -> Int[Tensor, " rows"]:
        """Start of each sequence, after the padding in front of it."""
        return self.exists.int().argmax(dim=1)

    @cached_property
    def place(self) -> Int[Tensor, "rows key"]:
        """Position of each key, counted from the start of its sequence; below 0 in the padding."""
        return torch.arange(self.time, device=self.q.device) - self.start[:, None]

    @property
    def wide(self) -> torch.dtype:
        """The precision of scores: float32 at least."""
        return torch.promote_types(self.k.dtype, torch.float32)

    @cached_property
    def scores(self) -> Float[Tensor, "rows heads query key"]:
        """Scores of all queries and keys, with hidden keys at minus infinity."""
        scores = rearrange(self.scores_between(0, self.time), "r h g q k -> r (h g) q k")
        return scores.masked_fill(~self.visible[:, None], float("-inf"))

    def scores_between(self, first: int, end: int) -> Scores:
        """Return scaled dot products of queries first..end-1 with keys before `end`, capped where the model caps them,
        later keys not hidden."""
        q = rearrange(self.q[:, :, first:end], "r (h g) t d -> r h (g t) d", g=self.group).to(self.wide)
        scores = (q * self.factor) @ self.k[:, :, :end].to(self.wide).mT
        if self.cap is not None:
            scores = self.cap * torch.tanh(scores / self.cap)
        return rearrange(scores, "r h (g q) k -> r h g q k", g=self.group)

    def weights_between(self, first: int, end: int) -> Scores:
        """Return the dense attention of queries first..end-1."""
        hidden = ~self.visible_between(first, end)[:, None, None]
        return attention_weights(self.scores_between(first, end).masked_fill(hidden, float("-inf")), self)

    def unturned(self, x: Float[Tensor, "rows some_heads some d"]) -> Float[Tensor, "rows some_heads some d"]:
        """Return the first queries or keys as they were before rotary positions, counted from the row's start."""
        if self.turn is None:
            return x
        place = torch.arange(x.shape[2], device=x.device)
        return self.turn(x, -place.expand(len(x), -1))


def attention_weights(scores: Scores, layer: Layer) -> Scores:
    """Return the softmax, with hidden keys at minus infinity; 0 where a query sees nothing, as padding does. Learned
    sinks take their part of it."""
    if layer.sinks is not None:
        sinks = rearrange(layer.sinks, "(h g) -> h g 1 1", g=layer.group).to(scores.dtype)
        return torch.cat([scores, sinks.expand(*scores.shape[:-1], 1)], dim=-1).softmax(-1)[..., :-1]
    weights = scores.softmax(-1)
    return weights if layer.mask is None else weights.masked_fill((scores == float("-inf")).all(-1, keepdim=True), 0.0)


def masked_attention(layer: Layer, kept: Mask | None) -> Output:
    """Return softmax attention to what is kept (None: everything before); zeros if a query sees nothing."""
    if not layer.plain:
        return weighted_values(layer, layer.visible[:, None] if kept is None else kept)
    k, v = (repeat(x, "r h t d -> r (h g) t d", g=layer.group) for x in (layer.k, layer.v))
    return scaled_dot_product_attention(layer.q, k, v, attn_mask=kept, is_causal=kept is None, scale=layer.scale)


def weighted_values(
    layer: Layer, kept: Mask, *, far: Layer | None = None, is_far: Bool[Tensor, "rows key"] | None = None
) -> Output:
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
