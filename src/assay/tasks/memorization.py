"""Memorization (MAD, Poli et al. 2024) asks for values of keys that no sequence shows: weights have to hold the map.

    B ? A ? B ?  ->  6, 4, 6      A means 4 and B means 6 in every sequence, of training and of the test

The map from keys to distinct values is drawn once, from `map_seed`, and belongs to the task: it is the same for all
batches, splits and seeds of a run. Keys are the tokens 0, 1, ..., then come the values; the last token, V - 1, asks for
the value of the key before it. Keys of a sequence are uniform and independent.

Floor: 1 in 127, the reference `constant`, which gives one value every time: the sequence says nothing of the map.
Ceiling: 1, by the map.

Differs from the paper: batches are drawn anew, where they go through 256 sequences many times; the map has its own
seed.
"""

from dataclasses import dataclass
from functools import cache

import torch
from einops import rearrange
from jaxtyping import Int
from torch import Tensor

from assay.nn.random import stream
from assay.tasks import tasks
from assay.tasks.base import Batch, TokenTask


@tasks.register("memorization")
@dataclass(frozen=True, kw_only=True)
class Memorization(TokenTask):
    """Say the values of keys from memory: they are in no sequence."""

    vocab_size: int = 256
    input_seq_len: int = 32
    map_seed: int = 0
    """Which map from keys to values; models of all seeds learn the same."""

    def __post_init__(self) -> None:
        self.require(
            self.input_seq_len >= 2 and self.input_seq_len % 2 == 0,
            f"input_seq_len={self.input_seq_len} must be even and at least 2: a key and its question take two tokens. "
            f"Use input_seq_len={max(2, self.input_seq_len + self.input_seq_len % 2)}.",
        )
        self.require(
            self.vocab_size >= 5, f"vocab_size={self.vocab_size} leaves no two keys. Use vocab_size=5 or more."
        )
        self.require(self.map_seed >= 0, f"map_seed={self.map_seed} is no seed. Use map_seed=0 or more.")

    def sample(self, batch: int, rng: torch.Generator) -> Batch:
        value_of = values(self.vocab_size, self.map_seed, rng.device)
        keys = torch.randint(len(value_of), (batch, self.input_seq_len // 2), generator=rng, device=rng.device)
        inputs = rearrange([keys, torch.full_like(keys, self.vocab_size - 1)], "two b n -> b (n two)")
        positions = torch.arange(1, self.input_seq_len, 2, device=rng.device).expand(keys.shape)
        return Batch(inputs=inputs, targets=value_of[keys], positions=positions)

    def oracle(self, batch: Batch) -> Int[Tensor, "batch answers"]:
        """Look the key before the question up in the map."""
        return values(self.vocab_size, self.map_seed, batch.inputs.device)[batch.inputs.gather(1, batch.asked - 1)]

    def references(self, batch: Batch) -> dict[str, Tensor]:
        value_of = values(self.vocab_size, self.map_seed, batch.inputs.device)
        return {"constant": value_of[:1].expand(batch.asked.shape)}


# Cached per device: a captured CUDA graph cannot copy a table from the host.
@cache
def values(vocab_size: int, map_seed: int, device: torch.device) -> Int[Tensor, " keys"]:
    """Return the value of each key."""
    keys = (vocab_size - 1) // 2
    drawn = torch.randperm(vocab_size - 1 - keys, generator=stream(map_seed, "memorization"))[:keys]
    return (keys + drawn).to(device)
