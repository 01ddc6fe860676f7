"""An encoder turns a sequence of vectors into one code."""

from dataclasses import dataclass, fields
from typing import ClassVar

from torch import nn

from assay.core.errors import UserError
from assay.core.plugin import Plugin, Registry
from assay.encoders import encoders


@dataclass(frozen=True, kw_only=True)
class Encoder(Plugin):
    """encoders/<name>.py. An encoder with an int field `width` can be sized to a parameter budget.

    The promises (assay.contracts.encoders): the code is a function of each sequence alone, finite, differentiable,
    and the same twice in evaluation mode.
    """

    registry: ClassVar[Registry] = encoders

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            # Sizes are at least 1, or 0 where 0 is the default and means "none".
            if isinstance(value, int) and isinstance(option.default, int) and value < min(1, option.default):
                raise UserError(
                    f"encoder '{self.name}': {option.name}={value} is too small; the default is {option.default}."
                )

    def build(self, length: int, d_in: int, d_code: int) -> nn.Module:
        """A module (batch, time, d_in) -> (batch, d_code)."""
        raise NotImplementedError(f"{type(self).__name__}.build")
