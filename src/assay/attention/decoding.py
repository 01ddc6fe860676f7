"""While a model generates, this holds what a lane's cache really holds: what leaves it is overwritten, and gone.

    held = [hold(lane, layer, total=T) for lane in lanes]     the prompt, in one pass: its output, and a cache of it
    output = held[0].step(layer, t)                           one token more: attend, update scores, evict

The prompt's evictions are replayed (lifetimes.py), and the cache goes on from where the replay ends. A cache has as
many slots as it ever needs, so that no token makes it grow; an empty slot has position -1. A method that evicts is
shown its cache as a short sequence of its own, and a new key as the last of a sequence of itself: so `initial_score`
must depend on a key and its position alone.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from assay.attention import flex
from assay.attention.base import Budget, Evict, Pattern, Prefix, Select, Step
from assay.attention.checks import during
from assay.attention.lanes import (
    INSTEAD,
    Lane,
    attend_whole,
    attention_in_cache,
    lane_mask,
    mask_in_cache,
    replayed,
    slots_of,
)
from assay.attention.layer import Layer, Output, attention_weights, masked_attention
from assay.attention.lifetimes import replay
from assay.attention.replay import Slots, initial_score_of, score_of
from assay.core.errors import UserError

Seen = Bool[Tensor, "rows kv_heads slots"]


def check_decodes(lane: Lane, prompt: int) -> None:
    """Raise UserError for a lane that evicts nothing, and for a prompt that is shorter than its prefix."""
    if isinstance(lane.method, Select):
        raise UserError(f"{lane.method.label} selects anew for each query and evicts nothing: it is not decoded.")
    if isinstance(lane.method, Prefix) and not lane.prefix:
        raise UserError(f"{lane.method.label} cuts down a prefix, and was given none.")
    if prompt < max(lane.prefix, lane.chunk):
        what = f"the prefix of {lane.prefix} that is cut down" if lane.prefix else f"a chunk of {lane.chunk}"
        raise UserError(f"{lane.method.label}: a prompt of {prompt} tokens is shorter than {what}.")


@dataclass
class Held(ABC):
    """What one lane holds of one layer: keys and values with their positions in the text."""

    lane: Lane
    total: int
    window: int | None
    """The model's own sliding window."""
    keys: Float[Tensor, "rows kv_heads slots d"]
    values: Float[Tensor, "rows kv_heads slots e"]
    position: Int[Tensor, "rows kv_heads slots"]

    @property
    def bytes(self) -> int:
        """Bytes of keys and values that are held per sequence."""
        return (self.keys.nbytes + self.values.nbytes) // len(self.keys)

    def step(self, layer: Layer, t: int) -> Float[Tensor, "rows heads 1 e"]:
        """Return the output of attention for token t, whose layer has this token alone, and let go of what leaves."""
        self.admit(layer, t)
        seen = self.seen(t)
        output = self.attention(layer, seen, t)
        self.release(layer, seen, t)
        return output

    @abstractmethod
    def admit(self, layer: Layer, t: int) -> None:
        """Take the key and the value of token t in."""

    def release(self, layer: Layer, seen: Seen, t: int) -> None:
        """Free the slots that token t + 1 will not see: none, unless a kind of cache says otherwise."""
        return

    def seen(self, t: int) -> Seen:
        """Return which slots query t attends to. The model's own window spans places of the cache where positions are
        counted in it."""
        seen = self.position >= 0
        if self.window is None:
            return seen
        first, gone = self._moved(t)
        moved = self.position - gone * (self.position >= first)
        return seen & (t - gone - moved < self.window)

    def _moved(self, t: int) -> tuple[int, int]:
        """Return how many first keys stay where they are, and how many places later ones have moved up by query t."""
        kept = self.lane.in_cache(self.total) if self.lane.positions == "cache" else None
        return (0, 0) if kept is None else (kept[0], max(0, t - sum(kept)))

    def as_layer(self, layer: Layer, q: Float[Tensor, "rows heads 1 d"]) -> Layer:
        """Return the cache as a sequence of its own; the one query stands for that of each slot."""
        return replace(layer, q=q.expand(-1, -1, self.keys.shape[2], -1), k=self.keys, v=self.values, mask=None)

    def attention(self, layer: Layer, seen: Seen, t: int) -> Float[Tensor, "rows heads 1 e"]:
        first, gone = self._moved(t)
        if layer.plain and not (first and gone):
            # The heads that share keys stand as queries beside each other, so that keys are not repeated for them.
            q = rearrange(layer.q, "r (h g) 1 d -> r h g d", g=layer.group)
            mixed = scaled_dot_product_attention(
                q, self.keys, self.values, attn_mask=seen[:, :, None], scale=layer.scale
            )
            return rearrange(mixed, "r h g e -> r (h g) 1 e")
        held = self.as_layer(layer, layer.q)
        scores = query_scores(held)
        if first and gone:
            if layer.turn is None:
                raise UserError("positions inside the cache need a model with rotary positions.")
            back = torch.full((layer.rows, 1), -gone, device=layer.q.device)
            far = query_scores(self.as_layer(layer, layer.turn(layer.q, back)))
            scores = torch.where((self.position < first)[:, :, None, None], far, scores)
        weights = attention_weights(scores.masked_fill(~seen[:, :, None, None], float("-inf")), held)
        mixed = weights.to(layer.v.dtype) @ self.values[:, :, None]
        return rearrange(mixed, "r h g 1 e -> r (h g) 1 e")


def query_scores(held: Layer) -> Float[Tensor, "rows kv_heads group 1 slots"]:
    """Return the scores of the query with every slot."""
    return held.scores_between(held.time - 1, held.time)


@dataclass
class Kept(Held):
    """The cache of a pattern, of a prefix that was cut down once, or of everything. New keys enter the same slot in
    every head, so that nothing is asked of the device."""

    free: deque[int]
    places: Int[Tensor, " slots"]
    """Position of the key in each slot of the first head, on the CPU; -1: free. A pattern keeps the same in every
    head."""

    def admit(self, layer: Layer, t: int) -> None:
        slot = self.free.popleft()
        self.keys[:, :, slot], self.values[:, :, slot] = layer.k[:, :, 0], layer.v[:, :, 0]
        self.position[:, :, slot], self.places[slot] = t, t

    def release(self, layer: Layer, seen: Seen, t: int) -> None:
        method = self.lane.method
        if self.lane.prefix or not isinstance(method, Pattern) or not method.forgets or self.lane.is_dense(self.total):
            return
        slots = self.lane.slots(self.total)
        later = method.sees(torch.tensor([[t + 1]]), self.places, time=self.total, slots=slots)[0]
        for slot in ((self.places >= 0) & ~later).nonzero()[:, 0].tolist():
            self.position[:, :, slot], self.places[slot] = -1, -1
            self.free.append(slot)

    def seen(self, t: int) -> Seen:
        seen, method = super().seen(t), self.lane.method
        if isinstance(method, Pattern) and not method.forgets:
            slots = self.lane.slots(self.total)
            query = torch.tensor([[t]], device=self.position.device)
            seen &= method.sees(query, self.position, time=self.total, slots=slots).view_as(seen)
        return seen


@dataclass
class Evicting(Held):
    """The cache of a method that evicts, with the scores of its keys."""

    slots: Slots

    def admit(self, layer: Layer, t: int) -> None:
        place = t % self.lane.chunk  # so many tokens have come since the last eviction
        entry = self.slots.entry[..., place : place + 1]
        for held, new in ((self.keys, layer.k), (self.values, layer.v)):
            held.scatter_(2, entry[..., None].expand(*entry.shape, held.shape[-1]), new)
        self.position.scatter_(2, entry, t)
        self.slots.score.scatter_(2, entry, self.initial_score(layer, t))

    def initial_score(self, layer: Layer, t: int) -> Float[Tensor, "rows kv_heads 1"]:
        method = self.lane.method
        assert isinstance(method, Evict)
        if type(method).initial_score is Evict.initial_score:
            return torch.zeros_like(self.slots.score[..., :1])
        q, k, v = (x.expand(-1, -1, t + 1, -1) for x in (layer.q, layer.k, layer.v))
        return initial_score_of(method, replace(layer, q=q, k=k, v=v, mask=None))[..., -1:]

    def release(self, layer: Layer, seen: Seen, t: int) -> None:
        method = self.lane.method
        assert isinstance(method, Evict)
        held, places = self.as_layer(layer, layer.q), torch.arange(seen.shape[-1], device=seen.device)
        after = score_of(
            method, self.slots.score, Step(held, places.expand_as(seen), seen[:, :, None], lambda: query_scores(held))
        )
        if after is not None:
            self.slots.score.copy_(after)
        if (t + 1) % self.lane.chunk == 0:
            self.slots.evict(t, None if self.window is None else seen)
            self.position = self.slots.position  # several that leave at once are marked in it


def hold(lane: Lane, layer: Layer, *, total: int, window: int | None = None) -> tuple[Float[Tensor, "r h t e"], Held]:
    """Return the output of attention for a prompt, and the cache after it, in a sequence of `total` tokens. With a
    chunk the prompt is a multiple of it."""
    check_decodes(lane, layer.time)
    lane = replace(lane, budget=Budget(slots=lane.slots(total)))
    method = lane.method
    if isinstance(method, Evict) and not lane.prefix and not method.skips(layer) and lane.slots(total) < total:
        return _evicting(lane, layer, total, window)
    layer.check()
    lane.check(total)
    if lane.prefix:
        kept = kept_after(lane, layer)
        output = attend_whole([lane], layer) if layer.time > lane.prefix else dense(layer)
    elif isinstance(method, Pattern) and method.forgets:
        place, query = (torch.arange(size, device=layer.q.device) for size in (layer.time, layer.time + 1))
        seen = method.sees(query[-1:, None], place, time=total, slots=lane.slots(total))
        kept = seen.expand(layer.rows, layer.k.shape[1], -1)
        output = pattern_output(lane, layer, total)
    else:
        kept = torch.ones_like(layer.k[..., 0], dtype=torch.bool)
        output = pattern_output(lane, layer, total) if isinstance(method, Pattern) else dense(layer)
    return output, _kept(lane, layer, kept, total, window)


def dense(layer: Layer) -> Output:
    return masked_attention(layer, None if layer.mask is None else layer.visible[:, None])


def pattern_output(lane: Lane, layer: Layer, total: int) -> Output:
    """Return the output for a prompt; a pattern may depend on the length of the whole sequence."""
    if lane.is_dense(total):
        return dense(layer)
    assert isinstance(lane.method, Pattern)
    in_cache, place = lane.positions == "cache", torch.arange(layer.time, device=layer.q.device)
    visible = layer.visible if layer.mask is None or not in_cache else mask_in_cache(lane, layer)
    seen = lane.method.sees(place[:, None], place, time=total, slots=lane.slots(total))
    kept = (seen & visible)[:, None]
    return attention_in_cache(lane, layer, kept) if in_cache else masked_attention(layer, kept)


def kept_after(lane: Lane, layer: Layer) -> Seen:
    """Return which keys of a prompt the next query may see, whatever it is: one token more asks. The model's own window
    does not hide any from it."""
    q, k, v = (pad(x, (0, 0, 0, 1)) for x in (layer.q, layer.k, layer.v))
    mask = None if layer.mask is None else pad(layer.mask, (0, 1, 0, 1))
    if mask is not None:
        mask[:, -1] = True
    longer = replace(layer, q=q, k=k, v=v, mask=mask)
    seen = lane_mask(lane, longer, replayed([lane], longer).get(0))[:, :, -1, :-1]
    return seen.expand(-1, layer.q.shape[1], -1)[:, :: layer.group]


def _kept(lane: Lane, layer: Layer, kept: Seen, total: int, window: int | None) -> Kept:
    """Copy what is kept of a prompt into a cache with room for what is to come."""
    count, method = kept.sum(-1), lane.method
    most = int(count.max())
    if lane.prefix or not isinstance(method, Pattern) or not method.forgets:
        room = most + total - layer.time
    else:
        queries, keys = torch.arange(layer.time, total)[:, None], torch.arange(total)
        seen = method.sees(queries, keys, time=total, slots=lane.slots(total)) & (keys <= queries)
        room = max(most + 1, int(seen.sum(-1).max()) if total > layer.time else 0)
    place = torch.arange(layer.time, device=kept.device).expand_as(kept)
    # Positions that are kept come first, in their order; heads with fewer have empty slots behind them.
    order = place.where(kept, layer.time).sort(-1).values[..., :most]
    position = pad(order.masked_fill(order == layer.time, -1), (0, room - most), value=-1)
    keys, values = (_moved_to(x, position) for x in (layer.k, layer.v))
    return Kept(lane, total, window, keys, values, position, deque(range(most, room)), position[0, 0].cpu().clone())


def _evicting(lane: Lane, layer: Layer, total: int, window: int | None) -> tuple[Tensor, Held]:
    method = lane.method
    assert isinstance(method, Evict)
    assert layer.time % lane.chunk == 0, f"a prompt of {layer.time} tokens in chunks of {lane.chunk}"
    slots = replay([(method, slots_of(lane, layer, total))], layer, chunk=lane.chunk, time=total)
    last = slots.last[..., : layer.time]
    if flex.usable(layer):
        output = flex.attention(layer, flex.lifetime_mask(last, group=layer.group))
    else:
        output = masked_attention(layer, lane_mask(lane, layer, last))
    keys, values = (_moved_to(x, slots.position) for x in (layer.k, layer.v))
    return output, Evicting(lane, total, window, keys, values, slots.position, slots)


def _moved_to(x: Float[Tensor, "rows kv_heads time d"], position: Int[Tensor, "rows kv_heads slots"]) -> Tensor:
    return x.gather(2, position.clamp(min=0)[..., None].expand(*position.shape, x.shape[-1]))


class Decoding:
    """Takes the place of attention inside `with decoding(...)`: the first call of a layer is the prompt, later ones are
    one token each."""

    def __init__(self, *, total: int, windows: Sequence[int | None]) -> None:
        self.total, self.windows = total, windows
        self.layers: dict[int, list[Held]] = {}
        self.time = 0
        """Tokens read before the present pass."""

    def __call__(self, lanes: Sequence[Lane], layer: Layer) -> Output:
        parts = layer.parts(len(lanes))
        if (held := self.layers.get(layer.index)) is not None:
            return torch.cat([own.step(part, self.time) for own, part in zip(held, parts, strict=True)])
        if self.windows and layer.index >= len(self.windows):
            raise UserError(f"layer {layer.index} attends, and only {len(self.windows)} were found in the model.")
        window = self.windows[layer.index] if self.windows else None
        found = [hold(lane, part, total=self.total, window=window) for lane, part in zip(lanes, parts, strict=True)]
        self.layers[layer.index] = [held for _, held in found]
        return torch.cat([output for output, _ in found])

    def bytes(self, lane: int) -> int:
        """Bytes of keys and values that a lane holds per sequence, in all layers."""
        return sum(held[lane].bytes for held in self.layers.values())


def decoding(*, total: int, windows: Sequence[int | None] = ()) -> AbstractContextManager[Decoding]:
    """Attend with caches inside the block. `windows`: the model's own sliding window of each layer."""
    return during(INSTEAD, Decoding(total=total, windows=windows))
