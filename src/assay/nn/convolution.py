"""A causal depthwise convolution runs all at once or token by token; where there is none, its place is held."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

from assay.nn import scan
from assay.nn.axes import Token, Tokens


class ShortConvolution(nn.Module):
    """y_t = sum_{i<kernel} w_i x_{t-kernel+1+i}, channel by channel: the last weight is the present token's. Zeros
    stand before the first token. Weights start as torch starts a depthwise convolution, a bias per channel likewise.
    Keeps the input dtype: fp32 weights would upcast half precision, and the kernels behind it to float32 products."""

    def __init__(self, d_model: int, kernel: int, *, bias: bool = False) -> None:
        super().__init__()
        self.kernel = kernel
        self.weight = nn.Parameter(torch.empty(d_model, kernel))
        self.bias = nn.Parameter(torch.empty(d_model)) if bias else None
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(kernel**-0.5), kernel**-0.5)

    def forward(self, x: Tokens) -> Tokens:
        if scan.backend == "triton":
            from assay.nn.convolution_kernels import convolve

            return convolve(x, self.weight, self.bias)
        # A few shifted products are faster on a CPU than a depthwise convolution and its gradient.
        padded, time = pad(x, (0, 0, self.kernel - 1, 0)), x.shape[1]
        y = sum((padded[:, i : i + time] * self.weight[:, i] for i in range(self.kernel)), torch.zeros_like(x))
        return self._shifted(y).to(x.dtype)

    def init_state(self, batch: int) -> Float[Tensor, "batch seen d_model"]:
        return self.weight.new_zeros(batch, self.kernel - 1, len(self.weight))

    def step(
        self, x: Token, seen: Float[Tensor, "batch seen d_model"]
    ) -> tuple[Token, Float[Tensor, "batch seen d_model"]]:
        window = torch.cat([seen, x[:, None]], dim=1)
        y = (window * self.weight.T).sum(dim=1)
        return self._shifted(y).to(x.dtype), window[:, 1:]

    def _shifted(self, y: Float[Tensor, "*axes d_model"]) -> Float[Tensor, "*axes d_model"]:
        return y if self.bias is None else y + self.bias


class NoConvolution(nn.Module):
    """Stands where a layer could have a short convolution: it changes nothing and carries nothing."""

    weight = bias = None

    def forward(self, x: Tokens) -> Tokens:
        return x

    def init_state(self, batch: int) -> tuple[()]:
        return ()

    def step(self, x: Token, seen: tuple[()]) -> tuple[Token, tuple[()]]:
        return x, seen


def short_convolution(channels: int, kernel: int, *, bias: bool = False) -> ShortConvolution | NoConvolution:
    """Return the convolution, or for a kernel of 0 what holds its place."""
    return ShortConvolution(channels, kernel, bias=bias) if kernel else NoConvolution()
