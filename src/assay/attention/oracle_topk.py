"""The oracle keeps the keys with the highest scores, per query and head: the best choice of single keys by weight.

    scores of query 3:  2.0  -1.0  0.5  0.1        slots=1 keeps keys 0 and 3 (its own key is always kept)

It computes every score in order to leave most of them out, so it saves nothing: an upper bound for methods that guess
the scores, in the weight kept; a lower loss at the same budget is still possible, since the values play a part too.

No paper: it is a bound. Of equal scores the earlier key is kept.
"""

from dataclasses import dataclass

from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from assay.attention import attention
from assay.attention.base import Budget, Layer, Select, best_in_parts


@attention.register("oracle_topk")
@dataclass(frozen=True, kw_only=True)
class OracleTopk(Select):
    """Keeps the keys of highest score for each query."""

    def keep(self, layer: Layer, budget: Budget) -> Bool[Tensor, "rows heads query key"]:
        def scores(first: int, end: int) -> Float[Tensor, "rows heads query key"]:
            return rearrange(layer.scores_between(first, end), "r h g q k -> r (h g) q k")

        return best_in_parts(scores, layer, budget)

    def vectors_read(self, visible: float, attended: float) -> float:
        """Every key is read for the scores, and the chosen values."""
        return visible + attended
