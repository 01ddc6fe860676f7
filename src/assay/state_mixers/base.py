"""A state mixer works on each position alone: the feed-forward half of a layer (not the recurrent state)."""

from typing import ClassVar

from torch import nn

from assay.core.plugin import Registry, Sized
from assay.state_mixers import state_mixers


class StateMixer(Sized):
    """Base of state_mixers/<name>.py. The promises are in assay.contracts.state_mixers."""

    registry: ClassVar[Registry] = state_mixers

    def build(self, d_model: int) -> nn.Module:
        """Build a module (batch, time, d_model) -> the same shape, position by position."""
        raise NotImplementedError(f"{type(self).__name__}.build")
