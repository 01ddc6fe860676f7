"""The lanes of a forward pass, (method, budget) pairs, share the attention computation of one layer.

The rows of a layer are the sequences of the first lane, then those of the second, and so on. The eviction histories of
all lanes are replayed together; masks are made and used lane by lane, so that there is never more than one in memory.
"""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import torch
from einops import reduce, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.attention import flex
from assay.attention.base import BlockSelect, Evict, Method, Pattern, Prefix, Select, head_budgets
from assay.attention.budget import Budget, BudgetTooSmall
from assay.attention.checks import asked, expect, sound
from assay.attention.layer import Blocks, Last, Layer, Mask, Output, masked_attention, weighted_values
from assay.attention.lifetimes import alive, lasting, lifetimes
from assay.core.errors import UserError

MASKED_UP_TO = 8192
"""Longest sequence for which masks are written out on CUDA, as they always were: other kernels round otherwise."""


@dataclass(frozen=True)
class Lane:
    """A method with its budget, and the protocol under which it runs.

    online    (chunk=1)      evict after every token
    chunked   (chunk=C)      evict after every C tokens: up to k + C keys are resident
    prefix    (prefix=n)     n tokens attend densely, then the cache is cut down once, and nothing leaves any more
    """

    method: Method
    budget: Budget
    positions: Literal["absolute", "cache"] = "absolute"
    """Whether distances are those of the text, or those inside the cache, as in the paper of StreamingLLM."""
    chunk: int = 1
    prefix: int = 0

    def check(self, time: int) -> None:
        """Raise UserError if this combination cannot run, before anything is computed."""
        method = self.placed
        method.check(time if isinstance(method, Prefix) else self.prefix or time, self.budget)
        if self.positions == "cache" and self.in_cache(time) is None:
            raise UserError(f"{self.method.label}: positions inside the cache are for streaming_llm and window alone.")
        if self.chunk > 1 and not isinstance(self.method, Evict) and not self.is_dense(time):
            raise UserError(f"{self.method.label} evicts nothing, so the chunked protocol means nothing to it.")
        if self.prefix and isinstance(self.method, Select):
            raise UserError(f"{self.method.label} selects anew for each query, so a prefix means nothing to it.")
        if self.prefix and isinstance(self.method, Pattern) and not self.method.forgets:
            # No number of slots would help; the table says so, and the other lanes continue.
            raise BudgetTooSmall(f"not of a prefix: {self.method.label} comes back to keys that it has left out.")
        if self.prefix and self.positions == "cache":
            raise UserError("positions inside the cache are defined for the online protocol alone.")

    def fitted(self, time: int) -> "Lane":
        """Return the lane as it runs: its method fitted to the budget."""
        method = self.method.fitted(time, self.budget)
        return self if method is self.method else replace(self, method=method)

    @property
    def placed(self) -> Method:
        """Return the method; a Prefix method gets the lane's prefix in place of its own."""
        moved = isinstance(self.method, Prefix) and self.prefix > 0
        return replace(self.method, prefix=self.prefix) if moved else self.method  # type: ignore[call-arg]

    def in_cache(self, time: int) -> tuple[int, int] | None:
        """Return how many first and latest keys the cache holds, if it holds nothing else."""
        slots = self.budget.cache(time)
        return self.method.cache(slots) if isinstance(self.method, Pattern) else None

    def is_dense(self, time: int) -> bool:
        """Return whether nothing is left out, so that one lane can stand for all such lanes."""
        return _is_dense(self, time)

    def first_sparse(self, time: int) -> int:
        """Return the first query that may be denied a key: those of a dense prefix are not scored."""
        return self.placed.length(time) if isinstance(self.placed, Prefix) else min(self.prefix, time)

    def slots(self, time: int) -> int:
        return self.budget.cache(self.prefix or time)


@lru_cache(maxsize=4096)
def _is_dense(lane: Lane, time: int) -> bool:
    """Cached: the density is counted query by query, and every layer asks."""
    if lane.prefix and isinstance(lane.method, Pattern):  # even with a slot for every key, a pattern may leave some out
        query, keys = torch.tensor([[lane.prefix]]), torch.arange(lane.prefix)
        return bool(lane.method.sees(query, keys, time=lane.prefix, slots=lane.slots(time)).all())
    if lane.prefix and not isinstance(lane.method, Prefix):
        return lane.budget.cache(lane.prefix) >= lane.prefix
    return lane.placed.expected_density(time, lane.budget) == 1.0


INSTEAD: ContextVar[Callable[[Sequence[Lane], Layer], Tensor] | None] = ContextVar("instead", default=None)
"""Computes attention in place of `attend`: decoding.py, while a model generates."""


def attended(lanes: Sequence[Lane], layer: Layer) -> Bool[Tensor, "rows heads query key"]:
    """Return a mask of the keys each query attends to."""
    check(lanes, layer)
    given, masks = sound(layer.q, layer.k), []
    histories = replayed(lanes, layer, given)
    for number, (lane, part) in enumerate(zip(lanes, layer.parts(len(lanes)), strict=True)):
        with asked(lane.method, given, part):
            mask = lane_mask(lane, part, histories.get(number))
        masks.append(mask.expand(-1, layer.q.shape[1], -1, -1))
    return torch.cat(masks)


def realised_density(kept: Bool[Tensor, "rows heads query key"], layer: Layer) -> Float[Tensor, " rows"]:
    """Return keys attended over keys in sight, for each sequence."""
    return kept.sum((1, 2, 3)) / (kept.shape[1] * layer.visible.sum((1, 2)))


def replayed(lanes: Sequence[Lane], layer: Layer, given: Bool[Tensor, ""] | None = None) -> dict[int, Last]:
    """Return the lifetimes of keys in the lanes that evict, by the lane's number; lanes of one protocol are replayed
    together. `given`: whether queries and keys are finite, where scores are checked."""
    parts = layer.parts(len(lanes))
    protocols: dict[tuple[int, int], list[int]] = {}
    for number, lane in enumerate(lanes):
        if not isinstance(lane.method, Evict) or lane.method.skips(layer):
            continue
        # With a slot for every key nothing is evicted; such a lane would only widen the slots of all others.
        if lane.slots(layer.time) < (lane.prefix or layer.time):
            protocols.setdefault((lane.chunk, lane.prefix), []).append(number)
    found: dict[int, Tensor] = {}
    for (chunk, prefix), numbers in protocols.items():
        numbers.sort(key=lambda number: lanes[number].method.label)  # lanes of one method are updated together
        rows = torch.arange(layer.rows, device=layer.q.device).chunk(len(lanes))
        evicting = [(lanes[number].method, slots_of(lanes[number], parts[number])) for number in numbers]
        own = layer[torch.cat([rows[number] for number in numbers])]
        last = lifetimes(evicting, own, chunk=chunk, prefix=prefix, given=given)  # type: ignore[arg-type]
        found |= dict(zip(numbers, last.chunk(len(numbers)), strict=True))
    return found


def slots_of(lane: Lane, layer: Layer, time: int | None = None) -> int | Int[Tensor, "batch kv_heads"]:
    """Return the slots of every KV head of a lane that evicts, or those of each where it has budgets of its own.
    `time`: tokens of the whole sequence, where the layer is that of its beginning."""
    length = lane.prefix or time or layer.time
    slots = lane.budget.cache(length)
    budgets = head_budgets(lane.method, layer, length, slots)
    return slots if budgets is None else budgets


def lane_mask(lane: Lane, layer: Layer, last: Last | None) -> Mask:
    match lane.placed:
        case Pattern() as method if lane.prefix:
            return cut_once(method, layer, lane)
        case Pattern() as method if lane.positions == "cache" and layer.mask is not None:
            return method.keep(replace(layer, mask=mask_in_cache(lane, layer)), lane.budget)
        case Pattern() | Select() | Prefix() as method:
            kept = method.keep(layer, lane.budget)
            # The mask is shared by all heads, or there is one per head.
            heads = 1 if isinstance(kept, Tensor) and kept.ndim == 4 and kept.shape[1] == 1 else layer.q.shape[1]
            shape = {"rows": layer.rows, "heads": heads, "query": layer.time, "key": layer.time}
            return expect(kept, method, "keep", shape, layer.q, of="booleans")
        case Evict():
            kept = layer.visible[:, None]
            if last is None:
                return kept
            return repeat(alive(last), "r h q k -> r (h g) q k", g=layer.group) & kept
        case other:
            raise UserError(f"{other.label} belongs to none of the families Pattern, Select, Evict and Prefix.")


def cut_once(method: Pattern, layer: Layer, lane: Lane) -> Bool[Tensor, "rows 1 query key"]:
    """Return a mask of what the pattern's cache holds of the prefix at its end, and of everything since."""
    place = layer.place
    next_query = place[:, None, lane.prefix : lane.prefix + 1].clamp(min=0)
    seen = method.sees(next_query.mT, place[:, None, : lane.prefix], time=lane.prefix, slots=lane.slots(layer.time))
    kept = layer.visible[:, None].clone()
    kept[:, :, lane.prefix :, : lane.prefix] &= seen[:, None]
    return kept


def mask_in_cache(lane: Lane, layer: Layer) -> Bool[Tensor, "rows query key"]:
    """Return the model's own mask where positions are counted inside the cache: a sliding window then spans so many
    places of the cache, and sinks stay in sight while the cache is shorter than it. Only for keys of the cache."""
    first, latest = lane.in_cache(layer.time) or (0, 0)
    place = layer.place
    gone = (place - first - latest).clamp(min=0)  # places that a query, and the latest keys before it, move up
    query = torch.arange(layer.time, device=layer.q.device) - gone
    key = torch.arange(layer.time, device=layer.q.device) - gone[:, :, None] * (place >= first)[:, None, :]
    seen = layer.visible.gather(1, query[:, :, None].expand_as(layer.visible))
    return seen.gather(2, key.clamp(min=0)) & layer.causal & layer.exists[:, None]


def hidden_pairs(lane: Lane, layer: Layer, kept: Mask) -> float:
    """Count the pairs of a query and a key that the pattern keeps and the model's own window hides; padding, which the
    model hides too, is none."""
    method = lane.placed
    if layer.mask is None or lane.prefix or not (isinstance(method, Pattern) and method.when_hidden):
        return 0.0
    real = layer.causal & layer.exists[:, None] & layer.exists[:, :, None]
    return float((method.keep(replace(layer, mask=real), lane.budget) & ~kept).sum()) * layer.q.shape[1]


@dataclass
class Usage:
    """Counts what a lane has read and kept, over layers, sequences and KV heads, by queries from `since` on."""

    attended: float = 0.0
    """Query-key pairs attended to, over query heads."""
    visible: float = 0.0
    """Query-key pairs that dense attention would attend to."""
    vectors_read: float = 0.0
    """Keys and values read, and what a method reads in order to choose."""
    vectors_stored: float = 0.0
    """Vectors stored when the last query attends."""
    queries: float = 0.0
    """Queries times KV heads, summed over layers."""
    hidden: float = 0.0
    """Query-key pairs that a pattern keeps and the model's own window hides, over query heads."""

    def count(self, method: Method, layer: Layer, *, attended: float, read: float, last: float, since: int = 0) -> None:
        """Add a layer: `attended` pairs over query heads, keys over KV heads for all queries and the last."""
        kv_heads = layer.k.shape[1]
        if layer.mask is None:
            visible = float(layer.rows * (_pairs(layer.time) - _pairs(since)))
            everything = float(layer.rows * layer.time)
        else:
            visible, everything = float(layer.visible[:, since:].sum()), float(layer.visible[:, -1].sum())
        self.attended += attended
        self.visible += visible * layer.q.shape[1]
        self.vectors_read += method.vectors_read(visible * kv_heads, read)
        keeps_all = isinstance(method, Select) or (isinstance(method, Pattern) and not method.forgets)
        self.vectors_stored += method.vectors_stored(everything * kv_heads if keeps_all else last)
        self.queries += layer.rows * kv_heads * (layer.time - since)

    def count_mask(self, method: Method, layer: Layer, kept: Mask, since: int = 0) -> None:
        heads, kv_heads, kept = layer.q.shape[1], layer.k.shape[1], kept[:, :, since:]
        if kept.shape[1] == 1:
            pairs, last = float(kept.sum()), float(kept[:, :, -1].sum())
            self.count(method, layer, attended=pairs * heads, read=pairs * kv_heads, last=last * kv_heads, since=since)
            return
        # A key that several heads of a group attend to is read once.
        union = reduce(kept.byte(), "r (h g) q k -> r h q k", "max", g=layer.group)
        sums = float(kept.sum()), float(union.sum()), float(union[:, :, -1].sum())
        self.count(method, layer, attended=sums[0], read=sums[1], last=sums[2], since=since)

    def count_lifetimes(self, method: Method, layer: Layer, last: Last, since: int = 0) -> None:
        """Add a layer in which key j is read by the queries j..last_j."""
        first = torch.arange(layer.time, device=last.device).clamp(min=since)
        read = float((last - first + 1).clamp(min=0).sum())
        resident = float((last == layer.time - 1).sum())
        self.count(method, layer, attended=read * layer.group, read=read, last=resident, since=since)

    def count_blocks(self, method: BlockSelect, layer: Layer, chosen: Blocks) -> None:
        """Add a layer whose queries read their own block up to themselves, and other chosen blocks whole."""
        ends = torch.arange(chosen.shape[-1], device=chosen.device) * method.block_size
        sizes = (layer.time - ends).clamp(max=method.block_size).double()
        area = (sizes[:, None] * sizes).tril(-1) + torch.diag(sizes * (sizes + 1) / 2)
        union = reduce(chosen.byte(), "r (h g) i j -> r h i j", "max", g=layer.group)
        sums = float((chosen * area).sum()), float((union * area).sum()), float((union[:, :, -1] * sizes).sum())
        self.count(method, layer, attended=sums[0], read=sums[1], last=sums[2])


def attend(lanes: Sequence[Lane], layer: Layer, *, usage: Sequence[Usage] | None = None) -> Output:
    """Return the output of attention, lane by lane."""
    instead = INSTEAD.get()
    return attend_whole(lanes, layer, usage=usage) if instead is None else instead(lanes, layer)


def attend_whole(lanes: Sequence[Lane], layer: Layer, *, usage: Sequence[Usage] | None = None) -> Output:
    """Return the output of attention for whole sequences. On CUDA no mask is written out where a kernel can do
    without."""
    check(lanes, layer)
    given, outputs = sound(layer.q, layer.k), []
    histories = replayed(lanes, layer, given)
    for number, (lane, part) in enumerate(zip(lanes, layer.parts(len(lanes)), strict=True)):
        count = usage[number] if usage is not None else None
        last, since = histories.get(number), lane.first_sparse(layer.time)
        if layer.mask is None and lane.is_dense(layer.time):  # no mask of all queries and keys
            outputs.append(masked_attention(part, None))
            if count:
                everything = torch.full(part.k.shape[:3], layer.time - 1, device=part.k.device)
                count.count_lifetimes(lane.method, part, everything, since)
            continue
        if last is None and flex.usable(layer) and _by_lifetimes(lane, layer):
            with asked(lane.method, given, part):
                last = lasting(lane.placed, part, lane.budget)
        if last is not None and flex.usable(layer):
            outputs.append(flex.attention(part, flex.lifetime_mask(last, group=part.group)))
            if count:
                count.count_lifetimes(lane.method, part, last, since)
            continue
        if isinstance(lane.method, BlockSelect) and flex.takes_blocks(part, lane.method.block_size):
            with asked(lane.method, given, part):
                chosen = lane.method.chosen_blocks(part, lane.budget)
            outputs.append(flex.blocks_attention(part, chosen, size=lane.method.block_size))
            if count:
                count.count_blocks(lane.method, part, chosen)
            continue
        with asked(lane.method, given, part):
            kept = lane_mask(lane, part, last)
        if count:
            count.count_mask(lane.method, part, kept, since)
            count.hidden += hidden_pairs(lane, part, kept)
        if lane.positions == "cache" and not lane.is_dense(layer.time):
            outputs.append(attention_in_cache(lane, part, kept))
        else:
            outputs.append(masked_attention(part, kept))
    return torch.cat(outputs) if len(outputs) > 1 else outputs[0]


def _by_lifetimes(lane: Lane, layer: Layer) -> bool:
    """Return whether to ask for lifetimes in place of a mask. Not of a pattern that cuts down a prefix, after which
    nothing leaves."""
    cut = lane.prefix > 0 and isinstance(lane.method, Pattern)
    return layer.time > MASKED_UP_TO and lane.positions == "absolute" and not cut


def attention_in_cache(lane: Lane, layer: Layer, kept: Mask) -> Output:
    """Compute attention with distances counted inside the cache: to the latest keys they are those of the text; to the
    first ones, which stay while the text moves on, those of a query at the end of the cache."""
    first, latest = lane.in_cache(layer.time) or (0, 0)
    if first == 0:
        return masked_attention(layer, kept)  # in a window alone the distances do not change
    if layer.turn is None:
        raise UserError("positions inside the cache need a model with rotary positions. Use --positions absolute.")
    place = layer.place
    turned = layer.turn(layer.q, place.clamp(min=0, max=first + latest) - place.clamp(min=0))
    return weighted_values(layer, kept, far=replace(layer, q=turned), is_far=place < first)


def check(lanes: Sequence[Lane], layer: Layer) -> None:
    """Raise UserError for a lane that cannot run on this layer."""
    layer.check()
    for lane in lanes:
        lane.check(layer.time)


def _pairs(time: int) -> int:
    return time * (time + 1) // 2
