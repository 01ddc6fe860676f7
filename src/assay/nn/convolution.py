"""A causal depthwise convolution runs all at once or token by token."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

from assay.nn import scan
from assay.nn.axes import Token, Tokens


class ShortConvolution(nn.Module):
    """y_t = sum_{i<kernel} w_i x_{t-kernel+1+i}, channel by channel: the last weight is the present token's. Zeros
    stand before the first token."""

    def __init__(self, d_model: int, kernel: int) -> None:
        super().__init__()
        self.kernel = kernel
        self.weight = nn.Parameter(torch.empty(d_model, kernel))
        nn.init.uniform_(self.weight, -(kernel**-0.5), kernel**-0.5)

    def forward(self, x: Tokens) -> Tokens:
        if scan.backend == "triton":
            from assay.nn.convolution_kernels import convolve

            return convolve(x, self.weight)
        # A few shifted products are faster on a CPU than a depthwise convolution and its gradient.
        padded, time = pad(x, (0, 0, self.kernel - 1, 0)), x.shape[1]
        return sum((padded[:, i : i + time] * self.weight[:, i] for i in range(self.kernel)), torch.zeros_like(x))

    def init_state(self, batch: int) -> Float[Tensor, "batch seen d_model"]:
        return self.weight.new_zeros(batch, self.kernel - 1, len(self.weight))

    def step(
        self, x: Token, seen: Float[Tensor, "batch seen d_model"]
    ) -> tuple[Token, Float[Tensor, "batch seen d_model"]]:
        window = torch.cat([seen, x[:, None]], dim=1)
        return torch.einsum("btd,dt->bd", window, self.weight), window[:, 1:]
