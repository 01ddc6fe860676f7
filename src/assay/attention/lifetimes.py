"""The keys that an eviction method has kept are replayed without a forward pass of the model per token.

Under teacher forcing the queries and keys of a layer are known for all tokens, so its eviction history can be replayed
exactly, layer by layer. What is evicted never comes back, so that the history of a head is one number per key, the last
query that attended to it:

    last = 3 1 4 4 4      query  0: 0      2: 0 . 2      4: . . 2 3 4
                                 1: 0 1    3: 0 . 2 3

Rows are sequences, those of the first lane, a (method, slots) pair, first.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from assay.attention import graphed
from assay.attention.base import Evict
from assay.attention.checks import asked, look
from assay.attention.layer import Layer
from assay.attention.replay import QUERIES_AT_ONCE, Limit, Part, Slots, initial_score_of


def alive(last: Int[Tensor, "rows kv_heads key"]) -> Bool[Tensor, "rows kv_heads query key"]:
    """Return lifetimes as a mask."""
    place = torch.arange(last.shape[-1], device=last.device)
    return (place <= place[:, None]) & (place[:, None] <= last[:, :, None, :])


def lifetimes(
    lanes: Sequence[tuple[Evict, Limit]],
    layer: Layer,
    *,
    chunk: int = 1,
    prefix: int = 0,
    graph: bool | None = None,
    given: Bool[Tensor, ""] | None = None,
) -> Int[Tensor, "rows kv_heads key"]:
    """Return the last query that attends to each key, for lanes of (Evict method, slots). After every `chunk` tokens
    the cache is cut down to its slots; with a prefix only once, after so many tokens. `graph` runs tokens as steps of
    one CUDA graph, by default wherever CUDA can. `given`: see `lanes.replayed`."""
    slots = replay(lanes, layer, chunk=chunk, prefix=prefix, graph=graph, given=given)
    return slots.last[..., : layer.time]


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
    """Return what the caches hold after the layer's last token, and their history (see `lifetimes`). `time`: tokens of
    the whole sequence, where the layer is that of its beginning."""
    batch, parts, first = layer.rows // len(lanes), [], 0
    slots = Slots(lanes, layer, extra=prefix or chunk, time=time)
    for method, same in groupby(lanes, key=lambda lane: lane[0]):
        end = first + batch * len(list(same))
        parts.append(Part(method, layer[first:end], slice(first, end)))
        first = end
    initial = torch.cat([initial_score_of(part.method, part.layer) for part in parts])
    online = chunk == 1 and not prefix and layer.mask is None
    if online and (layer.q.is_cuda if graph is None else graph):
        graphed.replay(slots, parts, initial, at_once=QUERIES_AT_ONCE)
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


def spans(first: int, end: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield first..end cut at the multiples of `size`."""
    cuts = [first, *range(first - first % size + size, end, size), end]
    return pairwise(cuts)
