"""PyramidKV (Cai et al. 2024, arXiv 2406.02069) gives lower layers more slots than higher ones, when a prompt ends.

    slots of layer l of L = w + most - l (most - least) / (L - 1),     least = (k - w) / beta,  most = 2 (k - w) - least

    k=20, w=4, beta=4, 3 layers      32 20 8       4 slots for the window, and 28, 16 and 4 by score

The mean over layers is k. Where the first layer would have more slots than the prefix has keys, it keeps them all, and
the last one as much more. Which keys a layer keeps is the business of `method`: by default SnapKV's scores, with the
window of its last w queries in every layer. For a method without such a window, as lagkv, w is 0.

Differs from the paper: slots are rounded down, so that the total is never exceeded. The window is SnapKV's 64 here,
where the authors have 8 (`pyramid:method=(snapkv:window_size=8)`); where query heads share keys, the mean over the
group decides. beta is 20, as theirs.
"""

from dataclasses import dataclass

import torch

from assay.attention import attention
from assay.attention.base import HeadSlots, Layer, PrefixOf
from assay.core.errors import UserError


@attention.register("pyramid")
@dataclass(frozen=True, kw_only=True)
class Pyramid(PrefixOf):
    """Keeps more of a prefix in lower layers than in higher ones."""

    beta: float = 20.0
    """The last layer keeps a beta-th of the mean besides the window; 1: every layer the same."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beta < 1:
            raise UserError(f"{self.name}: beta={self.beta} is at least 1.")

    def budgets(self, layer: Layer, length: int, slots: int) -> HeadSlots:
        own = self.of_layer(layer.index, layer.layers, length, slots)
        return torch.full((layer.rows, layer.k.shape[1]), own, device=layer.q.device)

    def of_layer(self, index: int, layers: int, length: int, slots: int) -> int:
        """Return the slots of each head of one layer."""
        window = min(slots, self.always(length))
        mean, room = min(slots, length) - window, length - window
        if layers == 1:
            return window + mean
        most = min(2 * mean - mean / self.beta, room)
        least = 2 * mean - most
        # The tiny amount keeps a whole number, computed with rounding, from falling to the one below.
        return window + int(most - (most - least) * index / (layers - 1) + 1e-9)
