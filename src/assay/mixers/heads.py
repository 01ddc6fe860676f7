"""Mixers with heads share these options, and recurrences with a matrix per head these ways to write and read it."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from assay.core.errors import UserError
from assay.mixers.base import InnerConvolution, Mixer, MixerModule
from assay.nn.attention import Finish, HeadProjections, head_dim
from assay.nn.axes import Tokens
from assay.nn.fused import fused, gate_kernels
from assay.nn.norm import Norm
from assay.nn.recurrence import DeltaRecurrence, Recurrence
from assay.nn.scan import Keys, PerHead, Values


@dataclass(frozen=True, kw_only=True)
class SoftmaxHeads(Mixer):
    """Options of softmax attention in any form, which is blind to order without rotary positions."""

    ordered: ClassVar[bool] = False

    num_heads: int = 8
    """Heads: parts of d_model / num_heads channels, each of which attends by itself."""
    num_kv_heads: int = 0
    """Heads of keys and values, each shared by num_heads / num_kv_heads query heads; 0: num_heads."""
    positions: Literal["none", "rotary"] = "none"
    """Positions that scores depend on; the model's embedding may add learned positions besides."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_heads % self.kv_heads:
            raise UserError(
                f"{self.name}: num_heads={self.num_heads} must be a multiple of "
                f"num_kv_heads={self.num_kv_heads} (0: num_heads)."
            )

    @property
    def kv_heads(self) -> int:
        return self.num_kv_heads or self.num_heads

    @property
    def rotary(self) -> bool:
        return self.positions == "rotary"

    def tells_order(self) -> bool:
        return self.rotary or super().tells_order()

    def projections(self, d_model: int) -> HeadProjections:
        dim = head_dim(d_model, self.num_heads)
        if self.rotary and dim % 2:
            raise UserError(
                f"{self.name}:positions=rotary rotates pairs of channels, and d_model {d_model} gives {dim} to each of "
                f"{self.num_heads} heads: choose num_heads so that this is even."
            )
        return HeadProjections(d_model, heads=self.num_heads, kv_heads=self.kv_heads, key_dim=dim, value_dim=dim)

    def cache_size(self, d_model: int, tokens: int) -> int:
        """Return the scalars in the keys and values of `tokens` tokens."""
        return 2 * self.kv_heads * head_dim(d_model, self.num_heads) * tokens


@dataclass(frozen=True, kw_only=True)
class MatrixHeads(Mixer):
    """Options of a mixer that keeps a (d_key, d_value) matrix per head, and what follows from them."""

    swish: ClassVar[bool] = False
    """Whether queries, keys and values pass a SiLU also where no convolution comes before it."""
    finish: ClassVar[Finish] = "none"
    """What becomes of queries and keys after that."""

    num_heads: int = 4
    """Heads: parts of the channels, each with a state of its own."""
    expand_k: float = 1.0
    """Channels of all queries (and of all keys) as a multiple of d_model."""
    expand_v: float = 1.0
    """Channels of all values as a multiple of d_model."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.expand_k <= 0 or self.expand_v <= 0:
            raise UserError(f"{self.name}: expand_k={self.expand_k} and expand_v={self.expand_v} must be above 0.")

    def core_state(self, d_model: int, length: int) -> int:
        return math.prod(self.matrices(d_model))

    def matrices(self, d_model: int) -> tuple[int, int, int]:
        return self.num_heads, self.key_dim(d_model), self.value_dim(d_model)

    def key_dim(self, d_model: int) -> int:
        return head_dim(int(self.expand_k * d_model), self.num_heads)

    def value_dim(self, d_model: int) -> int:
        return head_dim(int(self.expand_v * d_model), self.num_heads)

    def projections(self, d_model: int, *, writes: int = 1) -> HeadProjections:
        """Return the projections, with `writes` keys and values of a token as many steps."""
        return HeadProjections(
            d_model,
            heads=self.num_heads,
            kv_heads=self.num_heads * writes,
            key_dim=self.key_dim(d_model),
            value_dim=self.value_dim(d_model),
            conv=self.inner_kernel,
            swish=self.swish or bool(self.inner_kernel),
            finish=self.finish,
            steps=writes,
        )


@dataclass(frozen=True, kw_only=True)
class ConvolvedHeads(InnerConvolution, MatrixHeads):
    """Options of a mixer with a matrix per head and a short convolution on queries, keys and values."""

    def convolved_channels(self, d_model: int) -> int:
        return self.num_heads * (2 * self.key_dim(d_model) + self.value_dim(d_model))


@dataclass(frozen=True, kw_only=True)
class DeltaHeads(ConvolvedHeads):
    """Options of a mixer that overwrites by the delta rule."""

    swish: ClassVar[bool] = True
    finish: ClassVar[Finish] = "unit"

    conv: int = 4
    """Tokens that the short convolution sees, as published; 0: none."""
    beta_max: float = 1.0
    """The strongest write: 1 replaces a value, 2 allows negative eigenvalues."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.beta_max <= 2:
            raise UserError(f"{self}: beta_max must be above 0 and at most 2, beyond which the state grows.")


class DeltaMemory(DeltaRecurrence, MixerModule):
    """Writes by the delta rule: queries and keys are unit vectors, b_t = beta_max * sigmoid(W_b x_t)."""

    norm: Norm

    def __init__(self, heads: HeadProjections, d_model: int, *, beta_max: float) -> None:
        super().__init__(heads)
        self.beta_max, self.beta = beta_max, nn.Linear(d_model, heads.kv_heads, bias=False)

    @property
    def beside(self) -> tuple[nn.Linear, ...]:
        return (self.beta,)

    def written(self, x: Tokens, q: Keys, k: Keys, v: Values, *beside: Tensor) -> tuple[Tensor, ...]:
        return q, k, v, self.strengths(beside[0])

    def strengths(self, projected: Float[Tensor, "batch time heads"]) -> PerHead:
        """Return b, given W_b x."""
        if fused("gates"):
            return gate_kernels.per_head(projected, None, "sigmoid", scale=self.beta_max)
        beta = self.beta_max * torch.sigmoid(projected.to(self.norm.weight.dtype))
        return rearrange(beta, "b t h -> b h t")


class GatedReading(Recurrence):
    """Reads y = W_o (RMSNorm(o) * swish(W_g x)), the norm head by head; without a gate, W_o RMSNorm(o)."""

    gate: nn.Linear | None
    norm: Norm

    def read(self, o: Float[Tensor, "batch heads rows e"], x: Tokens) -> Tokens:
        gate = None if self.gate is None else self.gate(x)
        return self.heads.out(self.norm.of_heads(o, gate, every=self.heads.steps))
