"""Small coders with weights that no initialisation gives, the same for the peer and for the tests."""

import torch

from assay.metrics.sparsity import RidgeDecoder
from assay.nn.preparation import Preparation
from assay.nn.random import stream
from assay.sparse_coders import sparse_coders
from assay.sparse_coders.base import CoderModule, FittedModule, TrainedCoder

D_IN, D_CODE = 6, 10
WORDS = (
    "lse_infomax",
    "lse_infomax:scale=unit_norm",
    "relu_l1",
    "relu_l1:form=spec",
    "topk:k=3",
    "batch_topk:k=3",
    "jump_relu",
    "gated",
    "matryoshka:k=3",
    "random_relu",
    "fast_ica:rectified=true",
)


def prepared() -> torch.Tensor:
    """The rows that the coders are made for: centred and scaled."""
    return torch.randn(8, D_IN, generator=stream(0, "rows"))


def preparation() -> Preparation:
    return Preparation(3 * torch.randn(D_IN, generator=stream(0, "mean")), 2.5)


def raw() -> torch.Tensor:
    """The same rows, as a model would give them."""
    return preparation().restore(prepared())


def decoder() -> RidgeDecoder:
    rng = stream(0, "decoder")
    return RidgeDecoder(torch.randn(D_CODE, D_IN, generator=rng), torch.randn(D_IN, generator=rng))


@torch.no_grad()
def coder(word: str) -> CoderModule:
    """Every parameter random, so that a bias or a gate in the wrong place shows."""
    plugin, rng = sparse_coders.parse(word), stream(0, "coder", word)
    if not isinstance(plugin, TrainedCoder):
        W, b = torch.randn(D_CODE, D_IN, generator=rng), torch.randn(D_CODE, generator=rng)
        return FittedModule(W, b, rectified=True)
    module = plugin.build(1, D_IN, D_CODE)
    for parameter in module.parameters():
        parameter.copy_(0.5 * torch.randn(parameter.shape, generator=rng))
    if hasattr(module, "threshold") and "threshold" in dict(module.named_buffers()):
        module.threshold.fill_(0.4)
    return module
