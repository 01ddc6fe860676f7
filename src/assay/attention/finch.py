"""FINCH (Corallo and Papotti 2024, TACL 12) lets the question at the end of a prompt choose what is kept of it.

    score_j = mean over the question's queries t of n_t a_tj,    a_tj the attention of query t to key j, of n_t in sight

    question_size=2, keys 0 1 2 3     a = .1 .2 .4 .3            n = 3 and 4: the weights of a query that sees more keys
                                          .1 .1 .3 .3 .2         are smaller, and count for more

The question's own keys always stay. Nothing is averaged over neighbours, as SnapKV does.

Differs from the paper: the prompt is read at once, where the authors read it in pieces, each with the question behind
it and cut down before the next one comes; keys keep their positions, where theirs move up. Where query heads share
keys, the mean over the group decides. A text has no question: the end of its first half stands for one, so that
`question_size` is the number of its tokens.
"""

from dataclasses import dataclass

from einops import reduce
from torch.nn.functional import pad

from assay.attention import attention
from assay.attention.base import Budget, Layer, Prefix, PrefixScores


@attention.register("finch")
@dataclass(frozen=True, kw_only=True)
class Finch(Prefix):
    """Keeps the keys of a prompt that the question at its end attends to."""

    departure = "absolute positions"

    question_size: int = 16
    """Tokens of the question, the last of the prefix."""

    def score(self, layer: Layer, length: int) -> PrefixScores:
        first = max(0, length - self.question_size)
        visible = layer.visible_between(first, length)[:, None, None]
        weights = layer.weights_between(first, length) * visible.sum(-1, keepdim=True)
        votes = reduce(weights[..., :first], "r h g q k -> r h k", "mean")
        return pad(votes, (0, length - first), value=float("inf"))

    def always(self, length: int) -> int:
        return min(length, self.question_size)

    def check(self, time: int, budget: Budget) -> None:
        self.require(time, budget, self.question_size, f"fewer than its question of {self.question_size}")
