"""Root-mean-square normalisation (Zhang and Sennrich 2019) keeps the dtype of its input."""

from functools import partial
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import rms_norm

from assay.core.on_use import Later
from assay.nn.whole import has_kernels, whole

kernels: Any = Later("assay.nn.kernels")  # Triton, which is on CUDA alone
EPS = 1e-6
"""Added to the mean square, in the models' own norms."""
LAYER_EPS = 1e-5
"""The same inside a mixer: the published layers have it."""


class Norm(nn.RMSNorm):
    """Keeps the input dtype: fp32 weights would upcast half precision, and keep torch from its fused kernel."""

    def __init__(self, width: int, *, eps: float = EPS) -> None:
        super().__init__(width, eps=eps)

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        alone, together = partial(_alone, eps=self.eps), partial(_together, eps=self.eps)
        return whole(alone, together, x, self.weight.to(x.dtype))


def _alone(x: Float[Tensor, "*batch d"], gains: Float[Tensor, " d"], *, eps: float | None) -> Float[Tensor, "*batch d"]:
    return rms_norm(x, gains.shape, gains, eps)


def _together(x: Float[Tensor, "models *batch d"], gains: Float[Tensor, "models d"], *, eps: float | None) -> Tensor:
    if has_kernels(x.device):
        return kernels.rms_norm(x, gains, eps)
    return rms_norm(x, x.shape[-1:], eps=eps) * gains.view(len(gains), *[1] * (x.ndim - 2), -1)
