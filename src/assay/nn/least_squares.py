"""Queries are answered by the ridge regression of all tokens so far: the solver of mesa.

    G_t = a_t G_{t-1} + b_t k_t k_t^T;   x_t = (G_t + L)^-1 q_t      L = diag(l), per head

Here every G_t is formed and factorised. `--backend triton` takes conjugate gradients instead
(nn/least_squares_kernels.py), which need no G_t but those at the start of a chunk.
"""

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from assay.nn.scan import PerChannel, PerHead, by_backend, decayed_sums, in_float32

Ridge = Float[Tensor, "heads d_key"]
Gram = Float[Tensor, "batch heads d_key d_key"]


@by_backend
def ridge_scan(
    q: PerChannel, k: PerChannel, beta: PerHead, log_decay: PerHead, ridge: Ridge, *, state: Gram | None = None
) -> PerChannel:
    """Return (G_t + L)^-1 q_t of every token, given G before the first; None: zeros."""
    written = rearrange(beta[..., None, None] * k[..., None] * k[..., None, :], "b h t d e -> b h t (d e)")
    gram = rearrange(decayed_sums(written, log_decay), "b h t (d e) -> b h t d e", d=k.shape[-1])
    if state is not None:
        gram = gram + log_decay.cumsum(dim=-1).exp()[..., None, None] * state[:, :, None]
    return solve(gram, ridge, q)


@in_float32
def solve(gram: Float[Tensor, "batch heads time d_key d_key"], ridge: Ridge, q: PerChannel) -> PerChannel:
    """Return (G + L)^-1 q.

    The factors have no gradient. One step of iterative refinement with them, x + F^-1 (q - (G + L) x), does: its
    derivative is F^-1 (dq - dG x - dL x), that of the solution, and it takes the rounding of the first solve away.
    """
    ridge = ridge[:, None]
    factor = torch.linalg.cholesky_ex(gram.detach() + torch.diag_embed(ridge.detach())).L
    first = torch.cholesky_solve(q.detach()[..., None], factor)
    residual = q[..., None] - gram @ first - ridge[..., None] * first
    return (first + torch.cholesky_solve(residual, factor)).squeeze(-1)
