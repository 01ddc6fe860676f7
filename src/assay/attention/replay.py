"""The keys that each query attends to, for several methods and budgets at once.

Under teacher forcing the queries and keys of a layer are known for all tokens, so its eviction history can be replayed
exactly, layer by layer, without a forward pass of the model per token. What is evicted never comes back, so that the
history of a head is one number per key, the last query that attended to it:

    last = 3 1 4 4 4      query  0: 0      2: 0 . 2      4: . . 2 3 4
                                 1: 0 1    3: 0 . 2 3

Lanes are (method, budget) pairs; rows are sequences, those of the first lane first. In each row a key lies in one of
k + 1 slots, and a new one takes the slot of the one that left: a step costs k, not T.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import torch
from einops import repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.attention.base import Budget, Evict, Layer, Method, Pattern, Prefix, Select, Step
from assay.core.errors import UserError

QUERIES_AT_ONCE = 64
"""Scores are computed for so many queries together: one GEMM, and never a time x time matrix."""


@dataclass(frozen=True)
class Lane:
    method: Method
    budget: Budget


def attended(lanes: Sequence[Lane], layer: Layer) -> Bool[Tensor, "rows heads query key"]:
    """The keys each query attends to; `layer` has the sequences of every lane, lane after lane."""
    batch, rest = divmod(layer.rows, len(lanes))
    assert rest == 0, f"{layer.rows} rows for {len(lanes)} lanes"
    layer.check()
    for lane in lanes:
        lane.method.check(layer.time, lane.budget)
    kept = layer.visible[:, None].repeat(1, layer.q.shape[1], 1, 1)
    evicting: list[tuple[Evict, int, int]] = []
    for number, lane in enumerate(lanes):
        rows = slice(number * batch, (number + 1) * batch)
        match lane.method:
            case Pattern() | Select() | Prefix() as method:
                kept[rows] = method.keep(layer[rows], lane.budget)
            case Evict() as method:
                slots = lane.budget.cache(layer.time)
                # With a slot for every key nothing leaves; left in, such a lane would widen the slots of all others.
                evicting += [(method, slots, number)] if slots < layer.time else []
            case other:
                raise UserError(f"{other.label} belongs to none of the families Pattern, Select, Evict and Prefix.")
    if evicting:
        evicting.sort(key=lambda lane: lane[0].label)  # the lanes of one method are updated as one
        numbers = torch.tensor([number for *_, number in evicting], device=layer.q.device)
        rows_of = (numbers[:, None] * batch + torch.arange(batch, device=layer.q.device)).flatten()
        part = layer[rows_of]
        last = lifetimes([(method, slots) for method, slots, _ in evicting], part)
        kept[rows_of] = repeat(alive(last), "r h q k -> r (h g) q k", g=layer.group) & part.visible[:, None]
    return kept


def realised_density(kept: Bool[Tensor, "rows heads query key"], layer: Layer) -> Float[Tensor, " rows"]:
    """Keys attended over keys in sight, for each sequence."""
    return kept.sum((1, 2, 3)) / (kept.shape[1] * layer.visible.sum((1, 2)))


def alive(last: Int[Tensor, "rows kv_heads key"]) -> Bool[Tensor, "rows kv_heads query key"]:
    """Lifetimes as a mask."""
    place = torch.arange(last.shape[-1], device=last.device)
    return (place <= place[:, None]) & (place[:, None] <= last[:, :, None, :])


def lifetimes(lanes: Sequence[tuple[Evict, int]], layer: Layer) -> Int[Tensor, "rows kv_heads key"]:
    """The last query that attends to each key, for lanes of Evict methods with so many slots."""
    batch, slots, parts, first = layer.rows // len(lanes), Slots(lanes, layer), [], 0
    for method, same in groupby(lanes, key=lambda lane: lane[0]):
        end = first + batch * len(list(same))
        parts.append(Part(method, layer[first:end], slice(first, end)))
        first = end
    arrival = torch.cat([part.arrival() for part in parts])
    for t in range(layer.time):
        slots.admit(t, arrival[:, :, t : t + 1])
        present = slots.present(t)
        for part in parts:
            part.update(t, slots, present)
        slots.evict(t, present)
    return slots.last[..., : layer.time]


class Slots:
    """The residents of every row and head of keys, what they are worth, and when each key was last attended to."""

    def __init__(self, lanes: Sequence[tuple[Evict, int]], layer: Layer) -> None:
        self.layer, shape = layer, (layer.rows, layer.k.shape[1])
        budgets = [slots for _, slots in lanes]
        protected = [method.protected(slots) for method, slots in lanes]
        self.limit, self.latest = self._per_row(budgets), self._per_row([latest for _, latest in protected])
        self.first = layer.start[:, None, None] + self._per_row([first for first, _ in protected])
        new = partial(torch.full, device=layer.q.device)
        self.position = new((*shape, min(max(budgets), layer.time) + 1), -1)
        self.worth = new(self.position.shape, 0.0, dtype=torch.promote_types(layer.k.dtype, torch.float32))
        self.entry = new((*shape, 1), 0)
        self.last = new((*shape, layer.time + 1), layer.time - 1)  # the last column takes the writes of "none left"

    def _per_row(self, values: list[int]) -> Int[Tensor, "rows 1 1"]:
        per_lane = torch.tensor(values, device=self.layer.q.device)
        return repeat(per_lane, "lane -> (lane batch) 1 1", batch=self.layer.rows // len(values))

    def admit(self, t: int, worth: Float[Tensor, "rows kv_heads 1"]) -> None:
        """The key of token t comes, into the slot that became free."""
        self.position.scatter_(-1, self.entry, t)
        self.worth.scatter_(-1, self.entry, worth)

    def present(self, t: int) -> Bool[Tensor, "rows kv_heads slots"]:
        """Slots whose resident query t attends to."""
        occupied = self.position >= 0
        if self.layer.mask is None:
            return occupied
        seen = self.layer.mask[:, t, None].expand(-1, self.position.shape[1], -1)
        return occupied & seen.gather(-1, self.position.clamp(min=0))

    def evict(self, t: int, present: Bool[Tensor, "rows kv_heads slots"]) -> None:
        """Where k + 1 slots are taken, the resident of lowest worth leaves, the oldest of equals."""
        never = (self.position < self.first) | (self.position > t - self.latest)
        worth = self.worth.masked_fill(never, float("inf")).masked_fill(~present, float("-inf"))
        worth = worth.masked_fill(self.position < 0, float("inf"))
        lowest = worth == worth.amin(-1, keepdim=True)
        victim = self.position.masked_fill(~lowest, self.layer.time).argmin(-1, keepdim=True)
        full = t >= self.limit
        self.last.scatter_(-1, self.position.gather(-1, victim).where(full, self.layer.time), t)
        self.entry = victim.where(full, t + 1)


class Part:
    """The rows of one Evict method."""

    def __init__(self, method: Evict, layer: Layer, rows: slice) -> None:
        self.method, self.layer, self.rows = method, layer, rows
        self.block: Tensor | None = None

    def arrival(self) -> Float[Tensor, "rows kv_heads time"]:
        return self.shared(self.method.arrival(self.layer))

    def update(self, t: int, slots: Slots, present: Bool[Tensor, "rows kv_heads slots"]) -> None:
        step = Step(
            self.layer, slots.position[self.rows].clamp(min=0), present[self.rows], score_all=partial(self.scores, t)
        )
        before = slots.worth[self.rows]
        after = self.method.score(before, step)
        if after is not before:
            slots.worth[self.rows] = self.shared(after)

    def shared(self, worth: Float[Tensor, "rows kv_heads places"]) -> Float[Tensor, "rows kv_heads places"]:
        """One worth for all heads, where the layer decides as a whole."""
        if self.method.granularity == "kv_head":
            return worth
        return worth.mean(1, keepdim=True).expand_as(worth)

    def scores(self, t: int) -> Float[Tensor, "rows kv_heads group key"]:
        first = t - t % QUERIES_AT_ONCE
        if self.block is None or t == first:
            self.block = self.layer.scores_between(first, min(first + QUERIES_AT_ONCE, self.layer.time))
        return self.block[:, :, :, t - first]
