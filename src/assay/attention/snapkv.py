"""SnapKV (Li et al. 2024, arXiv 2404.14469) lets the end of a prompt choose what is kept of it.

    score_j = mean attention of the last `window_size` queries of the prefix to key j, averaged over kernel_size
              neighbours; the last window_size keys always stay

    prefix 8, window_size=2, slots=4     query 7   # # # # # # # #       the last of the prefix: dense
                                               8   . # # . . . # # #     1 and 2 by score, 6 and 7 the window
                                               9   . # # . . . # # # #

The window of 64, the kernel of 5 and the average are the defaults of the class in the authors' code.

Differs from the paper: where query heads share keys, the mean over the group decides, since nothing smaller can leave a
cache; the authors repeat the keys and decide per query head. Their experiments have windows of 16 to 32, and their code
can also pool by the maximum. There is no prompt in a text: its first half, or `prefix` tokens, stands for one.
"""

from dataclasses import dataclass

from einops import rearrange, reduce
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import avg_pool1d, pad

from assay.attention import attention
from assay.attention.base import Budget, Layer, Prefix, PrefixScores
from assay.core.errors import UserError


@attention.register("snapkv")
@dataclass(frozen=True, kw_only=True)
class SnapKV(Prefix):
    """Keeps the keys of a prefix that its last queries attend to."""

    window_size: int = 64
    """Last queries of the prefix, which vote, and whose keys are kept."""
    kernel_size: int = 5
    """Neighbours that share their votes; odd."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kernel_size % 2 == 0:
            raise UserError(f"{self.name}: kernel_size={self.kernel_size} has no middle; make it odd.")

    def score(self, layer: Layer, length: int) -> PrefixScores:
        first = max(0, length - self.window_size)
        votes = reduce(layer.weights_between(first, length)[..., :first], "r h g q k -> r h k", "mean")
        return pad(self.pooled(votes), (0, length - first), value=float("inf"))

    def always(self, length: int) -> int:
        return min(length, self.window_size)

    def pooled(self, votes: Float[Tensor, "rows kv_heads key"]) -> Float[Tensor, "rows kv_heads key"]:
        if not votes.shape[-1]:
            return votes
        flat = rearrange(votes, "r h k -> (r h) 1 k")
        pooled = avg_pool1d(flat, self.kernel_size, stride=1, padding=self.kernel_size // 2)
        return rearrange(pooled, "(r h) 1 k -> r h k", r=len(votes))

    def check(self, time: int, budget: Budget) -> None:
        self.require(time, budget, self.window_size, f"fewer than its window of {self.window_size}")
