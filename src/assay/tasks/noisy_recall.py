"""Noisy recall (MAD, Poli et al. 2024) is in-context recall among slots of noise, which have to be ignored.

    C 7 n m A 4 m m C 7 B 4 n n A 4  ->  7, 4      n, m: noise tokens; read at C and A, where a key returns

`tasks/repeats.py` has the law. Of the 32 tokens 16 are noise, so there are 8 keys and 8 values; a share `frac_noise` of
the slots, rounded, holds two uniform noise tokens each, in uniform places, never the last.

Floor and ceiling are those of `in_context_recall`: 1 in 8 by a uniform guess, `frequent` by counting, and 1 by lookup.

Differs from the paper: the number of noise slots is fixed, where theirs are drawn slot by slot with that probability;
the rest is as in `in_context_recall`.
"""

from dataclasses import dataclass

from assay.tasks import tasks
from assay.tasks.repeats import RepeatTask


@tasks.register("noisy_recall")
@dataclass(frozen=True, kw_only=True)
class NoisyRecall(RepeatTask):
    """Recall the value of every key that is shown again, among noise."""

    vocab_size: int = 32
    noise_vocab_size: int = 16
    """How many of the tokens are noise."""
    frac_noise: float = 0.2
    """Share of the places for a key and its value that hold noise instead, in [0, 1)."""

    def __post_init__(self) -> None:
        self.require_positive("noise_vocab_size")
        self.require(
            0 <= self.frac_noise < 1, f"frac_noise={self.frac_noise} is no share. Use a number from 0 to below 1."
        )
        super().__post_init__()
        self.require(
            self.noise_slots <= self.slots - 2,
            f"frac_noise={self.frac_noise} of {self.slots} slots leaves no key to ask for. "
            f"Use frac_noise={(self.slots - 2) / self.slots:.2g} or less.",
        )

    @property
    def noise_vocab(self) -> int:
        return self.noise_vocab_size

    @property
    def noise_slots(self) -> int:
        return round(self.frac_noise * self.slots)
