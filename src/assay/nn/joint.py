"""Linear layers that see the same tokens are one product, which a GPU computes faster than several small ones."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import linear

from assay.nn.axes import Tokens

ALIGNED = 64
"""Channels of a joint projection are a multiple of this: rows of bf16 that begin in odd places slow a product down."""


def joint(x: Tokens, *weights: Float[Tensor, "_ d_model"]) -> tuple[Float[Tensor, "batch time channels"], int]:
    """Return W x for each of the weights, side by side, and how many channels of zeros fill them up at the end."""
    missing = -sum(len(weight) for weight in weights) % ALIGNED
    empty = weights[0].new_zeros(missing, x.shape[-1])
    return linear(x, torch.cat([*weights, empty])), missing
