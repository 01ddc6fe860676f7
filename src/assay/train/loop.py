"""The plain training loop."""

from collections.abc import Callable

from torch import Tensor, nn

from assay.train.adamw import FusedAdamW


def descend(model: nn.Module, loss: Callable[[], Tensor], *, steps: int, lr: float) -> None:
    """Take `steps` of Adam on `loss()`, where the caller draws its batches."""
    adam = FusedAdamW(list(model.parameters()), lr=lr)
    for _ in range(steps):
        model.zero_grad(set_to_none=True)
        loss().backward()
        adam.step([p.grad for p in adam.tensors])
