"""The recall tasks of MAD share this layout: keys with their values, drawn again and again, asked whenever one returns.

    C 7 A 4 C 7 n n B 4 A 4 C 7  ->  7, 4, 7      n: noise; read at C, A and C, the keys that were shown before

The sequence is cut into slots of two tokens. A slot holds a key, uniform over all keys, and its value: each sequence
has its own map from keys to values, every value uniform and independent of the others. The last slot holds a uniform
one of the keys shown so far, so at least one key returns. Keys are the tokens 0, 1, ..., then come the values, then the
noise.
"""

import math
from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn.functional import one_hot

from assay.tasks.base import Batch, TokenTask
from assay.tasks.subsets import distinct


@dataclass(frozen=True, kw_only=True)
class RepeatTask(TokenTask):
    """A task over slots of keys and values; `noise_vocab` tokens fill `noise_slots` of them instead."""

    def __post_init__(self) -> None:
        self.require(
            self.input_seq_len >= 4 and self.input_seq_len % 2 == 0,
            f"input_seq_len={self.input_seq_len} must be even and at least 4, since slots are two tokens wide. "
            f"Use input_seq_len={max(4, self.input_seq_len + self.input_seq_len % 2)}.",
        )
        self.require(
            self.vocab_size >= self.noise_vocab + 4,
            f"vocab_size={self.vocab_size} leaves no two keys and two values. "
            f"Use vocab_size={self.noise_vocab + 4} or more.",
        )

    @property
    def noise_vocab(self) -> int:
        return 0

    @property
    def noise_slots(self) -> int:
        return 0

    @property
    def slots(self) -> int:
        return self.input_seq_len // 2

    @property
    def keys(self) -> int:
        """The number of keys: tokens below it are keys."""
        return (self.vocab_size - self.noise_vocab) // 2

    @property
    def values(self) -> range:
        return range(self.keys, self.vocab_size - self.noise_vocab)

    @property
    def answers(self) -> int:
        """Keys that return in a sequence: their mean number, rounded down."""
        drawn = self.slots - self.noise_slots - 1
        different = self.keys * (1 - (1 - 1 / self.keys) ** drawn)
        return 1 + math.floor(drawn - different)

    def sample(self, batch: int, rng: torch.Generator) -> Batch:
        device, n = rng.device, self.slots
        value_of = torch.randint(self.keys, self.values.stop, (batch, self.keys), generator=rng, device=device)
        key = torch.randint(self.keys, (batch, n), generator=rng, device=device)
        noisy = self._noisy(batch, rng)
        slot = torch.arange(n, device=device).expand(batch, n)
        # Where each key is first shown; n where it never is. The last slot shows no new key.
        hidden = noisy | (slot == n - 1)
        first = torch.full((batch, self.keys), n, device=device)
        first = first.scatter_reduce(1, key, slot.masked_fill(hidden, n), "amin")
        uniform = torch.rand(batch, self.keys, generator=rng, device=device)
        key[:, -1:] = uniform.masked_fill(first == n, -1).argmax(1, keepdim=True)
        returns = ~noisy & (slot > first.gather(1, key))
        inputs = rearrange([key, value_of.gather(1, key)], "two b n -> b n two")
        if self.noise_slots:
            noise = torch.randint(self.values.stop, self.vocab_size, inputs.shape, generator=rng, device=device)
            inputs = torch.where(rearrange(noisy, "b n -> b n 1"), noise, inputs)
        asked = last_places(returns, self.answers)
        targets = value_of.gather(1, key.gather(1, asked))
        return Batch(inputs=rearrange(inputs, "b n two -> b (n two)"), targets=targets, positions=2 * asked)

    def _noisy(self, batch: int, rng: torch.Generator) -> Bool[Tensor, "batch slots"]:
        """Draw the slots that hold noise, never the last one."""
        noisy = torch.zeros(batch, self.slots, dtype=torch.bool, device=rng.device)
        if not self.noise_slots:
            return noisy
        (places,) = distinct(batch, self.noise_slots, (self.slots - 1,), rng)
        return noisy.scatter(1, places, True)

    def oracle(self, batch: Batch) -> Int[Tensor, "batch answers"]:
        """Return what followed the first occurrence of the key: exact, since the key was shown before."""
        asked = batch.inputs.gather(1, batch.asked)
        found = rearrange(asked, "b a -> b a 1") == rearrange(batch.inputs, "b t -> b 1 t")
        return batch.inputs.gather(1, 1 + found.to(torch.uint8).argmax(-1))

    def references(self, batch: Batch) -> dict[str, Tensor]:
        """Return the value shown most often so far, whatever the key: the floor of an observer who counts."""
        counts = one_hot(batch.inputs, self.vocab_size)[..., self.values.start : self.values.stop].cumsum(1)
        seen = counts.gather(1, rearrange(batch.asked, "b a -> b a 1").expand(-1, -1, counts.shape[-1]))
        return {"frequent": self.values.start + seen.argmax(-1)}


def last_places(chosen: Bool[Tensor, "batch time"], count: int) -> Int[Tensor, "batch count"]:
    """Return the last `count` places that are chosen, in order; where there are fewer, they take turns from the last
    one backwards. At least one must be. Every sequence then has as many answers, in tensors of one shape."""
    order = chosen.to(torch.uint8).argsort(dim=1, stable=True)  # places not chosen first
    many = chosen.sum(1, keepdim=True)
    back = torch.arange(count - 1, -1, -1, device=chosen.device) % many
    return order.gather(1, chosen.shape[1] - 1 - back)
