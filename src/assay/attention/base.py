"""Methods decide which keys each query attends to; each family asks its methods for one function of their own.

    Pattern   positions alone decide                      sees(query, key)      window, streaming_llm, local_strided
    Select    per query, from every key it may see        keep(layer)           oracle_topk, quest, random
              per block of queries, blocks of keys        chosen(layer)         cab_v3, cab_v4: a BlockSelect
    Evict     online: a cache of k slots, and an          initial_score(layer)  knorm, random_evict
              evicted key never comes back                score(before, step)   h2o, tova, keydiff
    Prefix    a dense prefix is cut down once, then the   score(layer, n)       snapkv, lagkv, expected_attention
              rest attends to what is left and to itself

An Evict or a Prefix method may share its slots out unevenly over layers and heads (`budgets`): per_layer, pyramid, ada.

All are causal and stay inside the model's own mask. A step of an Evict method is, as published: attend to the k
residents *and* the new key, update the scores, evict one. So k slots mean k + 1 keys read, for a Pattern too:

    slots=2, evict the oldest      query  0: 0        query 2: 0 1 2        query 3:   1 2 3
    (this is `window`)                    1: 0 1                                 4:     2 3 4
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from einops import repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.attention import attention
from assay.attention.budget import Budget as Budget  # the file of a method imports what it needs from here
from assay.attention.budget import BudgetTooSmall as BudgetTooSmall
from assay.attention.budget import best as best
from assay.attention.budget import best_in_parts as best_in_parts
from assay.attention.budget import block_density as block_density
from assay.attention.budget import cache_density as cache_density
from assay.attention.budget import density_of as density_of
from assay.attention.budget import highest as highest
from assay.attention.checks import expect
from assay.attention.layer import Blocks, attention_weights
from assay.attention.layer import Layer as Layer
from assay.core.errors import UserError
from assay.core.plugin import Registry, Sized

Query = Int[Tensor, "*q 1"]
Key = Int[Tensor, "*k"]
"""Positions, as those of queries: counted from the start of the sequence."""
Sees = Bool[Tensor, "*rows query key"]
KeyScores = Float[Tensor, "rows kv_heads time"]
SlotScores = Float[Tensor, "rows kv_heads slots"]
PrefixScores = Float[Tensor, "rows kv_heads prefix"]
HeadSlots = Int[Tensor, "rows kv_heads"]


@dataclass(frozen=True, kw_only=True)
class Method(Sized):
    """Base of attention/<name>.py. Its promises are in assay.contracts.attention; `lanes.attended` runs it."""

    registry: ClassVar[Registry] = attention
    renamed: ClassVar[dict[str, str]] = {}
    """Former names of what a method's author writes: a file that still defines one is told the new name."""
    elsewhere: ClassVar[Mapping[str, str]] = {"sparsity": "--sparsity-levels", "slots": "--budgets"}
    """Options that users look for in a method -> what sets them."""
    bounded: ClassVar[bool] = True
    """Whether a budget bounds what is kept; where something else decides, `departure` says what the budget means."""
    portable: ClassVar[bool] = True
    """Whether it runs on queries, keys and values alone, without another package and a language model around it."""
    asks_call: ClassVar[bool] = False
    """Whether it reads how the model called the attention module (`layer.call`)."""
    asks_unturned: ClassVar[bool] = False
    """Whether it reads queries or keys as they were before rotary positions (`layer.unturned`)."""
    asks_plain_scores: ClassVar[bool] = False
    """Whether it is defined only where the model does not cap its scores."""
    asks_heads: ClassVar[bool] = False
    """Whether it reads the scores of heads that a calibration pass gives (`layer.heads`)."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for old, new in cls.renamed.items():
            if hasattr(cls, old):
                raise UserError(f"attention method {cls.__name__}: rename '{old}', which is now called '{new}'.")

    @property
    def departure(self) -> str:
        """Says what differs from the published form; the row's name shows it."""
        return ""

    @property
    def title(self) -> str:
        return f"{self.label} ({self.departure})" if self.departure else self.label

    def expected_density(self, time: int, budget: Budget) -> float | None:
        """Return keys attended over keys in sight, under a causal mask; None if it depends on the data. By default it
        is that of a full cache, or, where slots are shared out unevenly, only known if there is one for every key."""
        if self.has_budgets:
            return 1.0 if budget.cache(time) >= time else None
        return cache_density(time, budget.cache(time))

    def fitted(self, time: int, budget: Budget) -> "Method":
        """Return the method as it runs with this budget: smaller, where it says by which rule its sizes shrink."""
        return self

    def check(self, time: int, budget: Budget) -> None:
        """Raise BudgetTooSmall where the method cannot work with this budget."""

    def require(self, time: int, budget: Budget, least: int, short: str) -> None:
        """Raise BudgetTooSmall where there are fewer slots than `least`; `short` says so in the method's words."""
        if (slots := budget.cache(time)) < least:
            raise BudgetTooSmall(f"{self.name}: {budget} gives {slots} slots at {time} tokens, {short}.")

    def as_mixer(self) -> "Method":
        """Return the method as the mixer `sparse_attention` runs it, or raise UserError."""
        if self.has_budgets:
            raise UserError(f"{self.label} shares slots out over the layers of a model, and a mixer is one layer.")
        return self

    @property
    def has_budgets(self) -> bool:
        """Whether it shares slots out unevenly."""
        return type(self).budgets is not Method.budgets

    def budgets(self, layer: Layer, length: int, slots: int) -> HeadSlots | None:
        """Return the slots of each KV head of this layer, for a method that shares them out unevenly: over all of the
        model's layers and heads together no more than `slots` each, out of `length` keys. None: every head has `slots`.
        An Evict method must not look at queries, keys and values here, which are those of the whole sequence."""
        return None

    def vectors_read(self, visible: float, attended: float) -> float:
        """Return the vectors (a key or a value each) read in order to choose and to attend, given the keys in sight and
        the keys attended to, summed over queries and KV heads."""
        return 2 * attended

    def vectors_stored(self, resident: float) -> float:
        """Return the vectors kept per KV head, given the number of resident tokens."""
        return 2 * resident


@dataclass(frozen=True, kw_only=True)
class Pattern(Method):
    """A method in which positions alone decide."""

    published_in_cache: ClassVar[bool] = False
    """Whether its published form counts positions inside the cache; a row's name says where that was not done."""
    when_hidden: ClassVar[str] = ""
    """What a row's name says where the model's own sliding window hides keys far behind that the pattern keeps."""

    @property
    def forgets(self) -> bool:
        """True if a key that one query does not see is seen by no later query, so that it need not be kept."""
        return True

    def sees(self, query: Query, key: Key, *, time: int, slots: int) -> Sees:
        """Return whether the query at one position, counted from the sequence's start, attends to the key at another.
        Keys after the query need not be hidden here."""
        raise NotImplementedError(f"{type(self).__name__}.sees")

    def keep(self, layer: Layer, budget: Budget) -> Bool[Tensor, "rows 1 query key"]:
        place = layer.place
        seen = self.sees(place[:, :, None], place[:, None, :], time=layer.time, slots=budget.cache(layer.time))
        shape = {"rows": layer.rows, "query": layer.time, "key": layer.time}
        if isinstance(seen, Tensor) and seen.shape == layer.causal.shape:  # the same for every sequence
            seen = seen.expand(layer.rows, -1, -1)
        return (expect(seen, self, "sees", shape, layer.q, of="booleans") & layer.visible)[:, None]

    def cache(self, slots: int) -> tuple[int, int] | None:
        """Return how many first and latest keys its cache holds, if it holds nothing else: then positions can be
        counted inside the cache, where only the distance to the first ones changes. None otherwise."""
        return None


@dataclass(frozen=True, kw_only=True)
class Select(Method):
    """Each query chooses among all keys it may see, per query head: fewer are read, as many are stored."""

    recalls_queries: ClassVar[bool] = False
    """Whether a choice depends on earlier queries, which token-by-token decoding then has to carry."""

    def keep(self, layer: Layer, budget: Budget) -> Bool[Tensor, "rows heads query key"]:
        raise NotImplementedError(f"{type(self).__name__}.keep")

    def expected_density(self, time: int, budget: Budget) -> float | None:
        return density_of([budget.keys(t + 1) for t in range(time)])


@dataclass(frozen=True, kw_only=True)
class BlockSelect(Select):
    """A block of queries chooses, before its first token, its own block of keys and earlier ones, which it reads whole.
    On CUDA attention skips the blocks that are not chosen (flex.py)."""

    recalls_queries: ClassVar[bool] = True

    block_size: int = 64
    """Tokens of a block, of queries and of keys alike."""

    def chosen(self, layer: Layer, budget: Budget) -> Blocks:
        """Return the blocks of keys that each block of queries attends to, its own among them; none after it."""
        raise NotImplementedError(f"{type(self).__name__}.chosen")

    def chosen_blocks(self, layer: Layer, budget: Budget) -> Blocks:
        """Return what `chosen` gives, after checking its shape."""
        blocks = -(-layer.time // self.block_size)
        shape = {"rows": layer.rows, "heads": layer.q.shape[1], "block": blocks, "block of keys": blocks}
        return expect(self.chosen(layer, budget), self, "chosen", shape, layer.q, of="booleans")

    def keep(self, layer: Layer, budget: Budget) -> Bool[Tensor, "rows heads query key"]:
        size, chosen = self.block_size, self.chosen_blocks(layer, budget)
        every = repeat(chosen, "r h i j -> r h (i q) (j k)", q=size, k=size)
        return every[..., : layer.time, : layer.time] & layer.visible[:, None]


@dataclass(frozen=True, eq=False)
class Step:
    """The queries since the last eviction, and the resident keys they attended to, their own included. Online there is
    one query; in the chunked protocol there are several."""

    layer: Layer
    position: Int[Tensor, "rows kv_heads slots"]
    """Position of each resident in the sequence; meaningless where nothing is present."""
    present: Bool[Tensor, "rows kv_heads query slots"]
    """Residents that each of the queries attended to."""
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
    """A cache of k slots per KV head: after each query the key with the lowest score is evicted for good, the oldest
    among equals; keys hidden by the model's mask are evicted first. A method defines the score of a key when it enters
    the cache, or its update after each query, or both."""

    renamed: ClassVar[dict[str, str]] = {"arrival": "initial_score"}

    granularity: Literal["kv_head", "layer"] = "kv_head"
    """Whether each KV head decides for itself, or the mean score over heads decides for the whole layer."""

    def initial_score(self, layer: Layer) -> KeyScores:
        """Return the score of each key when it enters the cache."""
        return torch.zeros_like(layer.k[..., 0], dtype=layer.wide)

    def score(self, before: SlotScores, step: Step) -> SlotScores:
        """Return the score of each slot's key after this query, given its score before."""
        return before

    def skips(self, layer: Layer) -> bool:
        """Return whether this layer of the model keeps everything."""
        return False

    def protected(self, slots: int) -> tuple[int, int]:
        """Return how many of the first and of the latest keys are never evicted."""
        return 0, 0

    def check(self, time: int, budget: Budget) -> None:
        first, latest = self.protected(budget.cache(time))
        short = f"fewer than the {first} first and {latest} latest keys it always keeps"
        self.require(time, budget, first + latest, short)


@dataclass(frozen=True, kw_only=True)
class Prefix(Method):
    """The prefix protocol: a prefix of n tokens attends densely, k of its keys are kept per KV head, and the later
    tokens attend to these and to one another. The budget is one of the prefix; only the later tokens should be scored,
    since nothing is sparse for those of the prefix."""

    renamed: ClassVar[dict[str, str]] = {"worth": "score"}

    prefix: int = 0
    """Tokens of the prefix; 0: the first half of the sequence."""

    def as_mixer(self) -> Method:
        raise UserError(f"{self.label} cuts down a prompt once, which a mixer does not have.")

    def score(self, layer: Layer, length: int) -> PrefixScores:
        """Return the score of each key of the prefix, from what is known at its end; the highest are kept."""
        raise NotImplementedError(f"{type(self).__name__}.score")

    def score_for(self, layer: Layer, length: int, slots: int) -> PrefixScores:
        """Return the same, for a method whose scores depend on how many keys are kept."""
        return self.score(layer, length)

    def always(self, length: int) -> int:
        """Return how many of the latest keys of the prefix every head keeps, whatever their scores."""
        return 0

    def length(self, time: int) -> int:
        return min(time, self.prefix or time // 2)

    def require(self, time: int, budget: Budget, least: int, short: str) -> None:
        """Raise it where the prefix, of which the budget is, has fewer slots than `least` and keys."""
        length = self.length(time)
        if budget.cache(length) < min(length, least):
            raise BudgetTooSmall(
                f"{self.name}: {budget} gives {budget.cache(length)} slots for a prefix of {length} tokens, {short}."
            )

    def kept_of_prefix(self, layer: Layer, budget: Budget) -> Bool[Tensor, "rows kv_heads prefix"]:
        """Return the keys of the prefix that each KV head keeps."""
        length = self.length(layer.time)
        shape = {"rows": layer.rows, "kv_heads": layer.k.shape[1], "prefix": length}
        slots = budget.cache(length)
        known = expect(self.score_for(layer, length, slots), self, "score", shape, layer.k)
        budgets = head_budgets(self, layer, length, slots)
        count = torch.tensor([slots], device=layer.q.device) if budgets is None else budgets[..., None]
        return highest(known, count, layer.exists[:, None, :length])

    def keep(self, layer: Layer, budget: Budget) -> Bool[Tensor, "rows heads query key"]:
        length, chosen = self.length(layer.time), self.kept_of_prefix(layer, budget)
        kept = layer.visible[:, None].repeat(1, layer.q.shape[1], 1, 1)
        kept[:, :, length:, :length] &= repeat(chosen, "r h k -> r (h g) 1 k", g=layer.group)
        return kept

    def expected_density(self, time: int, budget: Budget) -> float | None:
        length = self.length(time)
        if self.has_budgets:
            return super().expected_density(length, budget)
        left = min(length, budget.cache(length))
        return density_of([t + 1 if t < length else left + t - length + 1 for t in range(time)])


@dataclass(frozen=True, kw_only=True)
class PrefixOf(Prefix):
    """A Prefix method that takes its scores from another one, and shares out the slots in a way of its own
    (`budgets`)."""

    method: Method = field(default_factory=lambda: attention.parse("snapkv"))
    """Prefix method whose scores decide: snapkv, lagkv, expected_attention, ..."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.method, Prefix):
            raise UserError(f"{self.name}: {self.method.label} cuts down no prefix; take snapkv, or another that does.")

    @property
    def inner(self) -> Prefix:
        """The other method, with the same prefix."""
        assert isinstance(self.method, Prefix)  # checked when it was made
        return replace(self.method, prefix=self.prefix)

    def score_for(self, layer: Layer, length: int, slots: int) -> PrefixScores:
        return self.inner.score_for(layer, length, slots)

    def always(self, length: int) -> int:
        return self.inner.always(length)

    def check(self, time: int, budget: Budget) -> None:
        self.inner.check(time, budget)


def head_budgets(method: Method, layer: Layer, length: int, slots: int) -> HeadSlots | None:
    """Return the checked budgets of a method, or None if every head has `slots`."""
    if not method.has_budgets:
        return None
    if not layer.index < layer.layers:
        raise UserError(f"{method.label} has budgets per layer, and the model does not say how many layers it has.")
    found = method.budgets(layer, length, slots)
    if found is None:
        return None
    shape = {"rows": layer.rows, "kv_heads": layer.k.shape[1]}
    return expect(found, method, "budgets", shape, layer.q, of="whole numbers")
