"""Knorm (Devoto et al. 2024, arXiv 2406.11430) keeps keys of small norm, which tend to receive the most attention.

score_j = -|k_j|          known when the key comes; evict the longest key

norms 3 1 2, slots=2: key 0 goes

The first two layers keep everything, as in the authors' example; `knorm:skip_layers=` evicts in every layer.

Ties go by position: among keys of one length the oldest is evicted. In a first layer a key's norm depends on its token
alone, so that a word that comes twice gives two keys of one length, and only rounding (a float32 rotation moves a norm
by about 1e-7 of itself) would tell them apart, otherwise on every device. So norms are compared to 12 binary digits:
those within about 1 part in 4,000 are mostly one length.

Differs from the paper: it evicts after every token, where the authors cut a cache down to a share of it once it is long
enough; and norms are compared to 12 digits.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from assay.attention import attention
from assay.attention.base import Evict, KeyScores, Layer
from assay.core.errors import UserError

DIGITS = 12
"""Binary digits of a norm that count. Rounding errors of float32, 1e-7, rarely reach the next number of 12 digits."""


@attention.register("knorm")
@dataclass(frozen=True, kw_only=True)
class Knorm(Evict):
    """Evicts the key of largest norm."""

    version: ClassVar[int] = 2

    skip_layers: tuple[int, ...] = (0, 1)
    """Indices of layers that keep everything: 0+1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.skip_layers, default=0) < 0:
            raise UserError(f"{self.name}: skip_layers={self.skip_layers}: layers are counted from 0.")

    def skips(self, layer: Layer) -> bool:
        return layer.index in self.skip_layers

    def as_mixer(self) -> "Knorm":
        """Return the method that evicts in every layer: the skipped ones are the first of a deep model."""
        return replace(self, skip_layers=())

    def initial_score(self, layer: Layer) -> KeyScores:
        norm = layer.k.to(layer.wide).norm(dim=-1)
        mantissa, exponent = norm.frexp()
        return -(mantissa * 2**DIGITS).round().ldexp(exponent - DIGITS)
