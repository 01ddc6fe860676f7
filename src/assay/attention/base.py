"""Which keys each query attends to: families of methods, each asking for one method of its own.

    Pattern   positions alone decide                      sees(query, key)    window, streaming_llm, local_strided
    Select    per query, from every key it may see        keep(layer)         oracle_topk, quest, random
              per block of queries, blocks of keys        chosen(layer)       cab_v3, cab_v4: a BlockSelect
    Evict     online and for good: k slots, and what      score(residents)    h2o, tova, keydiff, knorm, random_evict
              leaves never comes back
    Prefix    a dense prefix is cut down once, then the   worth(layer, n)     snapkv
              rest attends to what is left and to itself

All are causal and stay inside the model's own mask. A step of an Evict method is, as published: attend to the k
residents *and* the new key, update the scores, evict one. So k slots mean k + 1 keys read, for a Pattern too:

    slots=2, evict the oldest      query  0: 0        query 2: 0 1 2        query 3:   1 2 3
    (this is `window`)                    1: 0 1                                 4:     2 3 4
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from einops import repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.attention import attention
from assay.attention.budget import Budget, BudgetTooSmall, block_density, cache_density, density_of
from assay.attention.checks import expect
from assay.attention.choosing import best, best_in_parts, highest
from assay.attention.layer import Layer, attention_weights
from assay.core.errors import UserError
from assay.core.plugin import Registry, Sized

__all__ = [
    "BlockSelect",
    "Budget",
    "BudgetTooSmall",
    "Evict",
    "Method",
    "Pattern",
    "Prefix",
    "Select",
    "Step",
    "best",
    "best_in_parts",
    "block_density",
    "cache_density",
    "density_of",
    "highest",
]
"""What the file of a method imports from here."""


@dataclass(frozen=True, kw_only=True)
class Method(Sized):
    """attention/<name>.py. The promises are in assay.contracts.attention; `lanes.attended` runs methods."""

    registry: ClassVar[Registry] = attention

    @property
    def departure(self) -> str:
        """What differs from the published form: it stands in the row's name."""
        return ""

    @property
    def title(self) -> str:
        return f"{self.label} ({self.departure})" if self.departure else self.label

    def expected_density(self, time: int, budget: Budget) -> float | None:
        """Keys attended over keys in sight, for `time` tokens under a causal mask; None: it depends on the data."""
        raise NotImplementedError(f"{type(self).__name__}.expected_density")

    def check(self, time: int, budget: Budget) -> None:
        """Raise BudgetTooSmall where the method cannot work with this budget."""

    def keeps_everything(self, time: int, budget: Budget) -> bool:
        """Whether it is dense attention under this budget."""
        return self.expected_density(time, budget) == 1.0

    def as_mixer(self) -> "Method":
        """The method as a layer of a small model, which the mixer `sparse_attention` is; UserError if it cannot be."""
        return self

    def vectors_read(self, visible: float, attended: float) -> float:
        """Vectors (a key or a value each) read in order to choose and to attend, where so many keys were in sight and
        so many attended to, summed over queries and heads of keys."""
        return 2 * attended

    def vectors_stored(self, resident: float) -> float:
        """Vectors kept per head of keys, where so many tokens are resident."""
        return 2 * resident


@dataclass(frozen=True, kw_only=True)
class Pattern(Method):
    """Positions alone decide."""

    published_in_cache: ClassVar[bool] = False
    """Whether its published form counts positions inside the cache: a row's name says where that was not done."""

    @property
    def forgets(self) -> bool:
        """Whether a key that one query does not see is seen by none after it, so that it need not be kept."""
        return True

    def sees(
        self, query: Int[Tensor, "*q 1"], key: Int[Tensor, "*k"], *, time: int, slots: int
    ) -> Bool[Tensor, "*rows query key"]:
        """Whether the query at one position, counted from the sequence's start, attends to the key at another.
        Keys after the query need not be hidden here."""
        raise NotImplementedError(f"{type(self).__name__}.sees")

    def keep(self, layer: Layer, budget: Budget) -> Bool[Tensor, "rows 1 query key"]:
        place = torch.arange(layer.time, device=layer.q.device) - layer.start[:, None]
        seen = self.sees(place[:, :, None], place[:, None, :], time=layer.time, slots=budget.cache(layer.time))
        shape = {"rows": layer.rows, "query": layer.time, "key": layer.time}
        if isinstance(seen, Tensor) and seen.shape == layer.causal.shape:  # the same for every sequence
            seen = seen.expand(layer.rows, -1, -1)
        return (expect(seen, self, "sees", shape, layer.q, mask=True) & layer.visible)[:, None]

    def expected_density(self, time: int, budget: Budget) -> float | None:
        return cache_density(time, budget.cache(time))

    def cache(self, slots: int) -> tuple[int, int] | None:
        """The first and the latest keys of its cache, if it is made of these two runs alone: then positions can be
        counted inside the cache, where only the distance to the first ones changes."""
        return None


@dataclass(frozen=True, kw_only=True)
class Select(Method):
    """Each query chooses anew from everything it may see, per query head: what is read shrinks, not what is stored."""

    recalls_queries: ClassVar[bool] = False
    """Whether a choice depends on the queries before: whoever goes token by token then has to carry them."""

    def keep(self, layer: Layer, budget: Budget) -> Bool[Tensor, "rows heads query key"]:
        raise NotImplementedError(f"{type(self).__name__}.keep")

    def expected_density(self, time: int, budget: Budget) -> float | None:
        return density_of([budget.keys(t + 1) for t in range(time)])


@dataclass(frozen=True, kw_only=True)
class BlockSelect(Select):
    """A block of queries chooses blocks of keys, before its first token: its own, and earlier ones, which it reads
    whole. So attention can skip what is not chosen, which it does on CUDA (flex.py)."""

    recalls_queries: ClassVar[bool] = True

    block_size: int = 64

    def chosen(self, layer: Layer, budget: Budget) -> Bool[Tensor, "rows heads block block"]:
        """The blocks of keys that each block of queries attends to, its own among them; none after it."""
        raise NotImplementedError(f"{type(self).__name__}.chosen")

    def chosen_blocks(self, layer: Layer, budget: Budget) -> Bool[Tensor, "rows heads block block"]:
        """What `chosen` gives, once its shape is looked at."""
        blocks = -(-layer.time // self.block_size)
        shape = {"rows": layer.rows, "heads": layer.q.shape[1], "block": blocks, "block of keys": blocks}
        return expect(self.chosen(layer, budget), self, "chosen", shape, layer.q, mask=True)

    def keep(self, layer: Layer, budget: Budget) -> Bool[Tensor, "rows heads query key"]:
        size, chosen = self.block_size, self.chosen_blocks(layer, budget)
        every = repeat(chosen, "r h i j -> r h (i q) (j k)", q=size, k=size)
        return every[..., : layer.time, : layer.time] & layer.visible[:, None]


@dataclass(frozen=True, eq=False)
class Step:
    """The queries since the last eviction, and the keys they attended to: the residents of the slots, their own among
    them. Online there is one query; in the chunked protocol there are several."""

    layer: Layer
    position: Int[Tensor, "rows kv_heads slots"]
    """Where each resident stands in the sequence; of no meaning where nothing is present."""
    present: Bool[Tensor, "rows kv_heads query slots"]
    """What each of the queries attended to."""
    score_all: Callable[[], Float[Tensor, "rows kv_heads group query key"]]
    """The queries' scores with every key so far; computed only for methods that ask."""

    @property
    def weights(self) -> Float[Tensor, "rows kv_heads group query slots"]:
        """The queries' attention over the slots, for each query head of the group; 0 where nothing is present."""
        places = self.position[:, :, None, None].expand(-1, -1, self.layer.group, self.present.shape[2], -1)
        scores = self.score_all().gather(-1, places).masked_fill(~self.present[:, :, None], float("-inf"))
        return attention_weights(scores, self.layer)

    @property
    def keys(self) -> Float[Tensor, "rows kv_heads slots d"]:
        places = self.position[..., None].expand(-1, -1, -1, self.layer.k.shape[-1])
        return self.layer.k.gather(2, places)


@dataclass(frozen=True, kw_only=True)
class Evict(Method):
    """A cache of k slots per head of keys: after each query the resident of lowest score leaves for good, the oldest
    among equals; what the model's mask has hidden leaves first. A method says what a key is worth when it arrives, or
    after each query, or both."""

    granularity: Literal["kv_head", "layer"] = "kv_head"
    """Whether each head of keys decides for itself, or the mean of their scores for all heads of the layer."""

    def arrival(self, layer: Layer) -> Float[Tensor, "rows kv_heads time"]:
        """What each key is worth when it comes."""
        return torch.zeros_like(layer.k[..., 0], dtype=torch.promote_types(layer.k.dtype, torch.float32))

    def score(self, before: Float[Tensor, "rows kv_heads slots"], step: Step) -> Float[Tensor, "rows kv_heads slots"]:
        """What the resident of each slot is worth after this query, given what it was worth before."""
        return before

    def protected(self, slots: int) -> tuple[int, int]:
        """How many of the first and of the latest keys never leave."""
        return 0, 0

    def check(self, time: int, budget: Budget) -> None:
        first, latest = self.protected(budget.cache(time))
        if first + latest > budget.cache(time):
            raise BudgetTooSmall(
                f"{self.name}: {budget} gives {budget.cache(time)} slots at {time} tokens, "
                f"fewer than the {first} first and {latest} latest keys it always keeps."
            )

    def expected_density(self, time: int, budget: Budget) -> float | None:
        return cache_density(time, budget.cache(time))


@dataclass(frozen=True, kw_only=True)
class Prefix(Method):
    """The prefix protocol: a prefix of n tokens attends densely, k of its keys are kept per head of keys, and the later
    tokens attend to these and to one another. The budget is one of the prefix; only the later tokens should be scored,
    since for those of the prefix nothing is sparse."""

    prefix: int = 0
    """Tokens of the prefix; 0: the first half of the sequence."""

    def as_mixer(self) -> Method:
        raise UserError(f"{self.label} cuts down a prompt once, which a mixer does not have.")

    def worth(self, layer: Layer, length: int) -> Float[Tensor, "rows kv_heads prefix"]:
        """What each key of the prefix is worth, by what is known at its end; the highest stay."""
        raise NotImplementedError(f"{type(self).__name__}.worth")

    def length(self, time: int) -> int:
        return min(time, self.prefix or time // 2)

    def keep(self, layer: Layer, budget: Budget) -> Bool[Tensor, "rows heads query key"]:
        length = self.length(layer.time)
        slots = torch.tensor([budget.cache(length)], device=layer.q.device)
        shape = {"rows": layer.rows, "kv_heads": layer.k.shape[1], "prefix": length}
        known = expect(self.worth(layer, length), self, "worth", shape, layer.k)
        chosen = highest(known, slots, layer.exists[:, None, :length])
        kept = layer.visible[:, None].repeat(1, layer.q.shape[1], 1, 1)
        kept[:, :, length:, :length] &= repeat(chosen, "r h k -> r (h g) 1 k", g=layer.group)
        return kept

    def expected_density(self, time: int, budget: Budget) -> float | None:
        length = self.length(time)
        left = min(length, budget.cache(length))
        return density_of([t + 1 if t < length else left + t - length + 1 for t in range(time)])
