"""While lifetimes.py replays an eviction history, this holds its state: the keys in the slots and their scores.

In each row a key lies in one of k + C slots, where C tokens come between evictions (1 online), and a new key takes the
slot of one that left: a step costs k, not T.
"""

from collections.abc import Sequence
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.attention.base import Evict, KeyScores, SlotScores, Step
from assay.attention.checks import expect
from assay.attention.layer import Layer

Time = int | Int[Tensor, ""]
"""A position in the sequence: an integer, or a counter on the device."""
QUERIES_AT_ONCE = 64
"""Scores are computed for so many queries together: one GEMM, and never a time x time matrix."""


Limit = int | Int[Tensor, "batch kv_heads"]
"""The slots of a lane: the same for every head, or those of each head of each sequence."""


class Slots:
    """The resident keys of every row and KV head, their scores, and when each key was last attended to."""

    def __init__(
        self, lanes: Sequence[tuple[Evict, Limit]], layer: Layer, *, extra: int, time: int | None = None
    ) -> None:
        """`time`: tokens of the whole sequence, where the layer is that of its beginning."""
        self.layer, shape = layer, (layer.rows, layer.k.shape[1])
        self.time = layer.time if time is None else time
        budgets = [_by_head(slots, layer.rows // len(lanes), shape[1]) for _, slots in lanes]
        protected = [
            [[method.protected(slots) for slots in heads] for heads in rows]
            for (method, _), rows in zip(lanes, budgets, strict=True)
        ]
        both = torch.tensor(protected, device=layer.q.device).flatten(0, 1)[:, :, None]
        self.first, self.latest = layer.start[:, None, None] + both[..., 0], both[..., 1]
        self.limit = torch.tensor(budgets, device=layer.q.device).flatten(0, 1)[..., None]
        most = max(slots for rows in budgets for heads in rows for slots in heads)
        new = partial(torch.full, device=layer.q.device)
        self.position = new((*shape, min(most, self.time) + extra), -1)
        self.score = new(self.position.shape, 0.0, dtype=layer.wide)
        self.entry = torch.arange(extra, device=layer.q.device).repeat(*shape, 1)
        self.lowest = self.score[..., :1].clone()
        """The lowest score seen by an eviction; NaN once any compared score was NaN."""
        self.last = new((*shape, self.time + 1), self.time - 1)  # the last column takes writes that evict nothing

    def admit(self, first: Time, score: Float[Tensor, "rows kv_heads new"]) -> None:
        """Put the keys from token `first` on into the free slots."""
        entry = self.entry[..., : score.shape[-1]]
        if score.shape[-1] == 1:
            put(self.position, entry, first)
        else:
            coming = torch.arange(score.shape[-1], device=entry.device) + first
            self.position.scatter_(-1, entry, coming.expand_as(entry))
        self.score.scatter_(-1, entry, score)

    def present(self, first: Time, end: int | None) -> Bool[Tensor, "rows kv_heads query slots"]:
        """Return which slots the queries first..end-1 attend to; without an end, query `first` alone."""
        occupied = (self.position >= 0)[:, :, None]
        # Among keys that came together, the later ones are hidden from the earlier queries.
        if self.entry.shape[-1] > 1:
            assert isinstance(first, int) and end is not None, "a clock admits one key at a time"
            queries = torch.arange(end - first, device=occupied.device)[:, None] + first
            occupied = occupied & (self.position[:, :, None] <= queries)
        if self.layer.mask is None:
            return occupied
        assert isinstance(first, int), "a clock knows no mask"
        seen = self.layer.mask[:, None, first:end].expand(-1, self.position.shape[1], -1, -1)
        return occupied & seen.gather(-1, self.position.clamp(min=0)[:, :, None].expand_as(occupied))

    def evict(self, t: Time, present: Bool[Tensor, "rows kv_heads slots"] | None) -> None:
        """Evict the keys with the lowest scores, the oldest among equals, until at most k slots are taken. `present`:
        the keys that the model lets query t see, where it hides any."""
        # An empty slot has position -1, before the first key of any sequence.
        never = (self.position < self.first) | (self.position > t - self.latest)
        score = self.score.masked_fill(never, float("inf"))
        if present is not None:  # keys hidden by the model are evicted first, protected or not
            score = score.masked_fill((self.position >= 0) & ~present, float("-inf"))
        lowest = score.amin(-1, keepdim=True)
        torch.minimum(self.lowest, lowest, out=self.lowest)
        if self.entry.shape[-1] == 1:
            self._evict_one(t, score == lowest)
        else:
            self._evict_several(t, score)

    def _evict_one(self, t: Time, lowest: Bool[Tensor, "rows kv_heads slots"]) -> None:
        victim = self.position.masked_fill(~lowest, self.time).argmin(-1, keepdim=True)
        full = t >= self.limit
        put(self.last, self.position.gather(-1, victim).where(full, self.time), t)
        self.entry.copy_(victim.where(full, t + 1))

    def _evict_several(self, t: Time, score: SlotScores) -> None:
        taken = self.position >= 0
        by_age = self.position.masked_fill(~taken, self.time).argsort(-1)
        order = by_age.gather(-1, score.gather(-1, by_age).argsort(dim=-1, stable=True))
        leaving = torch.arange(order.shape[-1], device=order.device) < taken.sum(-1, keepdim=True) - self.limit
        leaving = torch.zeros_like(taken).scatter(-1, order, leaving)
        put(self.last, self.position.where(leaving, self.time), t)
        self.position.masked_fill_(leaving, -1)
        free = (self.position >= 0).int().argsort(dim=-1, stable=True)
        self.entry = free[..., : self.entry.shape[-1]]


def _by_head(slots: Limit, batch: int, kv_heads: int) -> list[list[int]]:
    """Return the slots of each head of each sequence of a lane."""
    return [[slots] * kv_heads] * batch if isinstance(slots, int) else slots.tolist()


def put(target: Tensor, places: Tensor, value: Time) -> None:
    """Write one value into these places of the last axis."""
    target.scatter_(-1, places, value if isinstance(value, int) else value.expand_as(places))


def initial_score_of(method: Evict, layer: Layer) -> KeyScores:
    """Return the checked score of each key when it enters the cache, in the precision of decisions."""
    shape = {"rows": layer.rows, "kv_heads": layer.k.shape[1], "time": layer.time}
    found = expect(method.initial_score(layer), method, "initial_score", shape, layer.k)
    return shared(method, found.to(layer.wide))


def score_of(method: Evict, before: SlotScores, step: Step) -> SlotScores | None:
    """Return the checked score of each resident after the queries of a step; None if unchanged."""
    after = method.score(before, step)
    if after is before:
        return None
    shape = dict(zip(("rows", "kv_heads", "slots"), before.shape, strict=True))
    return shared(method, expect(after, method, "score", shape, before))


def shared(method: Evict, score: Float[Tensor, "rows kv_heads places"]) -> Float[Tensor, "rows kv_heads places"]:
    """Return the mean score for all heads, where the layer decides as a whole."""
    return score if method.granularity == "kv_head" else score.mean(1, keepdim=True).expand_as(score)


class Part:
    """The rows of one Evict method."""

    def __init__(self, method: Evict, layer: Layer, rows: slice) -> None:
        self.method, self.layer, self.rows = method, layer, rows
        self.block: Tensor | None = None
        self.clock: Tensor | None = None
        self.asked = False

    def update(
        self, first: Time, end: int | None, slots: Slots, present: Bool[Tensor, "rows kv_heads query slots"]
    ) -> None:
        step = Step(
            self.layer,
            slots.position[self.rows].clamp(min=0, max=None if end is None else end - 1),
            present[self.rows],
            score_all=partial(self.scores, first, end),
        )
        after = score_of(self.method, slots.score[self.rows], step)
        if after is not None:
            slots.score[self.rows] = after

    def scores(self, first: Time, end: int | None) -> Float[Tensor, "rows kv_heads group query key"]:
        """Return the scores of the queries first..end-1, from a block that is computed at once."""
        self.asked = True
        if self.clock is not None:
            assert self.block is not None
            return self.block.index_select(3, self.clock[None] % self.block.shape[3])
        assert isinstance(first, int) and end is not None
        start = first - first % QUERIES_AT_ONCE
        if self.block is None or first == start:
            self.block = self.layer.scores_between(start, min(start + QUERIES_AT_ONCE, self.layer.time))
        return self.block[:, :, :, first - start : end - start]

    def hold_scores(self, clock: Int[Tensor, ""], at_once: int) -> None:
        """Take the current query from `clock`, and keep scores at a fixed address: a CUDA graph needs both."""
        rows, kv_heads, time, _ = self.layer.k.shape
        shape = rows, kv_heads, self.layer.group, at_once, time
        self.clock, self.block = clock, torch.zeros(shape, dtype=self.layer.wide, device=clock.device)

    def fill_scores(self, first: int) -> None:
        """Compute the scores of the block of queries that starts here, if the method has asked for any."""
        if self.asked or first == 0:
            assert self.block is not None
            end = min(first + self.block.shape[3], self.layer.time)
            self.block[:, :, :, : end - first, :end] = self.layer.scores_between(first, end)
