"""Linear attention (Katharopoulos et al. 2020) has phi(q) . phi(k) for softmax's exp(q . k): the past is one matrix.

    S_t = S_{t-1} + phi(k_t) v_t^T;   o_t = S_t^T phi(q_t) / sqrt(d_k);   y = W_o RMSNorm(o)       per head
    normalize:  o_t is divided by sum_{s <= t} phi(q_t) . phi(k_s)

State: S, features x d_v scalars per head, whatever the length; a column more with `normalize`, for the sum of phi(k).

The layer is flash-linear-attention's, with its defaults: phi a product of two learned maps, no denominator, an RMSNorm
on every head's output. `feature_map=elu:normalize=True` gives the paper's weights; the RMSNorm, which the paper does
not have, stays.

Differs from the paper's layer:
- a learned map is one for all heads of a layer, where hedgehog was published with one per head; t2r has no bias
- weights start as torch starts a linear layer
"""

from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor
from torch.nn.functional import linear

from assay.core.errors import UserError
from assay.mixers import mixers
from assay.mixers.base import MixerModule
from assay.mixers.heads import MatrixHeads
from assay.nn.attention import HeadProjections, divided, linear_attention, linear_attention_step, with_ones
from assay.nn.axes import Memory, Read, Token, Tokens
from assay.nn.feature_maps import FEATURE_MAPS, ElementwiseProduct, FeatureMap, FeatureMapName
from assay.nn.fused import LARGEST, feature_kernels, fused, scan_kernels
from assay.nn.norm import LAYER_EPS, Norm


@mixers.register("linear_attention")
@dataclass(frozen=True, kw_only=True)
class LinearAttention(MatrixHeads):
    """Attention with a feature map in place of the exponential: a state of one matrix per head."""

    version: ClassVar[int] = 2
    ordered: ClassVar[bool] = False

    num_heads: int = 8
    feature_map: FeatureMapName = "elementwise_product"
    """What turns queries and keys into features, whose products are the weights; the first three are learned."""
    normalize: bool = False
    """Divide by the sum of the weights, which then must not be negative."""
    tie_qk: bool = False
    """One feature map for queries and keys."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.normalize and FEATURE_MAPS[self.feature_map].signed:
            fit = ", ".join(name for name, kind in FEATURE_MAPS.items() if not kind.signed)
            raise UserError(
                f"linear_attention: normalize=True divides by a sum of weights, which feature_map={self.feature_map} "
                f"can make zero or negative. Choose one of {fit}."
            )

    def core(self, d_model: int, max_len: int) -> MixerModule:
        heads = self.projections(d_model)
        query_map = FEATURE_MAPS[self.feature_map](heads.key_dim)
        key_map = query_map if self.tie_qk else FEATURE_MAPS[self.feature_map](heads.key_dim)
        return MatrixMemory(heads, query_map, key_map, normalize=self.normalize)

    def core_state(self, d_model: int, length: int) -> int:
        heads, features, values = self.matrices(d_model)
        return heads * features * (values + self.normalize)

    def matrices(self, d_model: int) -> tuple[int, int, int]:
        features = FEATURE_MAPS[self.feature_map].features(self.key_dim(d_model))
        return self.num_heads, features, self.value_dim(d_model)


class MatrixMemory(MixerModule):
    def __init__(self, heads: HeadProjections, query_map: FeatureMap, key_map: FeatureMap, *, normalize: bool) -> None:
        super().__init__()
        self.heads, self.query_map, self.key_map, self.normalize = heads, query_map, key_map, normalize
        self.norm = Norm(heads.value_dim, eps=LAYER_EPS)

    def forward(self, x: Tokens) -> Tokens:
        q, k, v = self._written_fused(x) if self._of_products else self._written(x)
        if fused("sum") and k.shape[-1] <= LARGEST:
            o, _ = scan_kernels.outer_scan(q, k, v, torch.zeros(v.shape[:3], device=v.device))
            return self._read(o)
        return self._read(linear_attention(q, k, v))

    def init_state(self, batch: int) -> Memory:
        shape = batch, self.heads.heads, self.key_map.dim_out, self.heads.value_dim + self.normalize
        return self.heads.out.weight.new_zeros(shape)

    def step(self, x: Token, state: Memory) -> tuple[Token, Memory]:
        o, state = linear_attention_step(*self._written(x[:, None]), state)
        return self._read(o).squeeze(1), state

    def _written(self, x: Tokens) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.heads.split(x)
        q, k = self.query_map(q), self.key_map(k)
        return q * self.heads.key_dim**-0.5, k, with_ones(v) if self.normalize else v

    @property
    def _of_products(self) -> bool:
        """Whether features are products of linear layers, and made by kernels."""
        return fused("features") and isinstance(self.query_map, ElementwiseProduct)

    def _written_fused(self, x: Tokens) -> tuple[Tensor, Tensor, Tensor]:
        """`_written` with one projection: linear layers one after the other are one linear layer."""
        heads, maps = self.heads, cast(tuple[ElementwiseProduct, ElementwiseProduct], (self.query_map, self.key_map))
        *of_heads, values = heads.qkv.weight.split(heads.sizes)
        factors = [
            (layer.weight @ weight.unflatten(0, (heads.heads, -1))).flatten(0, 1)
            for weight, both in zip(of_heads, maps, strict=True)
            for layer in (both.one, both.other)
        ]
        projected = linear(x, torch.cat([*factors, values]))
        biases = torch.stack([layer.bias for both in maps for layer in (both.one, both.other)])
        return feature_kernels.features(projected, biases, heads=heads.heads, scale=heads.key_dim**-0.5)

    def _read(self, o: Read) -> Tokens:
        o = divided(o) if self.normalize else o
        return self.heads.out(self.norm.of_heads(o))
