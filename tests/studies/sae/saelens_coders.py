"""Small coders with weights that no initialisation gives, the same for the peer and for the tests."""

import torch

from assay.metrics.sparsity import RidgeDecoder
from assay.nn.random import stream
from assay.sparse_coders import sparse_coders
from assay.sparse_coders.base import CoderModule

D_IN, D_CODE = 10, 14
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
)


def rows() -> torch.Tensor:
    return torch.randn(12, D_IN, generator=stream(0, "rows"))


def decoder() -> RidgeDecoder:
    rng = stream(0, "decoder")
    return RidgeDecoder(torch.randn(D_CODE, D_IN, generator=rng), torch.randn(D_IN, generator=rng))


@torch.no_grad()
def coder(word: str) -> CoderModule:
    """Every parameter random, so that a bias or a gate in the wrong place shows."""
    module = sparse_coders.parse(word).build(1, D_IN, D_CODE)
    rng = stream(0, "coder", word)
    for parameter in module.parameters():
        parameter.copy_(0.5 * torch.randn(parameter.shape, generator=rng))
    if hasattr(module, "threshold") and "threshold" in dict(module.named_buffers()):
        module.threshold.fill_(0.4)
    return module
