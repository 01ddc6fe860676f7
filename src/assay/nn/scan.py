"""Recurrences with a matrix for a state are computed in chunks: products inside a chunk, a short loop over the chunks.

    outer   S_t = diag(a_t) S_{t-1} + k_t v_t^T                      (Yang et al. 2023; scalar a_t: Dao and Gu 2024)
    delta   S_t = a_t (I - b_t k_t k_t^T) S_{t-1} + b_t k_t v_t^T    (Yang et al. 2024, 2025)
            o_t = scale * S_t^T q_t

S is (d_key, d_value). The decay comes as log a_t <= 0, one per key channel or, cheaper, one per head. Every scan takes
the state before its first token and gives the state after its last. The plain loops are the oracles of the scans'
tests and, over one token, the `step` of the mixers. Autocast is off inside, and half precision becomes float32.

Decays enter only as exp(sum of log a over a stretch of time), and the sum is added up over that very stretch: nothing
positive is exponentiated, and a decay near 1 after one near 0 keeps its digits, which the difference of two long
cumulative sums would lose.
"""

from collections.abc import Callable
from functools import partial, wraps
from importlib import import_module
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

CHUNK = 64

Keys = Float[Tensor, "batch #heads time d_key"]
Values = Float[Tensor, "batch heads time d_value"]
PerHead = Float[Tensor, "batch heads time"]
PerChannel = Float[Tensor, "batch heads time d_key"]
MatrixState = Float[Tensor, "batch heads d_key d_value"]
Decay = PerHead | PerChannel
Start = MatrixState | None
"""The state before the first token; None: zeros."""
Scanned = tuple[Values, MatrixState]
"""What is read at each token, and the state after the last."""

P = ParamSpec("P")
R = TypeVar("R")


def in_float32(function: Callable[P, R]) -> Callable[P, R]:
    """Turn autocast off and make every tensor at least float32: a recurrence adds up the rounding of all its steps."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        device = next(x.device.type for x in args if isinstance(x, Tensor))
        with torch.autocast(device, enabled=False):
            return function(*map(_single, args), **{name: _single(x) for name, x in kwargs.items()})

    return run


backend = "torch"  # or "fla": nn/fla.py. A plain global, for torch.compile cannot trace a ContextVar.


def by_backend(scan: Callable[P, R]) -> Callable[P, R]:
    """Return a function that runs the scan as written here, or the function of its name in the backend's module."""

    @wraps(scan)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        chosen = scan if backend == "torch" else getattr(import_module(f"assay.nn.{backend}"), scan.__name__)
        return chosen(*args, **kwargs)

    return run


@in_float32
def unit(x: Float[Tensor, "*axes d"]) -> Float[Tensor, "*axes d"]:
    """Return x / |x| along the last axis; the constant keeps the gradient finite at 0."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


@in_float32
def outer_loop(q: Keys, k: Keys, v: Values, log_decay: Decay, *, state: Start = None, scale: float = 1.0) -> Scanned:
    """S_t = diag(a_t) S_{t-1} + k_t v_t^T, o_t = scale * S_t^T q_t, one token after another."""
    s = _zero_state(k, v) if state is None else state
    decay = torch.exp(log_decay if log_decay.ndim == 4 else log_decay[..., None])
    outputs = []
    for q_t, k_t, v_t, a_t in zip(*(x.unbind(2) for x in (q, k, v, decay)), strict=True):
        s = a_t[..., None] * s + k_t[..., None] * v_t[..., None, :]
        outputs.append(scale * (q_t[..., None, :] @ s).squeeze(-2))
    return torch.stack(outputs, dim=2), s


@by_backend
@in_float32
def outer_scan(
    q: Keys, k: Keys, v: Values, log_decay: Decay, *, state: Start = None, scale: float = 1.0, chunk: int = CHUNK
) -> Scanned:
    """Return what `outer_loop` gives, computed chunk by chunk."""
    time = v.shape[2]
    q, k, v, log_decay = _in_chunks(scale * q, k, v, log_decay, chunk=chunk)
    if log_decay.ndim == 5:
        scores, since_start, until_end = _channel_scores(q, k, log_decay)
    else:
        between, since_start, until_end = _head_decay(log_decay)
        scores = _products(q, k) * between
    o, writes = scores @ v, (k * until_end).mT @ v
    if state is None and _one_chunk(v):
        return _in_time(o, time), writes.squeeze(2)
    starts, state = _carry(torch.mul, since_start[..., -1, :, None], writes, state)
    return _in_time(o + (q * since_start) @ starts, time), state


@in_float32
def delta_loop(
    q: Keys, k: Keys, v: Values, beta: PerHead, log_decay: PerHead | None = None, *, state: Start = None,
    scale: float = 1.0,
) -> Scanned:  # fmt: skip
    """Decay S, read the value stored under k_t, and write the share b_t of its difference to v_t."""
    s = _zero_state(k, v) if state is None else state
    decay = torch.ones_like(beta) if log_decay is None else torch.exp(log_decay)
    outputs = []
    for q_t, k_t, v_t, b_t, a_t in zip(*(x.unbind(2) for x in (q, k, v, beta, decay)), strict=True):
        s = a_t[..., None, None] * s
        stored = (k_t[..., None, :] @ s).squeeze(-2)
        s = s + k_t[..., None] * (b_t[..., None] * (v_t - stored))[..., None, :]
        outputs.append(scale * (q_t[..., None, :] @ s).squeeze(-2))
    return torch.stack(outputs, dim=2), s


@by_backend
@in_float32
def delta_scan(
    q: Keys, k: Keys, v: Values, beta: PerHead, log_decay: PerHead | None = None, *, state: Start = None,
    scale: float = 1.0, chunk: int = CHUNK,
) -> Scanned:  # fmt: skip
    """Return what `delta_loop` gives, computed chunk by chunk.

    With u_t = b_t (v_t - a_t S_{t-1}^T k_t) the rule is the outer recurrence S_t = a_t S_{t-1} + k_t u_t^T. Inside a
    chunk, with D_ij the decay from j to i and D_i0 the one from its start, the u solve a unit triangular system:

        u_i + b_i sum_{j<i} D_ij (k_i . k_j) u_j = b_i (v_i - D_i0 S_0^T k_i)
    """
    time = v.shape[2]
    log_decay = torch.zeros_like(beta) if log_decay is None else log_decay
    q, k, v, beta, log_decay = _in_chunks(scale * q, k, v, beta, log_decay, chunk=chunk)
    between, since_start, until_end = _head_decay(log_decay)
    scores, until = _products(q, k) * between, (k * until_end).mT
    overlap = (beta[..., None] * _products(k, k) * between).tril(-1)
    solve = partial(torch.linalg.solve_triangular, overlap, upper=False, unitriangular=True)
    if state is None and _one_chunk(v):
        u = solve(beta[..., None] * v)
        return _in_time(scores @ u, time), (until @ u).squeeze(2)
    solved = solve(beta[..., None] * torch.cat([v, k * since_start], dim=-1))
    fresh, erased = solved.split([v.shape[-1], k.shape[-1]], dim=-1)  # u = fresh - erased S_0
    eye = torch.eye(k.shape[-1], dtype=k.dtype, device=k.device)
    transition = since_start[..., -1:, :] * eye - until @ erased
    starts, state = _carry(torch.matmul, transition, until @ fresh, state)
    u = fresh - erased @ starts
    return _in_time(scores @ u + (q * since_start) @ starts, time), state


class _Decays(NamedTuple):
    """Decay factors inside each chunk: from j to i (0 where j > i), from before the first token, to after the last."""

    between: Float[Tensor, "batch heads chunks query key"]
    since_start: Float[Tensor, "batch heads chunks query one"]
    until_end: Float[Tensor, "batch heads chunks key one"]


def _head_decay(log_decay: Float[Tensor, "batch heads chunks size"]) -> _Decays:
    size = log_decay.shape[-1]
    causal = torch.ones(size, size, dtype=torch.bool, device=log_decay.device).tril()
    # Column j sums log a over j+1..i alone: see the head of the file.
    steps = log_decay[..., None].expand(*log_decay.shape, size).masked_fill(~causal.tril(-1), 0.0)
    between = steps.cumsum(-2).masked_fill(~causal, -torch.inf).exp()
    return _Decays(between, log_decay.cumsum(-1).exp()[..., None], between[..., -1, :, None])


def _channel_scores(
    q: Float[Tensor, "batch heads chunks size d_key"],
    k: Float[Tensor, "batch heads chunks size d_key"],
    log_decay: Float[Tensor, "batch heads chunks size d_key"],
) -> tuple[
    Float[Tensor, "batch heads chunks size size"],
    Float[Tensor, "batch heads chunks size d_key"],
    Float[Tensor, "batch heads chunks size d_key"],
]:
    """Return sum_d q_id k_jd exp(sum of log a_d over j+1..i) for j <= i, and decays since the start and to the end.

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
        cross = _products(q_late * since_late.exp(), k_early * until_early.exp())
        early, late = _halves(scores)
        scores = torch.cat(
            [torch.cat([early, torch.zeros_like(cross)], dim=-1), torch.cat([cross, late], dim=-1)], dim=-2
        )
        since = torch.cat([since_early, since_late + since_early[..., -1:, :]], dim=-2)
        until = torch.cat([until_early + since_late[..., -1:, :], until_late], dim=-2)
    return scores.squeeze(-3), since.squeeze(-3).exp(), until.squeeze(-3).exp()


def _products(a: Float[Tensor, "*axes query d"], b: Float[Tensor, "*axes key d"]) -> Float[Tensor, "*axes query key"]:
    """Return a b^T. Copied: torch 2.13 on ARM takes 68 us instead of 22 for 64 x 32 matrices with b^T a view."""
    return a @ b.mT.contiguous()


def _halves(blocks: Float[Tensor, "*axes blocks a b"]) -> tuple[Tensor, ...]:
    """Return the blocks at even and at odd places."""
    return rearrange(blocks, "... (m two) a b -> two ... m a b", two=2).unbind()


def _carry(
    product: Callable[[Tensor, Tensor], Tensor],
    transitions: Float[Tensor, "batch heads chunks rows columns"],
    writes: Float[Tensor, "batch heads chunks d_key d_value"],
    state: MatrixState | None,
) -> tuple[Float[Tensor, "batch heads chunks d_key d_value"], MatrixState]:
    """Return the state before each chunk, and after the last: S <- transition S + writes."""
    states = [torch.zeros_like(writes[:, :, 0]) if state is None else state]
    for transition, write in zip(transitions.unbind(2), writes.unbind(2), strict=True):
        states.append(product(transition, states[-1]) + write)
    return torch.stack(states[:-1], dim=2), states[-1]


def _in_chunks(*tensors: Tensor, chunk: int) -> list[Tensor]:
    """Cut time into (chunks, size). Zeros fill up the last chunk: they decay, write and erase nothing."""
    time = tensors[0].shape[2]
    # A power of two, so that blocks can be merged in pairs; no longer than the sequence needs.
    size = min(chunk, 1 << (time - 1).bit_length())
    assert size & (size - 1) == 0, f"chunk={chunk} must be a power of two"
    missing = -time % size
    padded = (pad(x, (0, 0) * (x.ndim - 3) + (0, missing)) if missing else x for x in tensors)
    return [rearrange(x, "b h (n c) ... -> b h n c ...", c=size) for x in padded]


def _one_chunk(v: Float[Tensor, "batch heads chunks size d"]) -> bool:
    """Return whether one chunk holds it all, training's usual case: with no state before it, none is read or moved."""
    return v.shape[2] == 1


def _in_time(o: Float[Tensor, "batch heads chunks size d"], time: int) -> Float[Tensor, "batch heads time d"]:
    return rearrange(o, "b h n c d -> b h (n c) d")[:, :, :time]


def _zero_state(k: Keys, v: Values) -> MatrixState:
    return v.new_zeros(*v.shape[:2], k.shape[-1], v.shape[-1])


def _single(x: Any) -> Any:
    is_float = isinstance(x, Tensor) and x.is_floating_point()
    return x.to(torch.promote_types(x.dtype, torch.float32)) if is_float else x
