"""The plain training loop."""

from collections.abc import Callable

import torch
from torch import Tensor, nn


def descend(model: nn.Module, loss: Callable[[], Tensor], *, steps: int, lr: float) -> None:
    """`steps` of Adam on whatever `loss()` gives; the caller draws its batches there."""
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, fused=True)
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=True)
        loss().backward()
        optimizer.step()
