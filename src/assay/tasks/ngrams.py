"""Counts of byte sequences predict the next byte of a text.

An n-gram's probability is interpolated with the shorter one's by how many kinds of byte have followed (Witten and Bell
1991). After a context that was seen c times, followed by t different bytes,

    p(b | abc) = (count(abc b) + t p(b | bc)) / (c + t),      at last p(b) = (count(b) + t / 256) / (c + t)

Up to seven bytes are packed into one integer, the latest byte lowest, so that counting is sorting.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor

BYTES = 256


def packed(data: Integer[Tensor, "*batch time"], size: int) -> Int[Tensor, "*batch time"]:
    """Pack the last `size` bytes at every place; before the start of the data stand zeros."""
    found = torch.zeros_like(data, dtype=torch.long)
    for back in range(min(size, data.shape[-1])):
        found[..., back:] |= data[..., : data.shape[-1] - back].long() << (8 * back)
    return found


def last_equal(codes: Int[Tensor, "batch time"]) -> Int[Tensor, "batch time"]:
    """Return the latest earlier place with the same code, or -1."""
    ordered, places = codes.sort(dim=1, stable=True)
    before = torch.where(ordered[:, 1:] == ordered[:, :-1], places[:, :-1], -1)
    return torch.full_like(codes, -1).scatter_(1, places[:, 1:], before)


@dataclass(frozen=True, eq=False)
class Ngrams:
    """The n-grams of one order, sorted: `codes` (context, then byte), and in front of each how many were counted."""

    codes: Int[Tensor, " kinds"]
    before: Int[Tensor, " kinds_and_one"]

    def refine(self, shorter: Float[Tensor, "rows 256"], contexts: Int[Tensor, " rows"]) -> None:
        """Interpolate probabilities in place with those of this order; a context never seen leaves its row alone,
        and so does a number below 0, which is none."""
        low, high = (torch.searchsorted(self.codes, (contexts + more).clamp(min=0) << 8) for more in (0, 1))
        kinds, seen = high - low, self.before[high] - self.before[low]
        shorter *= torch.where(kinds > 0, kinds / (kinds + seen).clamp(min=1), 1.0)[:, None]
        rows = torch.arange(len(kinds), device=kinds.device).repeat_interleave(kinds)
        places = torch.arange(len(rows), device=kinds.device) + (high - kinds.cumsum(0))[rows]
        counts = self.before[places + 1] - self.before[places]
        # No place occurs twice: a context has one count for each byte.
        shorter[rows, self.codes[places] & 0xFF] += (counts / (kinds + seen)[rows]).to(shorter)


@dataclass(frozen=True, eq=False)
class Model:
    """Interpolated n-grams up to the longest context."""

    orders: Sequence[Ngrams]
    """By the length of the context, from none on."""

    def unigram(self) -> Float[Tensor, "256"]:
        """Return the log-probability of each byte without any context."""
        return self._start()[0].log()

    def log_probabilities(self, inputs: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time 256"]:
        """Return those of the byte after each place, from the bytes up to there: once per context that occurs."""
        codes, found = torch.ones_like(inputs).flatten(), self._start()
        place = torch.zeros_like(codes)
        rows = torch.arange(len(codes), device=codes.device)
        for size in range(1, len(self.orders)):
            # A bit above the bytes says how many they are. Where there are fewer so far, the context stays as it was.
            longer = packed(inputs, size) + (1 << 8 * size)
            longer[:, : size - 1] = 0
            codes = torch.where(longer.flatten() > 0, longer.flatten(), codes)
            contexts, now = codes.unique(return_inverse=True)
            found = found[place[torch.empty_like(contexts).scatter_(0, now, rows)]]
            self.orders[size].refine(found, contexts - (1 << 8 * size))
            place = now
        return found.log_()[place].view(*inputs.shape, BYTES)

    def _start(self) -> Float[Tensor, "1 256"]:
        codes = self.orders[0].codes
        one = torch.full((1, BYTES), 1 / BYTES, device=codes.device)
        self.orders[0].refine(one, torch.zeros(1, dtype=torch.long, device=codes.device))
        return one


def count(data: Integer[Tensor, " time"], starts: Sequence[int], longest: int) -> Model:
    """Count the n-grams of documents that lie one after another, from each of `starts` to the next."""
    place = _places(data, starts)
    orders = []
    for size in range(longest + 1):
        codes, counts = packed(data, size + 1)[place >= size].unique(return_counts=True)
        orders.append(Ngrams(codes, torch.cat([counts.new_zeros(1), counts.cumsum(0)])))
    return Model(tuple(orders))


def widespread(
    data: Integer[Tensor, " time"], starts: Sequence[int], *, size: int, block: int, share: float
) -> Int[Tensor, " codes"]:
    """Return the sequences of `size` bytes, packed, that more than this share of the documents' blocks have."""
    place = _places(data, starts)
    new_block = (place % block == 0).long().cumsum(0)
    there: Bool[Tensor, " time"] = place >= size - 1
    codes, order = packed(data, size)[there].sort(stable=True)
    blocks = new_block[there][order]  # of one code they rise: the sort is stable
    again = (codes[1:] == codes[:-1]) & (blocks[1:] == blocks[:-1])
    once = torch.cat([again.new_ones(1)[: len(codes)], ~again])
    found, counts = codes[once].unique_consecutive(return_counts=True)
    return found[counts > share * new_block[-1]]


def _places(data: Tensor, starts: Sequence[int]) -> Int[Tensor, " time"]:
    """Return each byte's place in its document."""
    sizes = [end - start for start, end in pairwise([*starts, len(data)])]
    return torch.cat([torch.arange(size, device=data.device) for size in sizes])
