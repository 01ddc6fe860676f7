"""The tokens of the expressivity tasks have three blocks side by side; both tasks share their sizes.

    x_t = [ key: K_keys | value: V_dim | feature: F_feat ]        d_in = K_keys + V_dim + F_feat, 8 + 4 + 12 = 24

One encoder serves both tasks, since their tokens are alike.
"""

from dataclasses import dataclass

from assay.tasks.base import Task


@dataclass(frozen=True, kw_only=True)
class BlockTask(Task):
    """A task over sequences of L such tokens; `self.key`, `.value` and `.feature` are the blocks' channels."""

    L: int = 32
    """Tokens of a sequence; more than twice K_keys."""
    K_keys: int = 8
    """Kinds of key, and channels of a token's key block."""
    V_dim: int = 4
    """Channels of a token's value block."""
    F_feat: int = 12
    """Channels of a token's feature block; even."""

    def __post_init__(self) -> None:
        self.require_positive("L", "K_keys", "V_dim")
        self.require(
            self.F_feat >= 2 and self.F_feat % 2 == 0,
            f"F_feat={self.F_feat} must be even and at least 2, since the feature block has two halves. "
            f"Use F_feat={max(2, self.F_feat + self.F_feat % 2)}.",
        )
        self.require(
            2 * self.K_keys < self.L,
            f"L={self.L} is too short for K_keys={self.K_keys}: a sequence holds more than twice as many tokens as "
            f"keys. Use L={2 * self.K_keys + 1} or more, or fewer keys.",
        )

    @property
    def d_in(self) -> int:
        return self.K_keys + self.V_dim + self.F_feat

    @property
    def key(self) -> slice:
        return slice(0, self.K_keys)

    @property
    def value(self) -> slice:
        return slice(self.K_keys, self.K_keys + self.V_dim)

    @property
    def feature(self) -> slice:
        return slice(self.K_keys + self.V_dim, self.d_in)
