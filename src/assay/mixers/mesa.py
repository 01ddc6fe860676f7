"""MesaNet (von Oswald et al. 2025) answers each query by the ridge regression of all values on all keys so far.

    G_t = g_t G_{t-1} + b_t k_t k_t^T;   H_t = g_t H_{t-1} + b_t k_t v_t^T;   o_t = H_t^T (G_t + L)^-1 q_t     per head
    q, k = swish(conv(W x)), then of length 1;   v = W x;   g, b = sigmoid(W x + c);   L = diag(.25 + softplus(l))
    y = W_o RMSNorm(o)

H^T (G + L)^-1 is the linear map with the least squared error sum_s b_s |v_s - M k_s|^2 + |M L^.5|^2, with older tokens
weighing less: where linear attention adds values up and the delta rule takes one step of gradient descent per token,
this takes all of them, up to its ridge and its decay; exact least squares would hold more.

State: G and H, d_k (d_k + d_v) scalars per head, whatever the length (G is symmetric and kept whole), and 6 d_model of
the convolution.

The layer is flash-linear-attention's: keys and values of d_model channels, a convolution of 4 tokens on q and k alone,
no gate, L = 1 at the start.

Differs from the paper: the system is solved exactly, by Cholesky's factors of every G_t + L, where the authors take 30
steps of conjugate gradients so as not to form G_t. With `--backend triton` conjugate gradients are taken here too,
until every residual, as the method carries it, is 1e-3 of its query: 1e-6 for queries in float32 where matmul_precision
is "highest", and there heads of more than 64 channels are factorised. 4 heads whatever the width, where the paper's
have 128 channels.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, silu, softplus

from assay.mixers import mixers
from assay.mixers.base import MixerModule
from assay.mixers.heads import ConvolvedHeads
from assay.nn.axes import Read, Token, Tokens
from assay.nn.convolution import short_convolution
from assay.nn.fused import Part, Plan, fused, gate_kernels, head_kernels, scan_kernels
from assay.nn.joint import joint
from assay.nn.least_squares import Gram, ridge_scan
from assay.nn.norm import LAYER_EPS, Norm
from assay.nn.scan import MatrixState, PerHead, outer_loop, outer_scan, unit

LEAST_RIDGE = 0.25
State = tuple[Any, Gram, MatrixState]
Keys = Float[Tensor, "batch heads time d_key"]


@mixers.register("mesa")
@dataclass(frozen=True, kw_only=True)
class Mesa(ConvolvedHeads):
    """Least squares in context: a query is answered by the regression of all values on all keys so far."""

    other_names: ClassVar[tuple[str, ...]] = ("mesa_net", "mesanet")

    conv: int = 4
    """Tokens that the short convolution on q and k sees, as published; 0: none."""

    def core(self, d_model: int, max_len: int) -> MixerModule:
        sizes = {"key_dim": self.key_dim(d_model), "value_dim": self.value_dim(d_model), "conv": self.inner_kernel}
        return LeastSquaresMemory(d_model, self.num_heads, **sizes)

    def convolved_channels(self, d_model: int) -> int:
        return 2 * self.num_heads * self.key_dim(d_model)

    def core_state(self, d_model: int, length: int) -> int:
        return super().core_state(d_model, length) + self.num_heads * self.key_dim(d_model) ** 2


class LeastSquaresMemory(MixerModule):
    def __init__(self, d_model: int, heads: int, *, key_dim: int, value_dim: int, conv: int) -> None:
        super().__init__()
        self.heads, self.key_dim, self.value_dim = heads, key_dim, value_dim
        self.queries_and_keys = nn.Linear(d_model, 2 * heads * key_dim, bias=False)
        self.convolution = short_convolution(2 * heads * key_dim, conv)
        self.values = nn.Linear(d_model, heads * value_dim, bias=False)
        self.gates = nn.Linear(d_model, 2 * heads)
        # L starts at 1: softplus gives .75.
        self.ridge = nn.Parameter(torch.full((heads, key_dim), math.log(math.expm1(1 - LEAST_RIDGE))))
        self.norm = Norm(value_dim, eps=LAYER_EPS)
        self.out = nn.Linear(heads * value_dim, d_model, bias=False)

    def forward(self, x: Tokens) -> Tokens:
        if fused("heads"):
            return self._fused(x)
        q, k, v, beta, log_decay = self._written(x, self.convolution(self.queries_and_keys(x)))
        solved = ridge_scan(q, k, beta, log_decay, self._ridge())
        o, _ = outer_scan(solved, beta[..., None] * k, v, log_decay)
        return self._read(o)

    def _fused(self, x: Tokens) -> Tokens:
        """Return the same by kernels, with all projections as one product."""
        h, d, e = self.heads, self.key_dim, self.value_dim
        projected, missing = joint(x, self.queries_and_keys.weight, self.values.weight, self.gates.weight)
        units = Plan((Part(0, h, d, unit=True), Part(h * d, h, d, unit=True)), swish=True)
        q, k, rest = head_kernels.heads(projected, self.convolution.weight, self.convolution.bias, None, units)
        v, gates = head_kernels.heads(rest, None, None, None, Plan((Part(0, h, e),), swish=False))
        decay, beta, _ = gates.split([h, h, missing], dim=-1)
        of_decay, of_beta = self.gates.bias.chunk(2)
        log_decay = gate_kernels.per_head(decay, of_decay, "logsigmoid")
        beta = gate_kernels.per_head(beta, of_beta, "sigmoid")
        solved = ridge_scan(q, k, beta, log_decay, self._ridge())
        o, _ = scan_kernels.outer_scan(solved, k, v, log_decay, strength=beta)
        return self._read(o)

    def init_state(self, batch: int) -> State:
        zeros = self.out.weight.new_zeros(batch, self.heads, self.key_dim, self.key_dim + self.value_dim)
        gram, memory = zeros.split([self.key_dim, self.value_dim], dim=-1)
        return self.convolution.init_state(batch), gram, memory

    def step(self, x: Token, state: State) -> tuple[Token, State]:
        seen, gram, memory = state
        projected, seen = self.convolution.step(self.queries_and_keys(x), seen)
        q, k, v, beta, log_decay = self._written(x[:, None], projected[:, None])
        solved = ridge_scan(q, k, beta, log_decay, self._ridge(), state=gram)
        _, gram = outer_loop(q, beta[..., None] * k, k, log_decay, state=gram)
        o, memory = outer_loop(solved, beta[..., None] * k, v, log_decay, state=memory)
        return self._read(o).squeeze(1), (seen, gram, memory)

    def _written(
        self, x: Tokens, projected: Float[Tensor, "batch time qk"]
    ) -> tuple[Keys, Keys, Read, PerHead, PerHead]:
        """Return queries, keys, values, strengths of writing and log decays."""
        q, k = rearrange(silu(projected), "b t (two h d) -> two b h t d", two=2, h=self.heads)
        v = rearrange(self.values(x), "b t (h e) -> b h t e", h=self.heads)
        # In the weights' precision, also under autocast: bf16 has no decay between .996 and 1.
        decay, beta = rearrange(self.gates(x).to(self.ridge.dtype), "b t (two h) -> two b h t", two=2)
        return unit(q), unit(k), v, torch.sigmoid(beta), logsigmoid(decay)

    def _ridge(self) -> Float[Tensor, "heads d_key"]:
        return LEAST_RIDGE + softplus(self.ridge)

    def _read(self, o: Read) -> Tokens:
        return self.out(self.norm.of_heads(o))
