"""BaseConv (Arora et al. 2023) is a gated convolution, the least that a model of convolutions and gates needs.

    y = conv(u) * (W u + b) + u        conv: causal, depthwise, 3 tokens, with a bias

One layer recalls nothing by content: the convolution looks back by fixed distances. In zoology's recall sweeps it is
the layer before the one that is measured, here `hybrid:pattern=base_conv+delta_net`: it puts a key and its value into
one token.

State: the last kernel_size - 1 tokens, 2 d_model scalars.

The layer is the one before the measured layer in zoology's sweeps of recall.

Differs from the paper: its own models have a convolution as long as the sequence in every second layer. Inside a hybrid
the members share one layer, and its norm stands in front of this one's, where zoology has a residual stream alone.
"""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn

from assay.mixers import mixers
from assay.mixers.base import Mixer, MixerModule
from assay.nn.axes import Token, Tokens
from assay.nn.convolution import ShortConvolution

Seen = Float[Tensor, "batch seen d_model"]


@mixers.register("base_conv")
@dataclass(frozen=True, kw_only=True)
class BaseConv(Mixer):
    """A short convolution times a linear gate."""

    kernel_size: int = 3
    """Tokens that the convolution sees, the present one included."""

    def tells_order(self) -> bool:
        return max(self.kernel_size, self.conv) > 1

    def core(self, d_model: int, max_len: int) -> MixerModule:
        return GatedConvolution(d_model, self.kernel_size)

    def core_state(self, d_model: int, length: int) -> int:
        return (self.kernel_size - 1) * d_model


class GatedConvolution(MixerModule):
    def __init__(self, d_model: int, kernel: int) -> None:
        super().__init__()
        self.convolution, self.gate = ShortConvolution(d_model, kernel, bias=True), nn.Linear(d_model, d_model)

    def forward(self, x: Tokens) -> Tokens:
        return self.convolution(x) * self.gate(x) + x

    def init_state(self, batch: int) -> Seen:
        return self.convolution.init_state(batch)

    def step(self, x: Token, state: Seen) -> tuple[Token, Seen]:
        y, state = self.convolution.step(x, state)
        return y * self.gate(x) + x, state
