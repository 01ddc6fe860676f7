"""This mixer is softmax attention to the keys that an attention method keeps: `sparse_attention:method=h2o:slots=32`.

    o_t = sum over s in kept(t) of softmax_s(q_t . k_s / sqrt(d)) v_s

State: what the method keeps. An Evict method carries its slots, each with a score and a position; a Pattern the keys
that a later query may see; a Select method everything. Keys attended to have a gradient, choices have none.

No paper: the methods were published for models trained with full attention, and here a model is trained with them. What
a method itself departs from stands in its own file; quest leaves no layer dense here, and positions are those of the
text, for streaming_llm too.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from assay.attention import attention
from assay.attention.base import Budget, Evict, Method, Pattern, Select, Step
from assay.attention.lanes import Lane, attended
from assay.attention.layer import Layer
from assay.attention.replay import initial_score_of, score_of
from assay.core.errors import UserError
from assay.mixers import mixers
from assay.mixers.base import MixerModule
from assay.mixers.heads import SoftmaxHeads
from assay.nn.attention import HeadProjections, head_dim
from assay.nn.axes import Keys, Queries, Token, Tokens, Values
from assay.nn.rotary import rotate

Scores = Float[Tensor, "batch kv_heads time"]
Kept = Bool[Tensor, "batch #heads query time"]


@mixers.register("sparse_attention")
@dataclass(frozen=True, kw_only=True)
class SparseAttention(SoftmaxHeads):
    """Softmax attention to the keys that an attention method keeps."""

    version: ClassVar[int] = 2

    method: Method = field(default_factory=lambda: attention.parse("streaming_llm"))
    """Attention method that chooses the keys: h2o, streaming_llm, window, oracle_topk, ..."""
    slots: int = 16
    """Keys that a query reads besides its own."""

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            self.method.as_mixer()
        except UserError as error:
            raise UserError(f"{self.name}: {error}") from None

    @property
    def budget(self) -> Budget:
        return Budget(slots=self.slots)

    def core(self, d_model: int, max_len: int) -> MixerModule:
        if max_len > self.slots:
            self.method.check(max_len, self.budget)
        method = self.method.as_mixer()
        for family, module in MODULES.items():
            if isinstance(method, family):
                return module(self.projections(d_model), method, self.budget, rotary=self.rotary)
        raise UserError(f"{self.name}: {self.method.label} belongs to no family of attention methods.")

    def core_state(self, d_model: int, length: int) -> int:
        keys, width = self.kv_heads * head_dim(d_model, self.num_heads), head_dim(d_model, self.num_heads)
        match self.method:
            case Evict():
                return min(length, self.slots) * (2 * keys + 2 * self.kv_heads) + 1
            case Pattern() as method:
                return int(still_seen(method, torch.arange(length), length, self.slots).sum()) * (2 * keys + 1) + 1
            case Select(recalls_queries=True):
                return length * (2 * keys + self.num_heads * width)
            case _:
                return length * 2 * keys


def still_seen(method: Pattern, places: Tensor, query: int, slots: int) -> Bool[Tensor, " keys"]:
    """Return which keys the query at a later position sees; a key it does not see is seen by no query after it."""
    return method.sees(torch.tensor([[query]]), places.cpu(), time=query + 1, slots=slots)[0]


class MethodAttention(MixerModule):
    """Implements the parallel form, which all families share."""

    def __init__(self, heads: HeadProjections, method: Any, budget: Budget, *, rotary: bool) -> None:
        super().__init__()
        self.heads, self.method, self.budget, self.rotary = heads, method, budget, rotary

    def forward(self, x: Tokens) -> Tokens:
        q, k, v = self.turned(x, 0)
        return self.heads.merge(_attention(q, k, v, self.kept(q, k, v)))

    def turned(self, x: Tokens, start: int) -> tuple[Queries, Keys, Values]:
        q, k, v = self.heads.split(x)
        return (rotate(q, start=start), rotate(k, start=start), v) if self.rotary else (q, k, v)

    def kept(self, q: Queries, k: Keys, v: Values) -> Kept:
        lane = Lane(self.method, self.budget)
        layer = Layer(q.detach(), k.detach(), v.detach(), index=self.depth)
        # Decisions are made in the precision of q and k, whatever the products are computed in.
        with torch.no_grad(), torch.autocast(q.device.type, enabled=False):
            return attended([lane], layer) if q.shape[2] > self.budget.cache(0) else layer.visible[:, None]


def _attention(q: Queries, k: Keys, v: Values, kept: Kept | None) -> Float[Tensor, "batch heads query e"]:
    k, v = (repeat(x, "b h t d -> b (h g) t d", g=q.shape[1] // x.shape[1]) for x in (k, v))
    return scaled_dot_product_attention(q, k, v, attn_mask=kept)


class SelectingAttention(MethodAttention):
    """Carries every key and value, and the queries where the method recalls them."""

    def init_state(self, batch: int) -> Any:
        empty = self.heads.empty_cache(batch)
        return (*empty, empty[0].new_zeros(batch, self.heads.heads, 0, self.heads.key_dim)) if self.recalls else empty

    @property
    def recalls(self) -> bool:
        return bool(self.method.recalls_queries)

    def step(self, x: Token, state: Any) -> tuple[Token, Any]:
        q, k, v = self.turned(x[:, None], state[0].shape[2])
        keys, values = torch.cat([state[0], k], dim=2), torch.cat([state[1], v], dim=2)
        queries = torch.cat([state[2], q], dim=2) if self.recalls else q.expand(-1, -1, keys.shape[2], -1)
        kept = self.kept(queries, keys, values)[:, :, -1:]
        y = self.heads.merge(_attention(q, keys, values, kept))
        return rearrange(y, "b 1 d -> b d"), (keys, values, queries) if self.recalls else (keys, values)


class PatternAttention(MethodAttention):
    """Carries the keys that the next query sees, and their positions."""

    def init_state(self, batch: int) -> Any:
        keys, values = self.heads.empty_cache(batch)
        return keys, values, keys.new_zeros(batch, 0), keys.new_zeros(batch, 1)

    def step(self, x: Token, state: Any) -> tuple[Token, Any]:
        keys, values, places, clock = state
        t = int(clock[0, 0])
        q, k, v = self.turned(x[:, None], t)
        keys, values = torch.cat([keys, k], dim=2), torch.cat([values, v], dim=2)
        places = torch.cat([places, clock], dim=1)
        y = self.heads.merge(_attention(q, keys, values, None))
        later = still_seen(self.method, places[0].long(), t + 1, self.budget.cache(0)).to(x.device)
        state = keys[:, :, later], values[:, :, later], places[:, later], clock + 1
        return rearrange(y, "b 1 d -> b d"), state


class EvictingAttention(MethodAttention):
    """Carries k slots per KV head: key, value, score and position."""

    def init_state(self, batch: int) -> Any:
        keys, values = self.heads.empty_cache(batch)
        return keys, values, keys[..., 0], keys[..., 0], keys.new_zeros(batch, 1)

    def step(self, x: Token, state: Any) -> tuple[Token, Any]:
        keys, values, score, places, clock = state
        t = int(clock[0, 0])
        q, k, v = self.turned(x[:, None], t)
        keys, values = torch.cat([keys, k], dim=2), torch.cat([values, v], dim=2)
        y = self.heads.merge(_attention(q, keys, values, None))
        with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
            new = self.initial_score(k.detach(), t)
            score, places = torch.cat([score, new], dim=2), torch.cat([places, torch.full_like(new, t)], dim=2)
            score = self.updated(q.detach(), keys.detach(), values.detach(), score)
        state = self.evicted(keys, values, score, places, t) if keys.shape[2] > self.budget.cache(0) else (
            keys, values, score, places)  # fmt: skip
        return rearrange(y, "b 1 d -> b d"), (*state, clock + 1)

    def initial_score(self, k: Float[Tensor, "batch kv_heads 1 d"], t: int) -> Float[Tensor, "batch kv_heads 1"]:
        """Return the score of the new key, which is at position t."""
        padded = torch.nn.functional.pad(k, (0, 0, t, 0))
        layer = Layer(padded, padded, padded, index=self.depth)
        return initial_score_of(self.method, layer)[..., -1:].to(k.dtype)

    def updated(self, q: Queries, keys: Keys, values: Values, score: Scores) -> Scores:
        """Return the scores after this query; the cache serves as a short sequence of its own."""
        layer = Layer(q.expand(-1, -1, keys.shape[2], -1), keys, values, index=self.depth)
        places = torch.arange(keys.shape[2], device=q.device).expand(score.shape)
        everything = torch.ones_like(places, dtype=torch.bool)[:, :, None]
        last = keys.shape[2] - 1
        step = Step(layer, places, everything, lambda: layer.scores_between(last, last + 1))
        after = score_of(self.method, score, step)
        return score if after is None else after

    def evicted(
        self, keys: Keys, values: Values, score: Scores, places: Scores, t: int
    ) -> tuple[Float[Tensor, "batch kv_heads rest d"], Float[Tensor, "batch kv_heads rest e"], Tensor, Tensor]:
        """Drop the key with the lowest score, the oldest among equals: slots are in the order of positions."""
        first, latest = self.method.protected(self.budget.cache(0))
        never = (places < first) | (places > t - latest)
        victim = score.masked_fill(never, float("inf")).argmin(-1, keepdim=True)
        rest = torch.arange(score.shape[-1] - 1, device=score.device).expand(*score.shape[:2], -1)
        rest = rest + (rest >= victim)
        wide = rest[..., None].expand(-1, -1, -1, keys.shape[-1])
        return keys.gather(2, wide), values.gather(2, wide), score.gather(2, rest), places.gather(2, rest)


MODULES: dict[type[Method], type[MethodAttention]] = {
    Evict: EvictingAttention, Pattern: PatternAttention, Select: SelectingAttention,
}  # fmt: skip
