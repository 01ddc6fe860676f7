"""Recurrences with a matrix for a state are computed in chunks: products inside a chunk, a short loop over the chunks.

    outer   S_t = diag(a_t) S_{t-1} + k_t v_t^T                      (Yang et al. 2023; scalar a_t: Dao and Gu 2024)
    delta   S_t = (I - b_t k_t k_t^T) diag(a_t) S_{t-1} + b_t k_t v_t^T  (Yang et al. 2024, 2025; Kimi Team 2025)
    general S_t = diag(w_t) S_{t-1} + a_t (b_t^T S_{t-1}) + k_t v_t^T    (Peng et al. 2025; both of the above are cases)
            o_t = scale * S_t^T q_t

S is (d_key, d_value). The decay comes as log a_t <= 0, one per key channel or, cheaper, one per head. Every scan takes
the state before its first token and gives the state after its last. The plain loops are the oracles of the scans'
tests and, over one token, the `step` of the mixers. Autocast is off inside, and half precision becomes float32.

Decays enter only as exp(sum of log a over a stretch of time), and the sum is added up over that very stretch: nothing
positive is exponentiated, and a decay near 1 after one near 0 keeps its digits, which the difference of two long
cumulative sums would lose.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from importlib import import_module
from typing import Any, ParamSpec, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from assay.nn.chunks import carry, channel_scores, head_decay, in_chunks, in_time, one_chunk, products

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
    """Return a function that runs the scan as written here, or the function of its name in the backend's module, if it
    has one."""

    @wraps(scan)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        chosen = scan if backend == "torch" else getattr(import_module(f"assay.nn.{backend}"), scan.__name__, scan)
        return chosen(*args, **kwargs)

    return run


@contextmanager
def as_written() -> Iterator[None]:
    """Run everything inside in torch, whatever the backend: on the meta device a kernel would be given no memory."""
    global backend
    before, backend = backend, "torch"
    try:
        yield
    finally:
        backend = before


@in_float32
def unit(x: Float[Tensor, "*axes d"]) -> Float[Tensor, "*axes d"]:
    """Return x / |x| along the last axis; the constant keeps the gradient finite at 0."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


@in_float32
def outer_loop(q: Keys, k: Keys, v: Values, log_decay: Decay, *, state: Start = None, scale: float = 1.0) -> Scanned:
    """Return o, and the last S, of S_t = diag(a_t) S_{t-1} + k_t v_t^T, o_t = scale * S_t^T q_t, one token after
    another."""
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
    q, k, v, log_decay = in_chunks(scale * q, k, v, log_decay, chunk=chunk)
    if log_decay.ndim == 5:
        scores, since_start, until_end = channel_scores(q, k, log_decay)
    else:
        between, since_start, until_end = head_decay(log_decay)
        scores = products(q, k) * between
    o, writes = scores @ v, (k * until_end).mT @ v
    if state is None and one_chunk(v):
        return in_time(o, time), writes.squeeze(2)
    starts, state = carry(torch.mul, since_start[..., -1, :, None], writes, state)
    return in_time(o + (q * since_start) @ starts, time), state


@in_float32
def decayed_sums(x: Values, log_decay: PerHead, *, chunk: int = CHUNK) -> Values:
    """Return s_t = a_t s_{t-1} + x_t for every t."""
    time = x.shape[2]
    x, log_decay = in_chunks(x, log_decay, chunk=chunk)
    between, since_start, _ = head_decay(log_decay)
    sums = between @ x
    if one_chunk(x):
        return in_time(sums, time)
    starts, _ = carry(torch.mul, since_start[..., -1:, :], sums[..., -1:, :], None)
    return in_time(sums + since_start * starts, time)


@in_float32
def delta_loop(
    q: Keys, k: Keys, v: Values, beta: PerHead, log_decay: Decay | None = None, *, state: Start = None,
    scale: float = 1.0,
) -> Scanned:  # fmt: skip
    """Decay S, read the value stored under k_t, and write the share b_t of its difference to v_t."""
    if log_decay is not None and log_decay.ndim == 4:
        return general_loop(*as_general(q, k, v, beta, log_decay), state=state, scale=scale)
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
    q: Keys, k: Keys, v: Values, beta: PerHead, log_decay: Decay | None = None, *, state: Start = None,
    scale: float = 1.0, chunk: int = CHUNK,
) -> Scanned:  # fmt: skip
    """Return what `delta_loop` gives, computed chunk by chunk.

    With u_t = b_t (v_t - a_t S_{t-1}^T k_t) the rule is the outer recurrence S_t = a_t S_{t-1} + k_t u_t^T. Inside a
    chunk, with D_ij the decay from j to i and D_i0 the one from its start, the u solve a unit triangular system:

        u_i + b_i sum_{j<i} D_ij (k_i . k_j) u_j = b_i (v_i - D_i0 S_0^T k_i)

    With a decay per channel it is computed as a case of the general recurrence.
    """
    if log_decay is not None and log_decay.ndim == 4:
        return general_scan(*as_general(q, k, v, beta, log_decay), state=state, scale=scale, chunk=chunk)
    time = v.shape[2]
    log_decay = torch.zeros_like(beta) if log_decay is None else log_decay
    q, k, v, beta, log_decay = in_chunks(scale * q, k, v, beta, log_decay, chunk=chunk)
    between, since_start, until_end = head_decay(log_decay)
    scores, until = products(q, k) * between, (k * until_end).mT
    overlap = (beta[..., None] * products(k, k) * between).tril(-1)
    solve = partial(torch.linalg.solve_triangular, overlap, upper=False, unitriangular=True)
    if state is None and one_chunk(v):
        u = solve(beta[..., None] * v)
        return in_time(scores @ u, time), (until @ u).squeeze(2)
    solved = solve(beta[..., None] * torch.cat([v, k * since_start], dim=-1))
    fresh, erased = solved.split([v.shape[-1], k.shape[-1]], dim=-1)  # u = fresh - erased S_0
    eye = torch.eye(k.shape[-1], dtype=k.dtype, device=k.device)
    transition = since_start[..., -1:, :] * eye - until @ erased
    starts, state = carry(torch.matmul, transition, until @ fresh, state)
    u = fresh - erased @ starts
    return in_time(scores @ u + (q * since_start) @ starts, time), state


@in_float32
def general_loop(
    q: Keys, k: Keys, v: Values, a: Keys, b: Keys, log_decay: PerChannel, *, state: Start = None, scale: float = 1.0
) -> Scanned:
    """Return o, and the last S, of S_t = diag(w_t) S_{t-1} + a_t (b_t^T S_{t-1}) + k_t v_t^T, o_t = scale * S_t^T q_t,
    one token after another."""
    s = _zero_state(k, v) if state is None else state
    outputs = []
    for q_t, k_t, v_t, a_t, b_t, w_t in zip(*(x.unbind(2) for x in (q, k, v, a, b, log_decay.exp())), strict=True):
        stored = b_t[..., None, :] @ s
        s = w_t[..., None] * s + a_t[..., None] * stored + k_t[..., None] * v_t[..., None, :]
        outputs.append(scale * (q_t[..., None, :] @ s).squeeze(-2))
    return torch.stack(outputs, dim=2), s


@by_backend
@in_float32
def general_scan(
    q: Keys, k: Keys, v: Values, a: Keys, b: Keys, log_decay: PerChannel, *, state: Start = None, scale: float = 1.0,
    chunk: int = CHUNK,
) -> Scanned:  # fmt: skip
    """Return what `general_loop` gives, computed chunk by chunk.

    With y_t = S_{t-1}^T b_t each token makes two writes, k_t v_t^T and a_t y_t^T. Inside a chunk, with D_ij the decay
    over j+1..i and D_i0 the one since its start, the y solve a unit triangular system:

        y_i - sum_{j<i} (b_i . D_{i-1,j} a_j) y_j = sum_{j<i} (b_i . D_{i-1,j} k_j) v_j + S_0^T (D_{i-1,0} b_i)
    """
    time = v.shape[2]
    q, k, v, a, b, log_decay = in_chunks(scale * q, k, v, a, b, log_decay, chunk=chunk)
    # b_i reads the state before its token: it meets keys as a query of token i-1 would, and its row moves down after.
    readers = torch.stack([q, pad(b[..., 1:, :], (0, 0, 0, 1))])[:, None]
    ((qk, qa), early), since_start, until_end = channel_scores(readers, torch.stack([k, a]), log_decay)
    bk, ba = pad(early, (0, 0, 1, 0))[..., :-1, :]
    solve = partial(torch.linalg.solve_triangular, -ba, upper=False, unitriangular=True)
    k_until, a_until = (k * until_end).mT, (a * until_end).mT
    if state is None and one_chunk(v):
        y = solve(bk @ v)
        return in_time(qk @ v + qa @ y, time), (k_until @ v + a_until @ y).squeeze(2)
    before = pad(since_start[..., :-1, :], (0, 0, 1, 0), value=1.0)
    fresh, moved = solve(torch.cat([bk @ v, b * before], dim=-1)).split([v.shape[-1], k.shape[-1]], dim=-1)
    transition = torch.diag_embed(since_start[..., -1, :]) + a_until @ moved  # y = fresh + moved S_0
    starts, state = carry(torch.matmul, transition, k_until @ v + a_until @ fresh, state)
    y = fresh + moved @ starts
    return in_time(qk @ v + qa @ y + (q * since_start) @ starts, time), state


def as_general(q: Keys, k: Keys, v: Values, beta: PerHead, log_decay: PerChannel) -> tuple[Tensor, ...]:
    """Return the delta rule as a general recurrence, whose b reads the state before it decays."""
    written = beta[..., None] * k
    return q, written, v, -written, log_decay.exp() * k, log_decay


def _zero_state(k: Keys, v: Values) -> MatrixState:
    return v.new_zeros(*v.shape[:2], k.shape[-1], v.shape[-1])


def _single(x: Any) -> Any:
    is_float = isinstance(x, Tensor) and x.is_floating_point()
    return x.to(torch.promote_types(x.dtype, torch.float32)) if is_float else x
