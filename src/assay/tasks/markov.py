"""In-context Markov chains (Edelman et al. 2024) ask for the next symbol of a chain that every sequence has anew.

    two symbols, A to B 9 in 10, B to A 8 in 10:   A B A B B A B  ->  B, A, B, B, A, B      after each symbol the next

For each of the `num_symbols` symbols the probabilities of the one that follows are drawn uniformly from all that sum to
1 (a flat Dirichlet law). The chain begins with a uniform symbol, and every later one is asked for at the symbol before
it. Who counts what has followed each symbol so far needs a memory of a number per pair, which is all there is to know.

The oracle is the ideal observer: after symbol a it gives b the probability (n_ab + 1) / (n_a + V), the posterior mean,
where n_ab counts how often b has followed a and n_a sums them. Its loss is the entropy of the stream for an observer
who knows the law and not the chain: no model has a smaller one, but by chance. References: `unigram` counts symbols and
not what follows them, `uniform` knows nothing and has log V.

Differs from the paper: 8 symbols, of which 256 make a sequence, where theirs have 2 to 8 and 100.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import one_hot

from assay.tasks import tasks
from assay.tasks.base import Batch, Task, TaskShape, Tokens


@tasks.register("markov")
@dataclass(frozen=True, kw_only=True)
class Markov(Task):
    """Predict the next symbol of a random Markov chain, seen in context alone."""

    by_examples: ClassVar[bool] = True

    num_symbols: int = 8
    """Kinds of symbol that a chain is made of, at least 2."""
    input_seq_len: int = 256
    """Symbols of a sequence."""

    def __post_init__(self) -> None:
        self.require(self.num_symbols >= 2, f"num_symbols={self.num_symbols} leaves nothing to predict. Use 2 or more.")
        self.require_positive("input_seq_len")

    def shape(self) -> TaskShape:
        tokens = Tokens(self.num_symbols)
        return TaskShape(inputs=tokens, outputs=tokens, length=self.input_seq_len)

    def sample(self, batch: int, rng: torch.Generator) -> Batch:
        symbols, time = self.num_symbols, self.input_seq_len
        drawn = torch.rand(batch, symbols, symbols, generator=rng, device=rng.device)
        weights = -torch.log1p(-drawn)  # exponential numbers over their sum are uniform among all that sum to 1
        below = (weights.cumsum(-1) / weights.sum(-1, keepdim=True))[..., :-1]
        first = torch.randint(symbols, (batch, 1), generator=rng, device=rng.device)
        places = torch.rand(batch, time, generator=rng, device=rng.device)
        # From which symbol to which, at every step: maps that are put behind each other need no loop over time.
        steps = (rearrange(places, "b t -> b t 1 1") >= rearrange(below, "b a v -> b 1 a v")).sum(-1)
        stride = 1
        while stride < time:
            steps = torch.cat([steps[:, :stride], steps[:, stride:].gather(2, steps[:, :-stride])], dim=1)
            stride *= 2
        behind = steps.gather(2, first[..., None].expand(batch, time, 1))[..., 0]
        inputs = torch.cat([first, behind[:, :-1]], dim=1)
        positions = torch.arange(time, device=rng.device).expand(batch, time)
        return Batch(inputs=inputs, targets=behind, positions=positions)

    def oracle(self, batch: Batch) -> Float[Tensor, "batch time symbols"]:
        """Return the log-probabilities of the posterior mean: what followed this symbol so far, and one of each."""
        sequence, symbols = torch.arange(len(batch.inputs), device=batch.inputs.device), batch.inputs.unbind(1)
        counts = torch.zeros(len(sequence), self.num_symbols, self.num_symbols, device=batch.inputs.device)
        found = [counts[sequence, symbols[0]]]
        for here, following in pairwise(symbols):
            counts[sequence, here, following] += 1
            found.append(counts[sequence, following])
        return _as_log(torch.stack(found, dim=1))

    def references(self, batch: Batch) -> dict[str, Tensor]:
        counts = one_hot(batch.inputs, self.num_symbols).float().cumsum(1)
        return {"unigram": _as_log(counts), "uniform": _as_log(torch.zeros_like(counts))}


def _as_log(counts: Float[Tensor, "batch time symbols"]) -> Float[Tensor, "batch time symbols"]:
    """Return the logarithm of each count and one more, as a share of their sum."""
    return ((counts + 1) / (counts + 1).sum(-1, keepdim=True)).log()
