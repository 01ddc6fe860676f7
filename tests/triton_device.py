"""Where the Triton kernels of nn/ can be tested: a GPU, or their interpreter on a CPU (TRITON_INTERPRET=1)."""

import os
from importlib.util import find_spec

import pytest
import torch

from assay.nn.whole import has_kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
INTERPRETED = DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None
needs_triton = pytest.mark.skipif(
    not (INTERPRETED or has_kernels(torch.device(DEVICE))), reason="needs CUDA and Triton, or Triton's interpreter"
)


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator(DEVICE).manual_seed(seed), device=DEVICE)


def worst(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    """Return the largest norm of an error over the norm of what is wanted."""
    return max(((a.double() - b).norm() / (b.norm() + 1e-12)).item() for a, b in zip(found, wanted, strict=True))
