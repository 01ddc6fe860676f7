"""Recurrences cut time into chunks: these are the decays inside a chunk, and the state carried from one to the next."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

PerChannel = Float[Tensor, "batch heads chunks size d_key"]
Queries = Float[Tensor, "*#axes size d_key"]
States = Float[Tensor, "batch heads chunks d_key d_value"]
State = Float[Tensor, "batch heads d_key d_value"]


class Decays(NamedTuple):
    """Holds the decay factors inside each chunk: from j to i (0 where j > i), from before the first token, to after the
    last."""

    between: Float[Tensor, "batch heads chunks query key"]
    since_start: Float[Tensor, "batch heads chunks query one"]
    until_end: Float[Tensor, "batch heads chunks key one"]


def head_decay(log_decay: Float[Tensor, "batch heads chunks size"]) -> Decays:
    size = log_decay.shape[-1]
    causal = torch.ones(size, size, dtype=torch.bool, device=log_decay.device).tril()
    # Column j sums log a over j+1..i alone: see the head of nn/scan.py.
    steps = log_decay[..., None].expand(*log_decay.shape, size).masked_fill(~causal.tril(-1), 0.0)
    between = steps.cumsum(-2).masked_fill(~causal, -torch.inf).exp()
    return Decays(between, log_decay.cumsum(-1).exp()[..., None], between[..., -1, :, None])


def channel_scores(
    q: Queries, k: Queries, log_decay: PerChannel
) -> tuple[Float[Tensor, "*axes size size"], PerChannel, PerChannel]:
    """Return sum_d q_id k_jd exp(sum of log a_d over j+1..i) for j <= i, and decays since the start and to the end.
    Queries and keys may have axes in front, which are broadcast: every kind of query meets every kind of key.

    With a decay per channel the scores are no product of two matrices, unless each pair meets at a moment between j
    and i. So blocks are merged two by two: every late query meets every early key at the seam, q_i decayed since the
    seam and k_j decayed until it. log2(size) rounds, each a batched product.
    """
    size = q.shape[-2]
    scores = (q * k).sum(-1)[..., None, None]  # blocks of one token
    since, until = log_decay[..., None, :], torch.zeros_like(log_decay)[..., None, :]
    for width in (2**level for level in range(size.bit_length() - 1)):
        (_, q_late), (k_early, _) = (_halves(rearrange(x, "... (m w) d -> ... m w d", w=width)) for x in (q, k))
        (since_early, since_late), (until_early, until_late) = _halves(since), _halves(until)
        cross = products(q_late * since_late.exp(), k_early * until_early.exp())
        early, late = _halves(scores)
        scores = torch.cat(
            [torch.cat([early, torch.zeros_like(cross)], dim=-1), torch.cat([cross, late], dim=-1)], dim=-2
        )
        since = torch.cat([since_early, since_late + since_early[..., -1:, :]], dim=-2)
        until = torch.cat([until_early + since_late[..., -1:, :], until_late], dim=-2)
    return scores.squeeze(-3), since.squeeze(-3).exp(), until.squeeze(-3).exp()


def products(a: Float[Tensor, "*#axes query d"], b: Float[Tensor, "*#axes key d"]) -> Float[Tensor, "*axes query key"]:
    """Return a b^T. Copied: torch 2.13 on ARM takes 68 us instead of 22 for 64 x 32 matrices with b^T a view."""
    return a @ b.mT.contiguous()


def _halves(blocks: Float[Tensor, "*axes blocks a b"]) -> tuple[Tensor, ...]:
    """Return the blocks at even and at odd places."""
    return rearrange(blocks, "... (m two) a b -> two ... m a b", two=2).unbind()


def carry(
    product: Callable[[Tensor, Tensor], Tensor],
    transitions: Float[Tensor, "batch heads chunks rows columns"],
    writes: States,
    state: State | None,
) -> tuple[States, State]:
    """Return the state before each chunk, and after the last: S <- transition S + writes."""
    states = [torch.zeros_like(writes[:, :, 0]) if state is None else state]
    for transition, write in zip(transitions.unbind(2), writes.unbind(2), strict=True):
        states.append(product(transition, states[-1]) + write)
    return torch.stack(states[:-1], dim=2), states[-1]


def in_chunks(*tensors: Tensor, chunk: int) -> list[Tensor]:
    """Cut time into (chunks, size). Zeros fill up the last chunk: they decay, write and erase nothing."""
    time = tensors[0].shape[2]
    # A power of two, so that blocks can be merged in pairs; no longer than the sequence needs.
    size = min(chunk, 1 << (time - 1).bit_length())
    assert size & (size - 1) == 0, f"chunk={chunk} must be a power of two"
    missing = -time % size
    padded = (pad(x, (0, 0) * (x.ndim - 3) + (0, missing)) if missing else x for x in tensors)
    return [rearrange(x, "b h (n c) ... -> b h n c ...", c=size) for x in padded]


def one_chunk(v: Float[Tensor, "batch heads chunks size d"]) -> bool:
    """Return whether one chunk holds it all, training's usual case: with no state before it, none is read or moved."""
    return v.shape[2] == 1


def in_time(o: Float[Tensor, "batch heads chunks size d"], time: int) -> Float[Tensor, "batch heads time d"]:
    return rearrange(o, "b h n c d -> b h (n c) d")[:, :, :time]
