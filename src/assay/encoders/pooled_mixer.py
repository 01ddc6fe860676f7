"""A pooled mixer makes an encoder of any sequence mixer: one residual layer of it, read at the last token.

    h_t = W_e x_t;   o = h + Mixer(RMSNorm(h));   code = ReLU(W o_L)

`pooled_mixer:mixer=delta_net` takes any name of the mixers folder. With attention, 24,944 parameters at d_in 24,
d_code 32.

No paper: it is a harness around the mixers. There is no state mixer, and no norm before the code.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from assay.encoders import encoders
from assay.encoders.base import Encoder
from assay.mixers import mixers
from assay.mixers.base import Mixer, MixerModule
from assay.nn.norm import Norm


@encoders.register("pooled_mixer")
@dataclass(frozen=True, kw_only=True)
class PooledMixer(Encoder):
    """One residual layer of any sequence mixer, read at the last token."""

    aliases: ClassVar[tuple[str, ...]] = ("PooledMixer",)

    mixer: Mixer = mixers.parse("attention")
    """The mixer that moves information to the last token."""
    width: int = 72
    """Channels of the vectors that the mixer works on."""

    def build(self, length: int, d_in: int, d_code: int) -> nn.Module:
        return LastTokenMixer(self.mixer.build(self.width, length), d_in, d_code, width=self.width)


class LastTokenMixer(nn.Module):
    def __init__(self, mixer: MixerModule, d_in: int, d_code: int, *, width: int) -> None:
        super().__init__()
        self.embed = nn.Linear(d_in, width)
        self.norm = Norm(width)
        self.mixer = mixer
        self.code = nn.Linear(width, d_code)

    def forward(self, x: Float[Tensor, "batch time d_in"]) -> Float[Tensor, "batch d_code"]:
        h = self.embed(x)
        o = h + self.mixer(self.norm(h))
        return torch.relu(self.code(o[:, -1]))
