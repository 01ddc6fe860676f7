"""Blocks of keys by curvature alone (CAB V3: "pure FRC"), in a causal form: see curvature.py for the formula.

F of query block 4:   0: .7   1: .2   2: .9   3: .4   4: its own        3 blocks: 4, 2, 0
"""

from dataclasses import dataclass

from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.attention import attention
from assay.attention.base import Layer, highest
from assay.attention.curvature import CurvatureSelect, with_own


@attention.register("cab_v3")
@dataclass(frozen=True, kw_only=True)
class CabV3(CurvatureSelect):
    """Blocks of keys by curvature."""

    def choose(
        self,
        layer: Layer,
        curvature: Float[Tensor, "rows heads block block"],
        count: Int[Tensor, "rows 1 block 1"],
        among: Bool[Tensor, "rows 1 block block"],
    ) -> Bool[Tensor, "rows heads block block"]:
        return highest(with_own(curvature), count, among)
