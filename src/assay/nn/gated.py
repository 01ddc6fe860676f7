"""A gated feed-forward layer is y = W_3 (gate(W_1 x) * W_2 x), without bias (Shazeer 2020)."""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn


class Gated(nn.Module):
    """The layer; W_1 and W_2 are the two halves of one matrix."""

    def __init__(self, d_model: int, inner: int, *, gate: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.gate = gate
        self.into = nn.Linear(d_model, 2 * inner, bias=False)
        self.out = nn.Linear(inner, d_model, bias=False)

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        gates, values = self.into(x).chunk(2, dim=-1)
        return self.out(self.gate(gates) * values)


def two_thirds(d_model: int) -> int:
    """Return 8 d / 3 rounded up to a multiple of 16: three matrices of this width weigh as much as two of width 4 d."""
    return 16 * -(-8 * d_model // 48)
