"""Compression (MAD, Poli et al. 2024) asks for a whole sequence at its last token: one vector has to hold all of it.

    C A B A c  ->  C, A, B, A      c: compress; all four answers are read from the model's vector at c

The sequence is `input_seq_len - 1` contents, uniform and independent, and the token V - 1. All answers are read at that
last token, each by a linear head of its own: entry j of `targets` is the j-th content. Nothing else of the sequence
reaches a head, so 31 contents of 15 kinds, 121 bits, pass through the d numbers of one position. Asked one by one at
later positions they would be copying, which attention does without holding anything.

Floor: 1 / (V - 1), 1 in 15, by a uniform guess; the reference `unordered` knows the contents but not their order, and
gives the most frequent one every time. Ceiling: 1, by copying the input.

Differs from the paper: heads are linear, one for each place, where theirs share an MLP of two hidden layers that is
told the place; so what a model cannot lay out linearly in its last vector counts as lost here. Theirs also asks for the
last token itself, which is always the same. Batches are drawn anew.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.functional import one_hot

from assay.tasks import tasks
from assay.tasks.base import Batch, TaskShape, Tokens, TokenTask


@tasks.register("compression")
@dataclass(frozen=True, kw_only=True)
class Compression(TokenTask):
    """Say the whole sequence from the model's vector at its last token."""

    input_seq_len: int = 32

    def __post_init__(self) -> None:
        self.require(
            self.input_seq_len >= 2,
            f"input_seq_len={self.input_seq_len} leaves nothing to compress. Use input_seq_len=2 or more.",
        )
        self.require(
            self.vocab_size >= 3, f"vocab_size={self.vocab_size} leaves no two contents. Use vocab_size=3 or more."
        )

    def shape(self) -> TaskShape:
        tokens, length = Tokens(self.vocab_size), self.input_seq_len
        return TaskShape(inputs=tokens, outputs=tokens, length=length, answers_per_position=length - 1)

    def sample(self, batch: int, rng: torch.Generator) -> Batch:
        last = self.input_seq_len - 1
        inputs = torch.randint(self.vocab_size - 1, (batch, last + 1), generator=rng, device=rng.device)
        inputs[:, last].fill_(self.vocab_size - 1)
        positions = torch.full((batch, 1), last, device=rng.device)
        return Batch(inputs=inputs, targets=inputs[:, :last].clone(), positions=positions)

    def oracle(self, batch: Batch) -> Int[Tensor, "batch contents"]:
        """Return the contents."""
        return batch.inputs[:, :-1]

    def references(self, batch: Batch) -> dict[str, Tensor]:
        counts = one_hot(batch.inputs[:, :-1], self.vocab_size).sum(1)
        return {"unordered": counts.argmax(1, keepdim=True).expand(-1, self.input_seq_len - 1)}
