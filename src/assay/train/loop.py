"""The plain training loop."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from assay.train.adamw import FusedAdamW


def descend(model: nn.Module, loss: Callable[[], Tensor], *, steps: int, lr: float) -> None:
    """Take `steps` of Adam on `loss()`, where the caller draws its batches."""
    parameters = list(model.parameters())
    # On CUDA the kernel takes tensors of one type.
    kinds = dict.fromkeys(p.dtype for p in parameters)
    adams = [FusedAdamW([p for p in parameters if p.dtype == kind], lr=lr) for kind in kinds]
    for _ in range(steps):
        model.zero_grad(set_to_none=True)
        loss().backward()
        with torch.no_grad():
            for adam in adams:
                adam.step([p.grad for p in adam.tensors])
