"""Root-mean-square normalisation (Zhang and Sennrich 2019) keeps the dtype of its input."""

from typing import Any, Literal

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import rms_norm, silu

from assay.core.on_use import Later
from assay.nn.axes import Tokens
from assay.nn.fused import fused, gated_norm_kernels
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
        return whole(self._alone, self._together, x, self.weight.to(x.dtype))

    def _alone(self, x: Tensor, gains: Tensor) -> Tensor:
        if _trains_with_kernels(x):
            return kernels.rms_norm(x[None], gains[None], self.eps)[0]
        return rms_norm(x, gains.shape, gains, self.eps)

    def _together(self, x: Tensor, gains: Tensor) -> Tensor:
        """Under vmap, each model has gains of its own."""
        if has_kernels(x.device):
            return kernels.rms_norm(x, gains, self.eps)
        return rms_norm(x, x.shape[-1:], eps=self.eps) * gains.view(len(gains), *[1] * (x.ndim - 2), -1)

    def of_heads(
        self,
        o: Float[Tensor, "batch heads rows e"],
        gate: Tokens | None = None,
        *,
        act: Literal["silu", "sigmoid"] = "silu",
        every: int = 1,
    ) -> Tokens:
        """Return RMSNorm(o) * act(gate), the norm head by head, with the heads side by side in a token. The last of
        `every` so many rows of o is a token's."""
        if fused("gated_norm"):
            dtype = precision(self.weight)
            return gated_norm_kernels.gated_norm(o, gate, self.weight, eps=self.eps, act=act, dtype=dtype, every=every)
        o = o[:, :, every - 1 :: every]
        # Norms are taken in the weights' precision, also under autocast.
        o = self(o.to(self.weight.dtype))
        if gate is not None:
            shares = silu(gate) if act == "silu" else torch.sigmoid(gate)
            o = o * rearrange(shares, "b t (h d) -> b h t d", h=o.shape[1])
        return rearrange(o, "b h t d -> b t (h d)")


def _trains_with_kernels(x: Tensor) -> bool:
    """Return whether a gradient will be asked for that a kernel of ours gives: torch's own, of the gains, takes as long
    as attention's whole backward pass."""
    if not (has_kernels(x.device) and x.requires_grad) or x.dtype == torch.float64:
        return False
    return not torch.compiler.is_compiling() and torch._C._functorch.maybe_current_level() is None


def precision(weight: Tensor) -> torch.dtype:
    """Return what a product after a norm with that weight takes."""
    device = weight.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
