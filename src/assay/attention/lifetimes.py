"""The keys that an eviction method has kept are replayed without a forward pass of the model per token.

Under teacher forcing the queries and keys of a layer are known for all tokens, so its eviction history can be replayed
exactly, layer by layer. What is evicted never comes back, so that the history of a head is one number per key, the last
query that attended to it:

    last = 3 1 4 4 4      query  0: 0      2: 0 . 2      4: . . 2 3 4
                                 1: 0 1    3: 0 . 2 3

Rows are sequences, those of the first lane, a (method, slots) pair, first. What a cache of first and latest keys has
let go, and what a prefix was cut down to, never comes back either, so that `lasting` gives their lifetimes, where a
mask of all queries would fill memory (1 GiB at 32,768 tokens, and one for each of 32 heads 32 GiB):

    window, 2 slots        last = 2 3 4 5 5 5           key j is read until query j + 2
    prefix of 4, 2 kept    last = 3 5 5 3 5 5           of the prefix keys 1 and 2 stay
"""

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from assay.attention.base import Budget, Evict, Method, Pattern, Prefix
from assay.attention.checks import asked, look
from assay.attention.layer import Last, Layer
from assay.attention.replay import QUERIES_AT_ONCE, Limit, Part, Slots, initial_score_of
from assay.nn.capture import Graphs


def alive(last: Last) -> Bool[Tensor, "rows kv_heads query key"]:
    """Return lifetimes as a mask."""
    place = torch.arange(last.shape[-1], device=last.device)
    return (place <= place[:, None]) & (place[:, None] <= last[:, :, None, :])


def lifetimes(lanes: Sequence[tuple[Evict, Limit]], layer: Layer, **protocol: Any) -> Last:
    """Return the last query that attends to each key, under a protocol of `replay`."""
    return replay(lanes, layer, **protocol).last[..., : layer.time]


@torch.no_grad()  # which key leaves has no gradient, and the steps work in place
def replay(
    lanes: Sequence[tuple[Evict, Limit]],
    layer: Layer,
    *,
    chunk: int = 1,
    prefix: int = 0,
    graph: bool | None = None,
    given: Bool[Tensor, ""] | None = None,
    time: int | None = None,
) -> Slots:
    """Return what the caches of lanes of (Evict method, slots) hold after the layer's last token, and their history.
    After every `chunk` tokens a cache is cut down to its slots; with a prefix only once, after so many tokens. `graph`
    runs tokens as steps of one CUDA graph, by default wherever CUDA can. `given`: see `lanes.replayed`. `time`: tokens
    of the whole sequence, where the layer is that of its beginning."""
    batch, parts, first = layer.rows // len(lanes), [], 0
    slots = Slots(lanes, layer, extra=prefix or chunk, time=time)
    for method, same in groupby(lanes, key=lambda lane: lane[0]):
        end = first + batch * len(list(same))
        parts.append(Part(method, layer[first:end], slice(first, end)))
        first = end
    initial = torch.cat([initial_score_of(part.method, part.layer) for part in parts])
    online = chunk == 1 and not prefix and layer.mask is None
    if online and (layer.q.is_cuda if graph is None else graph):
        _replay_graph(slots, parts, initial)
    else:
        # After the prefix nothing is evicted.
        for first, end in [(0, prefix)] if prefix else spans(0, layer.time, chunk):
            slots.admit(first, initial[:, :, first:end])
            for here, there in spans(first, end, QUERIES_AT_ONCE):
                present = slots.present(here, there)
                for part in parts:
                    part.update(here, there, slots, present)
            slots.evict(end - 1, None if layer.mask is None else present[:, :, -1])
    for part in parts:
        with asked(part.method, given):
            look(slots.lowest[part.rows])
    return slots


def _replay_graph(slots: Slots, parts: Sequence[Part], initial: Float[Tensor, "rows kv_heads time"]) -> None:
    """Replay every token as one CUDA graph, launched in place of some fifty small kernels. The history is the same, to
    the bit; the clock is a tensor, so that the same graph serves every token."""
    clock = torch.zeros((), dtype=torch.long, device=initial.device)
    for part in parts:
        part.hold_scores(clock, QUERIES_AT_ONCE)

    def step() -> None:
        slots.admit(clock, initial.index_select(-1, clock[None]))
        present = slots.present(clock, None)
        for part in parts:
            part.update(clock, None, slots, present)
        slots.evict(clock, None)  # a graph is replayed only where the model hides nothing
        clock.add_(1)

    graphs = Graphs(initial.is_cuda)
    for t in range(initial.shape[-1]):
        if t % QUERIES_AT_ONCE == 0:
            for part in parts:
                part.fill_scores(t)
        graphs.play("token", step)


def spans(first: int, end: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield first..end cut at the multiples of `size`."""
    cuts = [first, *range(first - first % size + size, end, size), end]
    return pairwise(cuts)


def lasting(method: Method, layer: Layer, budget: Budget) -> Last | None:
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
