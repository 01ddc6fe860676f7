"""RWKV-7 (Peng et al. 2025) erases in one direction and writes in another, with a decay for every channel.

    S_t = diag(w_t) S_{t-1} - (a_t * kappa_t) (kappa_t^T S_{t-1}) + k_t v_t^T;   o_t = S_t^T r_t             per head
    x_i = x_t + (x_{t-1} - x_t) * mu_i  for each i of r, w, k, v, a, g, the token shift
    r = W_r x_r;   v = W_v x_v;   k' = W_k x_k;   kappa = k' * xi / |k' * xi|;   a = sigmoid(lora_a(x_a))
    k = k' * (1 + (a - 1) * alpha);   w = exp(-exp(-.5) sigmoid(lora_w(x_w)));   g = lora_g(x_g)
    y = W_o (g * (GroupNorm(o) + (r . (rho * k)) v)),  one group per head

A lora is W_2 act(W_1 x) + b: tanh for w, nothing for a, a sigmoid and no bias for g.
State: S, d x d scalars per head, and the last token, d_model.

The layer is the authors' first one (later ones also mix their values with the first one's): ranks of max(32, 2.5 to 5
sqrt(d_model)), in steps of 32; shifts, biases and weights start as theirs.

Differs from the paper:
- 4 heads whatever the width, where its models have heads of 64 channels
- every layer is a first layer, since a mixer here does not see the others
- W_o and every W_1 start as torch starts a linear layer, the authors' at 0; 1e-6 under the root of |kappa|
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from assay.mixers import mixers
from assay.mixers.base import Mixer, MixerModule
from assay.nn.attention import head_dim
from assay.nn.axes import Read, Token, Tokens
from assay.nn.fused import Part, Plan, fused, gate_kernels, head_kernels, rwkv7_kernels
from assay.nn.joint import joint
from assay.nn.norm import precision
from assay.nn.random import for_shapes_alone
from assay.nn.scan import MatrixState, general_loop, general_scan, unit

SHIFTS = {"r": 0.2, "w": 0.9, "k": 0.7, "v": 0.7, "a": 0.9, "g": 0.2}
"""mu starts at 1 - (channel / channels) ** this."""
Inner = Float[Tensor, "batch time inner"]
State = tuple[Token, MatrixState]


@mixers.register("rwkv7")
@dataclass(frozen=True, kw_only=True)
class RWKV7(Mixer):
    """A matrix per head that erases in one direction and writes in another, with a decay per channel."""

    other_names: ClassVar[tuple[str, ...]] = ("rwkv_7", "rwkv-7")

    num_heads: int = 4
    """Heads: parts of the channels, each with a state of its own."""

    def core(self, d_model: int, max_len: int) -> MixerModule:
        return ShiftedMemory(d_model, self.num_heads, head_dim(d_model, self.num_heads))

    def core_state(self, d_model: int, length: int) -> int:
        return d_model + math.prod(self.matrices(d_model))

    def matrices(self, d_model: int) -> tuple[int, int, int]:
        width = head_dim(d_model, self.num_heads)
        return self.num_heads, width, width


class ShiftedMemory(MixerModule):
    def __init__(self, d_model: int, heads: int, width: int) -> None:
        super().__init__()
        self.heads, self.width, inner = heads, width, heads * width
        self.shift = nn.Parameter(torch.empty(len(SHIFTS), d_model))
        self.r, self.k, self.v = (nn.Linear(d_model, inner, bias=False) for _ in range(3))
        self.decay = LowRank(d_model, inner, rank(2.5, d_model, width), nn.Tanh())
        self.rate = LowRank(d_model, inner, rank(2.5, d_model, width), nn.Identity())
        self.gate = LowRank(d_model, inner, rank(5.0, d_model, 64), nn.Sigmoid(), bias=False)
        self.removal = nn.Parameter(torch.empty(inner))
        self.replacement = nn.Parameter(torch.full((inner,), 1.02))
        self.bonus = nn.Parameter(torch.full((heads, 1, width), -0.04))
        self.norm = nn.GroupNorm(heads, inner, eps=width * 1e-5)
        self.out = nn.Linear(inner, d_model, bias=False)
        if not for_shapes_alone():
            self._start()

    @torch.no_grad()
    def _start(self) -> None:
        """Start as the authors' first layer does."""
        d_model, inner = self.shift.shape[1], len(self.removal)
        share = torch.arange(d_model) / d_model
        for mu, power in zip(self.shift, SHIFTS.values(), strict=True):
            mu.copy_(1 - share**power)
        for layer, scale in ((self.r, 0.5), (self.k, 0.05), (self.v, 0.5)):
            layer.weight.uniform_(-scale * d_model**-0.5, scale * d_model**-0.5)
        place = torch.arange(inner) / max(1, inner - 1)
        line = place - 0.5
        zigzag = 2 * (torch.arange(inner) % self.width) / max(1, self.width - 1) - 1
        zigzag = zigzag * zigzag.abs()
        self.removal.copy_(0.71 - 0.1 * line)
        self.decay.up.bias.copy_(-5.5 + 6 * place + 2.5 * zigzag)
        self.rate.up.bias.copy_(-0.19 + 0.3 * zigzag + 0.4 * line)
        for lora in (self.decay, self.rate, self.gate):
            wide = lora.up.in_features / inner
            nn.init.orthogonal_(lora.up.weight, gain=0.1 * math.sqrt(max(1, wide)))

    def forward(self, x: Tokens) -> Tokens:
        if fused("rwkv7"):
            return self._fused(x)
        written, gate = self._written(x, pad(x, (0, 0, 1, -1)))
        o, _ = general_scan(*written)
        r, k, v, *_ = written
        return self._read(o, r, k, v, gate)

    def init_state(self, batch: int) -> State:
        zeros = self.out.weight.new_zeros(batch, self.heads, self.width, self.width)
        return self.shift.new_zeros(batch, self.shift.shape[1]), zeros

    def step(self, x: Token, state: State) -> tuple[Token, State]:
        last, memory = state
        written, gate = self._written(x[:, None], last[:, None])
        o, memory = general_loop(*written, state=memory)
        r, k, v, *_ = written
        return self._read(o, r, k, v, gate).squeeze(1), (x, memory)

    def _fused(self, x: Tokens) -> Tokens:
        """Return the same by kernels. Every shifted projection, W (x + (last - x) mu), is W (1 - mu) x + W mu last: one
        product of both tokens makes all six."""
        lows = (self.decay.down, self.rate.down, self.gate.down)
        shifts = dict(zip(SHIFTS, self.shift, strict=True))
        layers = zip((self.r, self.k, self.v, *lows), "rkvwag", strict=True)
        own, before = zip(*((w.weight * (1 - shifts[i]), w.weight * shifts[i]) for w, i in layers), strict=True)
        x = x.to(precision(self.shift))
        both = torch.cat([x, pad(x, (0, 0, 1, -1))], dim=-1)
        projected, missing = joint(both, torch.cat([torch.cat(own), torch.cat(before)], dim=1))
        parts = tuple(Part(i * self.heads * self.width, self.heads, self.width) for i in range(3))
        r, k, v, rest = head_kernels.heads(projected, None, None, None, Plan(parts, swish=False))
        low_w, low_a, low_g, _ = rest.split([*(low.out_features for low in lows), missing], dim=-1)
        logits = linear(self.decay.act(low_w), self.decay.up.weight)
        log_decay = gate_kernels.per_channel(
            logits, self.decay.up.bias, "sigmoid", heads=self.heads, scale=-math.exp(-0.5)
        )
        rates = linear(self.rate.act(low_a), self.rate.up.weight)
        k, a, kappa = rwkv7_kernels.replaced(k, rates, self.rate.up.bias, self.removal, self.replacement)
        o, _ = general_scan(r, k, v, a, kappa, log_decay)
        gate = self.gate.up(self.gate.act(low_g))
        norm, bonus = self.norm, rearrange(self.bonus, "h 1 d -> (h d)")
        read = rwkv7_kernels.recalled(o, r, k, v, gate, norm.weight, norm.bias, bonus, eps=norm.eps)
        return self.out(read)

    def _written(self, x: Tokens, last: Tokens) -> tuple[tuple[Tensor, ...], Inner]:
        """Return the arguments of the scan and the gate; `last` holds the token before each."""
        x_r, x_w, x_k, x_v, x_a, x_g = (x + (last - x) * mu for mu in self.shift)
        # In the weights' precision, also under autocast: bf16 has no decay between .996 and 1.
        log_decay = -math.exp(-0.5) * torch.sigmoid(self.decay(x_w).to(self.shift.dtype))
        r, k, v, rate = self.r(x_r), self.k(x_k), self.v(x_v), torch.sigmoid(self.rate(x_a))
        removed, k = k * self.removal, k * (1 + (rate - 1) * self.replacement)
        r, k, v, rate, removed, log_decay = (
            rearrange(part, "b t (h d) -> b h t d", h=self.heads) for part in (r, k, v, rate, removed, log_decay)
        )
        kappa = unit(removed)
        return (r, k, v, -rate * kappa, kappa, log_decay), self.gate(x_g)

    def _read(self, o: Read, r: Read, k: Read, v: Read, gate: Inner) -> Tokens:
        flat = rearrange(o.to(self.norm.weight.dtype), "b h t d -> (b t) (h d)")
        normed = rearrange(self.norm(flat), "(b t) d -> b t d", b=len(o))
        present = (r * k * self.bonus).sum(-1, keepdim=True) * v
        return self.out((normed + rearrange(present, "b h t d -> b t (h d)")) * gate)


def rank(factor: float, d_model: int, width: int) -> int:
    """Return the authors' rank of a lora: factor * sqrt(d_model) for heads of 64 channels, in steps of 32."""
    return max(32, round(factor * d_model**0.5 * width / 64 / 32) * 32)


class LowRank(nn.Module):
    """W_2 act(W_1 x) + b."""

    def __init__(self, d_model: int, inner: int, rank: int, act: nn.Module, *, bias: bool = True) -> None:
        super().__init__()
        self.down, self.act, self.up = nn.Linear(d_model, rank, bias=False), act, nn.Linear(rank, inner, bias=bias)

    def forward(self, x: Tokens) -> Inner:
        return self.up(self.act(self.down(x)))
