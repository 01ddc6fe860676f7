"""Selective copying (MAD, Poli et al. 2024; Gu and Dao 2023) asks for the tokens of a sequence, without its blanks.

    . . C . A . . B c . . .  ->  C, A, B      c: begin to copy; read at the three blanks behind it

`num_tokens_to_copy` contents, uniform and independent of each other, stand among blanks: each blank is put in front of
a uniform one of them. The token V - 1 says that copying begins, V - 2 is the blank, the others are contents. Then come
as many blanks as there are contents: answer j is read at the j-th, and no answer is shown.

Floor: 1 / (V - 2), 1 in 14, by a uniform guess; the reference `unordered` knows the contents but not their order, and
gives the most frequent one every time. Ceiling: 1.

Differs from the paper: batches are drawn anew, where they go through 12,800 sequences many times.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.functional import one_hot

from assay.tasks import tasks
from assay.tasks.base import Batch, TokenTask
from assay.tasks.repeats import last_places


@tasks.register("selective_copying")
@dataclass(frozen=True, kw_only=True)
class SelectiveCopying(TokenTask):
    """Copy the tokens that stand among blanks, in order."""

    input_seq_len: int = 256
    num_tokens_to_copy: int = 16
    """Tokens that stand among the blanks, and are asked for in order."""

    def __post_init__(self) -> None:
        self.require_positive("num_tokens_to_copy")
        needed = 2 * self.num_tokens_to_copy + 1
        self.require(
            self.input_seq_len >= needed,
            f"input_seq_len={self.input_seq_len} is too short for num_tokens_to_copy={self.num_tokens_to_copy}: each "
            f"takes two places, and one token stands between. Use input_seq_len={needed} or more.",
        )
        self.require(
            self.vocab_size >= 4, f"vocab_size={self.vocab_size} leaves no two contents. Use vocab_size=4 or more."
        )

    @property
    def begin(self) -> int:
        """The place of the token that says that copying begins."""
        return self.input_seq_len - self.num_tokens_to_copy - 1

    def sample(self, batch: int, rng: torch.Generator) -> Batch:
        count, blank, device = self.num_tokens_to_copy, self.vocab_size - 2, rng.device
        contents = torch.randint(blank, (batch, count), generator=rng, device=device)
        followed_by = torch.randint(count, (batch, self.begin - count), generator=rng, device=device)
        in_front = torch.zeros(batch, count, dtype=torch.long, device=device)
        in_front.scatter_add_(1, followed_by, torch.ones_like(followed_by))
        places = in_front.cumsum(1) + torch.arange(count, device=device)
        inputs = torch.full((batch, self.input_seq_len), blank, device=device).scatter(1, places, contents)
        inputs[:, self.begin].fill_(self.vocab_size - 1)
        positions = torch.arange(self.begin + 1, self.input_seq_len, device=device).expand(batch, count)
        return Batch(inputs=inputs, targets=contents, positions=positions)

    def oracle(self, batch: Batch) -> Int[Tensor, "batch contents"]:
        """Return what is no blank, in order."""
        shown = batch.inputs[:, : self.begin]
        return shown.gather(1, last_places(shown < self.vocab_size - 2, self.num_tokens_to_copy))

    def references(self, batch: Batch) -> dict[str, Tensor]:
        counts = one_hot(batch.inputs[:, : self.begin], self.vocab_size).sum(1)[:, : self.vocab_size - 2]
        return {"unordered": counts.argmax(1, keepdim=True).expand(-1, self.num_tokens_to_copy)}
