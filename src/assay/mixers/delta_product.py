"""DeltaProduct (Siems et al. 2025) takes several steps of the delta rule per token, each with its own key and value.

    S <- a_t S_{t-1};   S <- (I - b_j k_j k_j^T) S + b_j k_j v_j^T  for j = 1..n;   o_t = S^T q_t / sqrt(d_k)   per head
    q, k_j, v_j = swish(conv(W x)), q and k then of length 1;   b_j = beta_max * sigmoid(W_b x_t)
    a_t = exp(-exp(A) softplus(W_a x_t + c));   y = W_o (RMSNorm(o) * swish(W_g x))

One delta step with beta_max=2 can reflect; a product of n of them is any orthogonal map of n dimensions, and so can
permute n + 1 things: by the authors' theorem num_householder=4 suffices for S5 in one layer. forget=False has a_t = 1.

State: S, d_k x d_v scalars per head, whatever the length, and 3 (1 + 3 n) d_model of the convolution.

The layer is flash-linear-attention's gated one: values twice as wide as keys, 2 steps, beta_max 2, a convolution of 4
tokens on q, k and v, exp(A) from 0 to 16 at the start.

Differs from the paper: 4 heads whatever the width, where its models have heads of 128 and 256 channels.
"""

from dataclasses import dataclass
from typing import ClassVar

from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

from assay.mixers import mixers
from assay.mixers.base import MixerModule
from assay.mixers.heads import DeltaHeads, DeltaMemory, GatedReading
from assay.nn.attention import HeadProjections
from assay.nn.axes import Tokens
from assay.nn.norm import LAYER_EPS, Norm
from assay.nn.recurrence import SelectiveDecay

Rows = Float[Tensor, "batch heads rows d"]
RowValues = Float[Tensor, "batch heads rows e"]


@mixers.register("delta_product")
@dataclass(frozen=True, kw_only=True)
class DeltaProduct(DeltaHeads):
    """Gated DeltaNet with several steps of the delta rule per token."""

    other_names: ClassVar[tuple[str, ...]] = ("deltaproduct",)

    expand_v: float = 2.0
    beta_max: float = 2.0
    """The strongest write: 1 replaces a value, 2 allows negative eigenvalues."""
    num_householder: int = 2
    """Steps of the delta rule per token."""
    forget: bool = True
    """Whether the state decays, by a data-dependent factor per head."""

    def core(self, d_model: int, max_len: int) -> MixerModule:
        heads = self.projections(d_model, writes=self.num_householder)
        return ProductMemory(heads, d_model, beta_max=self.beta_max, forget=self.forget)

    def convolved_channels(self, d_model: int) -> int:
        keys, values = self.key_dim(d_model), self.value_dim(d_model)
        return self.num_heads * (keys + self.num_householder * (keys + values))


class ProductMemory(GatedReading, DeltaMemory):
    """Treats the steps of a token as so many tokens of the delta rule; the last one reads."""

    def __init__(self, heads: HeadProjections, d_model: int, *, beta_max: float, forget: bool) -> None:
        super().__init__(heads, d_model, beta_max=beta_max)
        self.steps = heads.steps
        self.decay = SelectiveDecay(d_model, heads.heads, slowest=0.0) if forget else None
        self.gate = nn.Linear(d_model, heads.heads * heads.value_dim, bias=False)
        self.norm = Norm(heads.value_dim, eps=LAYER_EPS)

    @property
    def beside(self) -> tuple[nn.Linear, ...]:
        return (self.beta,) if self.decay is None else (self.beta, self.decay.project)

    def written(self, x: Tokens, q: Rows, k: Rows, v: RowValues, *beside: Tensor) -> tuple[Tensor, ...]:
        beta = rearrange(self.strengths(beside[0]), "b (n h) t -> b h (t n)", n=self.steps)
        if self.decay is None:
            return q, k, v, beta
        _, log_decay = self.decay(beside[1])
        return q, k, v, beta, rearrange(pad(log_decay[..., None], (0, self.steps - 1)), "b h t n -> b h (t n)")
