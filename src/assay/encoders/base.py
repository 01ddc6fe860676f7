"""An encoder turns a sequence of vectors into one code."""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from assay.core.plugin import Registry, Sized
from assay.encoders import encoders


@dataclass(frozen=True, kw_only=True)
class Encoder(Sized):
    """Base of encoders/<name>.py. An encoder with an int field `width` can be sized to a parameter budget.

    The promises (assay.contracts.encoders): the code is a function of each sequence alone, finite, differentiable,
    and the same twice in evaluation mode.
    """

    registry: ClassVar[Registry] = encoders

    def build(self, length: int, d_in: int, d_code: int) -> nn.Module:
        """Build a module (batch, time, d_in) -> (batch, d_code)."""
        raise NotImplementedError(f"{type(self).__name__}.build")
