"""Retrieval asks for a value by its key, once.

    unique      . b2 . a7 c1 . | b?  ->  2       every key once, among distractors without a key (the default)
    ambiguous   a7 b2 c1 b5 a3 | b?  ->  2 or 5  keys repeat: no encoder can score above K/(L-1)

A token is [onehot(key) | value | feature], values are N(0, I), nothing is noisy; the target is the value of the
query's key. `unique`: the K keys stand at distinct random positions of 0..L-2, the others have a zero key block, and
the query has the slot t = L-1 to itself: its key, a zero value, and 1 in the first feature channel.

`ambiguous` is the expressivity spec's law. Of the keys at 0..L-2 the first K are a permutation, the rest uniform; the
query asks for the value at a uniform position q. With probability 1/2 it stands at t = L-1, otherwise its key
overwrites k_0. The best guess is the mean over the n copies of the key, so R2 is at most E[1/n] = K/(L-1).

Differs from the spec: keys are unique by default, so that 1 is the best score at every length; `keys=ambiguous` is as
in the spec.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, assert_never

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from assay.tasks import tasks
from assay.tasks.base import Batch, Loss, TaskShape, Vectors
from assay.tasks.fields import BlockTask


@tasks.register("retrieval")
@dataclass(frozen=True, kw_only=True)
class Retrieval(BlockTask):
    """Return the value that stands beside the queried key."""

    loss: ClassVar[Loss] = "mse"
    in_context: ClassVar[bool] = False

    keys: Literal["unique", "ambiguous"] = "unique"
    """Whether each key stands once, or keys repeat, so that no encoder can pass K_keys/(L-1)."""

    def shape(self) -> TaskShape:
        return TaskShape(inputs=Vectors(self.d_in), outputs=Vectors(self.V_dim), length=self.L)

    def ceiling(self) -> float:
        """Return the R2 of the ideal observer."""
        match self.keys:
            case "unique":
                return 1.0
            case "ambiguous":
                return self.K_keys / (self.L - 1)
            case other:
                assert_never(other)

    def sample(self, batch: int, rng: torch.Generator) -> Batch:
        match self.keys:
            case "unique":
                return self._sample_unique(batch, rng)
            case "ambiguous":
                return self._sample_ambiguous(batch, rng)
            case other:
                assert_never(other)

    def oracle(self, batch: Batch) -> Float[Tensor, "batch V_dim"]:
        """Return the mean value over the copies of the queried key: one copy when the keys are unique."""
        keys, query = batch.inputs[:, :-1, self.key], batch.inputs[:, -1, self.key]
        if self.keys == "ambiguous":
            keys, query = self._restored(keys, query)
        copies = torch.einsum("btk,bk->bt", keys, query)
        total = torch.einsum("bt,btv->bv", copies, batch.inputs[:, :-1, self.value])
        return total / copies.sum(-1, keepdim=True)

    def _sample_unique(self, batch: int, rng: torch.Generator) -> Batch:
        rows = torch.arange(batch, device=rng.device)
        place = _permutations(batch, self.L - 1, rng)[:, : self.K_keys]  # the position of key 0, of key 1, ...
        query = torch.randint(self.K_keys, (batch,), generator=rng, device=rng.device)
        inputs = self._tokens_without_keys(batch, rng)
        inputs[rearrange(rows, "b -> b 1"), place, torch.arange(self.K_keys, device=rng.device)] = 1
        inputs[rows, -1, query] = 1
        inputs[:, -1, self.feature.start] = 1
        return Batch(inputs=inputs, targets=inputs[rows, place[rows, query], self.value])

    def _sample_ambiguous(self, batch: int, rng: torch.Generator) -> Batch:
        rows = torch.arange(batch, device=rng.device)
        first = _permutations(batch, self.K_keys, rng)
        rest = torch.randint(self.K_keys, (batch, self.L - 1 - self.K_keys), generator=rng, device=rng.device)
        keys = torch.cat((first, rest), dim=1)
        asked = torch.randint(self.L - 1, (batch,), generator=rng, device=rng.device)
        at_start = torch.rand(batch, generator=rng, device=rng.device) < 0.5
        inputs = self._tokens_without_keys(batch, rng)
        inputs[:, :-1, self.key] = one_hot(keys, self.K_keys).to(inputs)
        query = one_hot(keys[rows, asked], self.K_keys).to(inputs)
        column = rearrange(at_start, "b -> b 1")
        inputs[:, 0, self.key] = torch.where(column, query, inputs[:, 0, self.key])
        inputs[:, -1, self.key] = torch.where(column, 0, query)
        return Batch(inputs=inputs, targets=inputs[rows, asked, self.value])

    def _tokens_without_keys(self, batch: int, rng: torch.Generator) -> Float[Tensor, "batch time d_in"]:
        """Return tokens with values at 0..L-2, zeros elsewhere."""
        inputs = torch.zeros(batch, self.L, self.d_in, device=rng.device)
        inputs[:, :-1, self.value] = torch.randn(batch, self.L - 1, self.V_dim, generator=rng, device=rng.device)
        return inputs

    def _restored(
        self, keys: Float[Tensor, "batch places K"], last: Float[Tensor, "batch K"]
    ) -> tuple[Float[Tensor, "batch places K"], Float[Tensor, "batch K"]]:
        """Return the keys before the query overwrote one, and the query. Where the last token has no key the query
        stands at t = 0, and k_0 is the one key missing from positions 1..K-1: the first K are a permutation."""
        at_start = (last.sum(-1, keepdim=True) == 0).to(keys)
        missing = 1 - keys[:, 1 : self.K_keys].sum(1)
        query = last + at_start * keys[:, 0]
        k_0 = torch.lerp(keys[:, 0], missing, at_start)
        return torch.cat((rearrange(k_0, "b k -> b 1 k"), keys[:, 1:]), dim=1), query


def _permutations(batch: int, size: int, rng: torch.Generator) -> Int[Tensor, "batch size"]:
    """Draw one uniform permutation of 0..size-1 per row: the order of as many uniforms."""
    return torch.rand(batch, size, generator=rng, device=rng.device).argsort(dim=1)
