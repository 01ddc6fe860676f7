"""Hyena (Poli et al. 2023) is a convolution as long as the sequence between two gates, its filter given by a small MLP.

    x1, x2, v = conv3(W u + b);   z = x1 * v;   y = W_o (x2 * (h conv z + D z)) + b_o
    h(t) = exp(-|delta| t / (L - 1)) * MLP(t / (L - 1), cos, sin of 2 pi f t / L), sines for activations, f = 1e-4

What it looks back to is the same for every input, so recall by content has to come from the gates: the negative control
of recall sweeps. L is the length it was built for, and longer sequences continue the filter.

State: the z of all past tokens, which grows by d_model per token, and 6 d_model of the short convolution. Convolutions
by FFT round over the whole sequence: later tokens move an output by about 1e-7 of its size, where the direct sum has 0.

The layer is that of the authors' standalone file and of zoology: order 2, a short convolution of 3 tokens with a bias,
one band, frequencies that start at 1, an MLP with two inner layers of 64, decays to 1 % after .3 to 1.5 of the length.

Differs from the paper: the filter's weights follow the run's optimizer, where the authors give them a rate of their
own, 1e-3, and positions one of 1e-5: these are fixed here, as the decays are.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from assay.mixers import mixers
from assay.mixers.base import InnerConvolution, MixerModule
from assay.nn.axes import Token, Tokens
from assay.nn.convolution import short_convolution
from assay.nn.scan import in_float32

FAST, SLOW, LEFT = 0.3, 1.5, 1e-2
"""The fastest and the slowest channel have LEFT of the window after these shares of the length."""
State = tuple[Any, Float[Tensor, "batch _ d_model"]]
Channels = Float[Tensor, "*axes d_model"]


@mixers.register("hyena")
@dataclass(frozen=True, kw_only=True)
class Hyena(InnerConvolution):
    """A convolution as long as the sequence between two gates."""

    conv: int = 3
    """Tokens that the short convolution on x1, x2 and v sees, as published, with a bias, without SiLU; 0: none."""
    filter_order: int = 64
    """Width of the MLP that gives the filter."""

    def core(self, d_model: int, max_len: int) -> MixerModule:
        return LongConvolution(d_model, max_len, width=self.filter_order, conv=self.inner_kernel)

    def convolved_channels(self, d_model: int) -> int:
        return 3 * d_model

    def core_state(self, d_model: int, length: int) -> int:
        return d_model * length


class LongConvolution(MixerModule):
    def __init__(self, d_model: int, max_len: int, *, width: int, conv: int) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
        self.convolution = short_convolution(3 * d_model, conv, bias=True)
        self.filter = ImplicitFilter(d_model, max_len, width=width)
        self.skip = nn.Parameter(torch.randn(d_model))

    def forward(self, x: Tokens) -> Tokens:
        gate, z = self._gated(self.convolution(self.project(x)))
        return self._read(gate, z, fft_convolution(z, self.filter(x.shape[1])))

    def init_state(self, batch: int) -> State:
        return self.convolution.init_state(batch), self.skip.new_zeros(batch, 0, len(self.skip))

    def step(self, x: Token, state: State) -> tuple[Token, State]:
        seen, past = state
        projected, seen = self.convolution.step(self.project(x), seen)
        gate, z = self._gated(projected)
        past = torch.cat([past, z[:, None].to(past.dtype)], dim=1)
        reached = (past * self.filter(past.shape[1]).flip(0)).sum(1)
        return self._read(gate, z, reached), (seen, past)

    def _gated(self, projected: Float[Tensor, "*axes width"]) -> tuple[Tensor, Tensor]:
        """Return the gate behind the long convolution, and what goes into it."""
        before, after, v = projected.chunk(3, dim=-1)
        return after, before * v

    def _read(self, gate: Channels, z: Channels, reached: Channels) -> Channels:
        return self.out(gate * (reached + self.skip * z))


class ImplicitFilter(nn.Module):
    """h(t) for each channel, an MLP of the position with sines for activations, under an exponential window."""

    def __init__(self, d_model: int, max_len: int, *, width: int) -> None:
        super().__init__()
        self.channels, self.max_len = d_model, max_len
        self.inner = nn.ModuleList(nn.Linear(size, width) for size in (3, width, width))
        self.frequency = nn.Parameter(torch.ones(width))
        self.out = nn.Linear(width, d_model, bias=False)

    def forward(self, length: int) -> Float[Tensor, "time d_model"]:
        weight = self.frequency
        place = torch.arange(length, dtype=weight.dtype, device=weight.device)[:, None]
        share = place / max(1, self.max_len - 1)
        angle = 1e-4 * 2 * math.pi * place / self.max_len
        h = torch.cat([share, torch.cos(angle), -torch.sin(angle)], dim=-1)
        for layer in self.inner:
            h = torch.sin(self.frequency * layer(h))
        slow, fast = (-math.log(LEFT) / share_left for share_left in (SLOW, FAST))
        rates = torch.linspace(slow, fast, self.channels, dtype=weight.dtype, device=weight.device)
        return self.out(h) * torch.exp(-share * rates)


@in_float32
def fft_convolution(z: Tokens, h: Float[Tensor, "time d_model"]) -> Tokens:
    """Return sum_{s <= t} h_{t-s} z_s. Twice the length, so that nothing comes round from the end."""
    time = z.shape[1]
    spectrum = torch.fft.rfft(z, n=2 * time, dim=1) * torch.fft.rfft(h, n=2 * time, dim=0)
    return torch.fft.irfft(spectrum, n=2 * time, dim=1)[:, :time]
