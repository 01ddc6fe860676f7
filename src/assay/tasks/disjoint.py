"""Disjoint sets (Arora et al. 2024) ask for the one token that two lists share.

    1 | 17 42 9 | 2 | 55 8 42 23 61 | 3  ->  42       read at the last token

Token 1 opens the sequence, 2 stands between the lists, 3 asks; 4..V-1 are contents. All tokens of both lists are
distinct, uniform among the contents, but for one: a uniform token of the short list replaces a uniform one of the long
list, and is the answer. The short list comes first, so a small state can hold it while the long one passes.

Differs from the paper: the short list always comes first, as in the spec, where the paper compares both orders; and the
mask is causal throughout, where its own model reads the lists in both directions.
"""

from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Int
from torch import Tensor

from assay.tasks import tasks
from assay.tasks.base import Batch, Task, TaskShape, Tokens
from assay.tasks.subsets import distinct

PREFIX, BETWEEN, ASK, CONTENT = 1, 2, 3, 4


@tasks.register("disjoint")
@dataclass(frozen=True, kw_only=True)
class Disjoint(Task):
    """Name the token that a short and a long list have in common."""

    vocab_size: int = 128
    """Kinds of token; the first 4 are kept for marks, and lists are made of the others."""
    short_length: int = 8
    """Tokens of the first list."""
    long_length: int = 32
    """Tokens of the second list."""

    def __post_init__(self) -> None:
        self.require_positive("short_length", "long_length")
        needed = CONTENT + self.short_length + self.long_length
        self.require(
            self.vocab_size >= needed,
            f"vocab_size={self.vocab_size} leaves too few tokens for lists of short_length={self.short_length} and "
            f"long_length={self.long_length}. Use vocab_size={needed} or more.",
        )

    def shape(self) -> TaskShape:
        length = self.short_length + self.long_length + 3
        return TaskShape(inputs=Tokens(self.vocab_size), outputs=Tokens(self.vocab_size), length=length)

    @property
    def short(self) -> slice:
        """Positions of the short list."""
        return slice(1, 1 + self.short_length)

    @property
    def long(self) -> slice:
        return slice(2 + self.short_length, 2 + self.short_length + self.long_length)

    def sample(self, batch: int, rng: torch.Generator) -> Batch:
        length = self.shape().length
        # Both lists are cut from one draw of distinct tokens.
        (content,) = distinct(batch, self.short_length + self.long_length, (self.vocab_size - CONTENT,), rng)
        tokens = content + CONTENT
        source = torch.randint(self.short_length, (batch, 1), generator=rng, device=rng.device)
        place = torch.randint(self.long_length, (batch, 1), generator=rng, device=rng.device)
        answer = tokens.gather(1, source)
        tokens.scatter_(1, self.short_length + place, answer)
        inputs = torch.full((batch, length), PREFIX, device=rng.device)
        inputs[:, self.short], inputs[:, self.long] = tokens.tensor_split((self.short_length,), dim=1)
        inputs[:, self.long.start - 1].fill_(BETWEEN)
        inputs[:, -1].fill_(ASK)
        positions = torch.full((batch, 1), length - 1, device=rng.device)
        return Batch(inputs=inputs, targets=answer, positions=positions)

    def oracle(self, batch: Batch) -> Int[Tensor, "batch 1"]:
        """Compare every token of one list with every token of the other."""
        short = batch.inputs[:, self.short]
        same = rearrange(short, "b s -> b s 1") == rearrange(batch.inputs[:, self.long], "b l -> b 1 l")
        return short.gather(1, same.any(-1).to(torch.uint8).argmax(-1, keepdim=True))
