"""Fuzzy recall (MAD, Poli et al. 2024) is in-context recall of keys and values that are several tokens long.

    _ _ C A 7 B 4 8 C 5 B 4 8 C A 7  ->  4, 8, 7      keys C A, B and C; read before 4, 8 and 7, where a key returns

A key is 1 to `k_motif_size` distinct key tokens, a value 1 to `v_motif_size` distinct value tokens; sizes are uniform,
and so are the motifs of a size; C A and C are two keys. A sequence has its own map from keys to values. Pairs are drawn
while there is room for one more of any size; the last pair is a uniform one of those before it, so at least one key
returns. Padding in front, token V - 1, makes up the length. Key tokens are 0, 1, ..., then come the value tokens.

Asked are the tokens of values whose key was shown before, each at the token before it: the last 12 of 14 on average,
one per 10 tokens; a sequence that has fewer counts some twice.

Floor: a uniform guess among the value tokens, 1 in 8; the reference `frequent` gives the value token shown most often
so far. Ceiling: 1, by looking up the whole key, since a question is only asked where the key has ended.

Differs from the paper (`multi_query`): keys have all sizes in the test too, where theirs are all of the greatest size
there and seldom return but for the last; the loss is at the answers alone, where theirs is at every next token in
training; batches are drawn anew.
"""

from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Int
from torch import Tensor
from torch.nn.functional import one_hot

from assay.tasks import tasks
from assay.tasks.base import Batch, TokenTask
from assay.tasks.repeats import last_places


@tasks.register("fuzzy_recall")
@dataclass(frozen=True, kw_only=True)
class FuzzyRecall(TokenTask):
    """Recall values of several tokens for keys of several tokens."""

    k_motif_size: int = 3
    """Most tokens of a key; keys of every size up to it are equally frequent."""
    v_motif_size: int = 3
    """Most tokens of a value; values of every size up to it are equally frequent."""

    def __post_init__(self) -> None:
        self.require_positive("k_motif_size", "v_motif_size")
        longest = self.k_motif_size + self.v_motif_size
        self.require(
            self.input_seq_len >= 2 * longest,
            f"input_seq_len={self.input_seq_len} is too short for two pairs of {longest} tokens. "
            f"Use input_seq_len={2 * longest} or more.",
        )
        tokens = max(2, self.k_motif_size, self.v_motif_size)
        self.require(
            self.keys >= tokens,
            f"vocab_size={self.vocab_size} has too few tokens for motifs of k_motif_size={self.k_motif_size} and "
            f"v_motif_size={self.v_motif_size}. Use vocab_size={2 * tokens + 1} or more.",
        )

    @property
    def keys(self) -> int:
        """The number of key tokens: tokens below it are parts of keys."""
        return (self.vocab_size - 1) // 2

    @property
    def answers(self) -> int:
        """Answers of a sequence: about as many as it has at the default sizes."""
        return max(1, self.input_seq_len // 10)

    def sample(self, batch: int, rng: torch.Generator) -> Batch:
        length, longest, device = self.input_seq_len, self.k_motif_size + self.v_motif_size, rng.device
        pairs = (length - longest) // 2  # as many as may fit
        key, k_size = _motifs(batch, pairs, self.keys, self.k_motif_size, rng)
        value, v_size = _motifs(batch, pairs, self.vocab_size - 1 - self.keys, self.v_motif_size, rng)
        # The first pair with the same key gives the value; parts of a motif beyond its size are -1.
        same = (rearrange(key, "b p k -> b p 1 k") == rearrange(key, "b q k -> b 1 q k")).all(-1)
        first = same.to(torch.uint8).argmax(-1)
        v_size, value = v_size.gather(1, first), value.gather(1, _wide(first, self.v_motif_size))
        end = (k_size + v_size).cumsum(1)
        fits = end <= length - longest
        drawn = torch.rand(batch, 1, generator=rng, device=device, dtype=torch.float64)
        last = (drawn * fits.sum(1, keepdim=True)).long()
        # The last pair is asked again: every tensor gets one more column.
        k_size, v_size, first = (torch.cat((x, x.gather(1, last)), 1) for x in (k_size, v_size, first))
        key, value = (torch.cat((x, x.gather(1, _wide(last, x.shape[2]))), 1) for x in (key, value))
        begin = torch.cat((end, (end * fits).amax(1, keepdim=True)), 1)
        begin[:, :-1] -= (k_size + v_size)[:, :-1]
        offset = length - (begin + k_size + v_size)[:, -1:]
        place = torch.arange(pairs + 1, device=device)
        returns = (first < place) | (place == pairs)
        there = torch.cat((fits, torch.ones_like(fits[:, :1])), 1)
        inputs = torch.full((batch, length + 1), self.vocab_size - 1, device=device)
        asked = torch.zeros(batch, length + 1, dtype=torch.bool, device=device)
        for part, start, tokens in ((key, begin + offset, 0), (value, begin + offset + k_size, self.keys)):
            step = torch.arange(part.shape[2], device=device)
            used = (part >= 0) & rearrange(there, "b p -> b p 1")
            to = rearrange(start, "b p -> b p 1") + step
            # What is not used lands behind the end.
            inputs.scatter_(1, to.masked_fill(~used, length).flatten(1), (tokens + part).flatten(1))
            if tokens:
                question = used & rearrange(returns, "b p -> b p 1")
                asked.scatter_(1, (to - 1).masked_fill(~question, length).flatten(1), True)
        positions = last_places(asked[:, :length], self.answers)
        inputs = inputs[:, :length].contiguous()
        return Batch(inputs=inputs, targets=inputs.gather(1, positions + 1), positions=positions)

    def oracle(self, batch: Batch) -> Int[Tensor, "batch answers"]:
        """Return what followed where the same key, with as many tokens of its value, was followed by a value token."""
        code, index = torch.zeros_like(batch.inputs[:, 0]), torch.zeros_like(batch.inputs[:, 0])
        after_key, contexts = torch.zeros_like(code, dtype=torch.bool), []
        for token in batch.inputs.unbind(1):
            is_key = token < self.keys
            code = torch.where(is_key, torch.where(after_key, code, 0) * (self.keys + 1) + token + 1, code)
            index = torch.where(is_key, 0, index + 1)
            contexts.append(code * (self.input_seq_len + 1) + index)
            after_key = is_key
        context = torch.stack(contexts, dim=1)
        following = batch.inputs.roll(-1, dims=1)  # of the last token nothing is known, and nothing is asked there
        told = (following >= self.keys) & (following < self.vocab_size - 1)
        match = rearrange(context.gather(1, batch.asked), "b a -> b a 1") == rearrange(context, "b t -> b 1 t")
        return following.gather(1, (match & rearrange(told, "b t -> b 1 t")).to(torch.uint8).argmax(-1))

    def references(self, batch: Batch) -> dict[str, Tensor]:
        """Return the value token shown most often so far, whatever the key."""
        counts = one_hot(batch.inputs, self.vocab_size)[..., self.keys : self.vocab_size - 1].cumsum(1)
        return {"frequent": self.keys + counts.gather(1, _wide(batch.asked, counts.shape[-1])).argmax(-1)}


def _motifs(
    batch: int, pairs: int, tokens: int, most: int, rng: torch.Generator
) -> tuple[Int[Tensor, "batch pairs most"], Int[Tensor, "batch pairs"]]:
    """Draw motifs of 1 to `most` distinct tokens, and their sizes; places beyond the size hold -1."""
    size = torch.randint(1, most + 1, (batch, pairs), generator=rng, device=rng.device)
    order = torch.rand(batch, pairs, tokens, generator=rng, device=rng.device).argsort(-1)[..., :most]
    return order.masked_fill(torch.arange(most, device=rng.device) >= rearrange(size, "b p -> b p 1"), -1), size


def _wide(index: Int[Tensor, "batch n"], width: int) -> Int[Tensor, "batch n width"]:
    return rearrange(index, "b n -> b n 1").expand(-1, -1, width)
