"""Root-mean-square normalisation (Zhang and Sennrich 2019) that stays as narrow as its input."""

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import rms_norm


class Norm(nn.RMSNorm):
    """Of half precision it makes half precision: wide weights would widen it, and keep torch from its fused kernel."""

    def __init__(self, width: int) -> None:
        super().__init__(width, eps=1e-6)

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        return rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)
