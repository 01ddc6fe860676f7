"""Multi-query associative recall (Arora et al. 2023) shows pairs first, then asks for them among filler.

    A 4 B 7 C 1 | . . B 7 . . A 4 C 1  ->  4, 7, 1      of A, B, C; read where each is asked, before its value

Keys are distinct tokens of [1, V/2), values distinct tokens of [V/2, V), 0 is reserved. The first 2 K tokens are
k1 v1 ... kK vK. The rest is cut into slots of two tokens, and slot i = 1, 2, ... has weight i^(power_a - 1): the keys
take distinct slots, drawn one after the other, and stand there followed by their values (teacher forcing). Entry j of
`positions` and `targets` belongs to key j, wherever that is asked; without `updates` (below) that is
`positions[:, j] - 2 j` tokens after the key.

Everywhere else stands filler: uniform over [1, V) (`any`: a filler may happen to be a key, in 2 % of the default's
sequences), over the tokens that are not keys of the sequence (`no_keys`), or 0 (`zero`). The first and the last are
`random_non_queries` True and False of the prior art. `power_a=1` is the uniform law; the default 0.01 puts six of ten
questions into the first third of the slots.

`updates=1` gives every key a new value: its pairs, all in one random order, come before the questions, and the newest
value is the answer. Content alone finds both values; decay, overwriting or positions tell the newest (by a coin: .5):

    A 4 B 7 A 2 C 1 B 5 C 9 | . . B . . . A . C .  ->  2, 5, 9      `values=hidden`

`min_kv_pairs=4` mixes sizes: `parts()` has 4, 8, 16, ..., num_kv_pairs pairs, each in its share L K / num_kv_pairs of
the length, `task.only(K)`. Models are trained on them in turn; `sample` draws the largest. `cells=zoology` has the
authors' own cells of length and pairs instead, five to train on and seven to be scored on (TRAINED, SCORED).

Differs from the paper: a question is followed by its value, as in the spec, where the authors' code leaves filler, as
`values=hidden` does. A value that has been shown can be ruled out for later questions: guessing among those not shown
yet scores (1 + 1/2 + ... + 1/K) / K instead of 1/K (`floor`). Filler never is 0 unless all of it is, theirs may be.
Batches are drawn anew, where they go through a fixed set many times. `no_keys`, `key_pool`, `updates` and
`min_kv_pairs` are ours.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, assert_never

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from assay.core.convert import added
from assay.nn.random import uniform
from assay.tasks import tasks
from assay.tasks.base import Batch, Task, TaskShape, Tokens
from assay.tasks.subsets import distinct, largest_first

TRAINED = ((64, 4), (128, 8), (64, 4), (256, 16), (64, 4), (256, 32), (64, 4), (256, 64), (64, 4))
"""Cells (length, pairs) that `cells=zoology` trains on, in turn: 100,000 sequences of the first to 20,000 of each other
in the authors' set."""
SCORED = ((64, 4), (64, 8), (64, 16), (128, 32), (256, 64), (512, 128), (1024, 256))
"""Cells that it is scored on, each as much as another. The last two are larger than any in training."""
Pairs = Int[Tensor, "batch pairs"]
Rngs = Sequence[torch.Generator]


@tasks.register("mqar")
@dataclass(frozen=True, kw_only=True)
class Mqar(Task):
    """Recall the values of keys seen in context, many per sequence."""

    input_seq_len: int = 64
    """Tokens of a sequence, an even number; what pairs and questions leave is filler."""
    vocab_size: int = 8192
    """Kinds of token: the lower half are keys, the upper half values, and 0 is neither."""
    num_kv_pairs: int = 8
    """Keys of a sequence, each shown with its value and asked for once."""
    power_a: float = 0.01
    """Question slot i has weight i^(power_a - 1): 1 spreads questions evenly, less puts them earlier."""
    filler: Literal["any", "no_keys", "zero"] = "any"
    """Tokens where nothing else stands: any, any but the sequence's keys, or 0."""
    key_pool: Literal["all", "train", "eval"] = "all"
    """`train` and `eval` are disjoint halves of the keys. Models trained on the first are also scored on the second:
    does recall carry over to keys never asked for before?"""
    min_kv_pairs: int | None = None
    """Fewest pairs of a mixture of sizes, which double up to num_kv_pairs; none: all sequences have as many."""
    values: Literal["shown", "hidden"] = added("shown")
    """What follows a question: its value, or with `hidden` filler, so that no answer can be found by elimination."""
    cells: Literal["doubling", "zoology"] = added("doubling")
    """`zoology`: the lengths and pairs of the authors' recall sweep, up to input_seq_len=1024 and num_kv_pairs=256."""

    updates: int = added(0)
    """How often every key is given a new value before it is asked for."""

    def __post_init__(self) -> None:
        length, pairs = self.input_seq_len, self.num_kv_pairs
        self.require_positive("num_kv_pairs")
        self.require(self.updates >= 0, f"updates={self.updates} must not be negative. Use updates=0 for none.")
        self.require(
            length % 2 == 0,
            f"input_seq_len={length} must be even, since slots are two tokens wide. Use input_seq_len={length + 1}.",
        )
        self.require(
            self._per_key * pairs <= length,
            f"input_seq_len={length} is too short for num_kv_pairs={pairs}: each key takes {self._per_key} tokens, "
            f"two of them for its question. Use input_seq_len={self._per_key * pairs} or more, or "
            f"num_kv_pairs={length // self._per_key} or fewer.",
        )
        self._check_vocabulary()
        self.require(self.power_a > 0, f"power_a={self.power_a} must be positive. Use power_a=1 for uniform slots.")
        if self.cells == "zoology":
            self.require(
                (length, pairs, self.min_kv_pairs, self.updates) == (*SCORED[-1], None, 0),
                "cells=zoology has sizes of its own. Use input_seq_len=1024, num_kv_pairs=256, and neither "
                "min_kv_pairs nor updates.",
            )
        if self.min_kv_pairs is not None:
            self._check_mix(self.min_kv_pairs)

    def _check_vocabulary(self) -> None:
        """Refuse too few keys, of which each is written several times, or too few values, of which each is once."""
        pairs, values = self.num_kv_pairs, self.vocab_size - self.vocab_size // 2
        enough = max((2 if self.key_pool == "all" else 4) * (pairs + 1), 2 * self._pairs_written)
        self.require(
            len(self.keys) >= pairs,
            f"key_pool={self.key_pool} of vocab_size={self.vocab_size} holds {len(self.keys)} keys, fewer than "
            f"num_kv_pairs={pairs}. Use vocab_size={enough} or more.",
        )
        self.require(
            values >= self._pairs_written,
            f"vocab_size={self.vocab_size} holds {values} values, fewer than num_kv_pairs={pairs} with "
            f"updates={self.updates} need. Use vocab_size={enough} or more.",
        )

    def _check_mix(self, smallest: int) -> None:
        self.require(
            smallest in self._halvings(),
            f"min_kv_pairs={smallest} does not double up to num_kv_pairs={self.num_kv_pairs}. "
            f"Use one of {', '.join(map(str, self._halvings()))}.",
        )
        self.require(
            self.input_seq_len * smallest % (2 * self.num_kv_pairs) == 0,
            f"input_seq_len={self.input_seq_len} cannot shrink in proportion to min_kv_pairs={smallest} pairs of "
            f"num_kv_pairs={self.num_kv_pairs}. Use input_seq_len={self._per_key * self.num_kv_pairs}, or a "
            "multiple of it.",
        )

    @property
    def _pairs_written(self) -> int:
        """Return how many pairs a sequence has, of old values and new."""
        return self.num_kv_pairs * (1 + self.updates)

    @property
    def _per_key(self) -> int:
        """Return how many tokens a key takes: its pairs and its question."""
        return 2 * (2 + self.updates)

    def _halvings(self) -> list[int]:
        """Return num_kv_pairs, its half, its quarter, ... down to the last whole one."""
        sizes = [self.num_kv_pairs]
        while sizes[-1] % 2 == 0:
            sizes.append(sizes[-1] // 2)
        return sizes

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the numbers of pairs a sequence may have, smallest first."""
        smallest = self.num_kv_pairs if self.min_kv_pairs is None else self.min_kv_pairs
        return tuple(size for size in reversed(self._halvings()) if size >= smallest)

    def only(self, pairs: int) -> "Mqar":
        """Return the unmixed task of one of the sizes, at its own length: a point of the capacity curve."""
        length = self.input_seq_len * pairs // self.num_kv_pairs
        return replace(self, num_kv_pairs=pairs, input_seq_len=length, min_kv_pairs=None)

    def parts(self) -> tuple[Task, ...]:
        """Return each size at its own length."""
        if self.cells == "zoology":
            return tuple(map(self._cell, dict.fromkeys(TRAINED)))
        return (self,) if self.min_kv_pairs is None else _mixture(self)

    def scored_parts(self) -> tuple[Task, ...]:
        return tuple(map(self._cell, SCORED)) if self.cells == "zoology" else self.parts()

    def turns(self, batch: int) -> tuple[tuple[Task, int], ...]:
        """Return the parts in the order of training: the authors' cells with as many sequences each, other mixtures
        with as many tokens."""
        return tuple((self._cell(cell), batch) for cell in TRAINED) if self.cells == "zoology" else super().turns(batch)

    def _cell(self, cell: tuple[int, int]) -> "Mqar":
        return replace(self, input_seq_len=cell[0], num_kv_pairs=cell[1], cells="doubling")

    def floor(self) -> float:
        """Return the accuracy of a guess among the sequence's values, or among those not shown yet where they are."""
        pairs = self.num_kv_pairs
        return (1 if self.values == "hidden" else sum(1 / left for left in range(1, pairs + 1))) / pairs

    def longer(self) -> dict[int, Task]:
        """Return tasks with as many pairs among more filler: 1 to 8 times the greatest length of training; for a
        mixture, at a size that most mixers hold. The authors' cells have none."""
        if self.cells == "zoology":
            return {}
        base = self.only(self.sizes[len(self.sizes) // 3])
        lengths = [self.input_seq_len * times for times in (1, 2, 4, 8)]
        return {n: replace(base, input_seq_len=n) for n in lengths}

    def unseen(self) -> Task | None:
        return replace(self, key_pool="eval") if self.key_pool == "train" else None

    def gaps(self, batch: Batch) -> Pairs:
        """Return the distance from a key, where it has its newest value, to its question."""
        return batch.asked - 2 * self._newest(batch)

    @property
    def keys(self) -> range:
        """Return the tokens that may be keys."""
        middle, end = 1 + (self.vocab_size // 2 - 1) // 2, self.vocab_size // 2
        match self.key_pool:
            case "all":
                return range(1, end)
            case "train":
                return range(1, middle)
            case "eval":
                return range(middle, end)
            case other:
                assert_never(other)

    @property
    def slots(self) -> int:
        """Return how many places a sequence of num_kv_pairs has for questions."""
        return (self.input_seq_len - 2 * self._pairs_written) // 2

    def shape(self) -> TaskShape:
        return TaskShape(inputs=Tokens(self.vocab_size), outputs=Tokens(self.vocab_size), length=self.input_seq_len)

    def sample(self, batch: int, rng: torch.Generator) -> Batch:
        return self._drawn(batch, rng)

    def sample_together(self, batch: int, rngs: Rngs) -> Batch:
        if type(self).sample is not Mqar.sample:  # a task made of this one, which draws otherwise
            return super().sample_together(batch, rngs)
        drawn = self._drawn(batch, *rngs)
        return Batch(*(part.unflatten(0, (len(rngs), batch)) for part in (drawn.inputs, drawn.targets, drawn.asked)))

    def _drawn(self, batch: int, *rngs: torch.Generator) -> Batch:
        """Draw `batch` sequences from each generator, those of the first in front."""
        pairs, half, start = self.num_kv_pairs, self.vocab_size // 2, 2 * self._pairs_written
        keys, values = self._keys_and_values(batch, (len(self.keys), self.vocab_size - half), rngs)
        keys, values = keys + self.keys.start, values + half
        inputs = self._filler(keys, batch, rngs)
        positions = start + 2 * largest_first(self._scores(batch, rngs), pairs)
        inputs[:, 0:start:2], newest = self._keys_written(keys, batch, rngs)
        inputs[:, 1:start:2] = values
        targets = values.gather(1, newest)
        inputs.scatter_(1, positions, keys)
        if self.values == "shown":
            inputs.scatter_(1, positions + 1, targets)
        return Batch(inputs=inputs, targets=targets, positions=positions)

    def _keys_and_values(
        self, batch: int, pools: tuple[int, int], rngs: Rngs
    ) -> tuple[Pairs, Int[Tensor, "batch written"]]:
        """Draw which keys a sequence has, and which values its pairs."""
        pairs, written = self.num_kv_pairs, self._pairs_written
        if pools[0] >= written:  # as many keys as values, in one draw: stored runs with updates were drawn so
            keys, values = distinct(batch, written, pools, *rngs)
            return keys[:, :pairs], values
        (keys,), (values,) = distinct(batch, pairs, pools[:1], *rngs), distinct(batch, written, pools[1:], *rngs)
        return keys, values

    def _keys_written(self, keys: Pairs, batch: int, rngs: Rngs) -> tuple[Int[Tensor, "batch written"], Pairs]:
        """Return the key of every pair in its order, and which pair is the last of each key."""
        if not self.updates:
            return keys, torch.arange(keys.shape[1], device=keys.device).expand_as(keys)
        # Place i of a random order goes to key i modulo the number of keys, as often as it is written.
        place = uniform((batch, self._pairs_written), *rngs).argsort(dim=1, stable=True)
        often = keys.repeat(1, 1 + self.updates)
        newest = rearrange(place, "b (n k) -> b n k", k=keys.shape[1]).amax(dim=1)
        return torch.empty_like(often).scatter_(1, place, often), newest

    def _scores(self, batch: int, rngs: Rngs) -> Tensor:
        """Draw scores whose largest k, in order, are k successive draws without replacement by the slots' weights:
        log(u) / weight is minus an exponential waiting time of that rate, and the first to ring are drawn first."""
        slot = torch.arange(1, self.slots + 1, device=rngs[0].device, dtype=torch.float32)
        return uniform((batch, self.slots), *rngs).log_().mul_(slot.pow(1 - self.power_a))

    def _filler(self, keys: Pairs, batch: int, rngs: Rngs) -> Int[Tensor, "batch time"]:
        """Draw tokens for every place, as if there were neither pairs nor questions."""
        shape = (batch, self.input_seq_len)
        match self.filler:
            case "any":
                drawn = [torch.randint(1, self.vocab_size, shape, generator=rng, device=rng.device) for rng in rngs]
                return torch.cat(drawn)
            case "no_keys":
                return self._tokens_without(keys, uniform(shape, *rngs, dtype=torch.float64))
            case "zero":
                return keys.new_zeros(len(keys), self.input_seq_len)
            case other:
                assert_never(other)

    def _tokens_without(self, keys: Pairs, drawn: Float[Tensor, "batch time"]) -> Int[Tensor, "batch time"]:
        """Turn numbers of [0, 1) into tokens of [1, V) less the row's keys: the n-th one left, by counting the keys
        below it."""
        rank = 1 + (drawn * (self.vocab_size - 1 - keys.shape[1])).long()
        below = keys.sort(dim=1).values - torch.arange(keys.shape[1], device=keys.device)
        return rank + torch.searchsorted(below, rank, right=True)

    def _newest(self, batch: Batch) -> Pairs:
        """Look each queried key up among the pairs: the last of them that has it."""
        asked = rearrange(batch.inputs.gather(1, batch.asked), "b q -> b q 1")
        found = asked == rearrange(batch.inputs[:, 0 : 2 * self._pairs_written : 2], "b c -> b 1 c")
        return self._pairs_written - 1 - found.to(torch.uint8).flip(-1).argmax(-1)

    def oracle(self, batch: Batch) -> Pairs:
        """Return the newest value of each queried key."""
        return batch.inputs[:, 1 : 2 * self._pairs_written : 2].gather(1, self._newest(batch))


@lru_cache(maxsize=256)
def _mixture(task: Mqar) -> tuple[Mqar, ...]:
    """Return each size of a mixture, made once: a plan asks for them at every point of its grid."""
    return tuple(task.only(size) for size in task.sizes)
