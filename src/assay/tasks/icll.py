"""In-context language learning (Akyurek et al. 2024) asks for the next symbol of strings from an unknown automaton.

    state 1: a (9 in 10) to 2, b to 1          |abba|abbb|abba|ab  ->  b      the likely symbol of the state behind "ab"
    state 2: b (9 in 10) to 2, a to 1          each sequence has an automaton of its own

A sequence is `num_strings` strings of `string_length` symbols, each behind the token 0. One automaton makes them all.
It has `num_states` states and begins every string in the first. In a state each of the `num_symbols` symbols leads to a
uniform state, itself included; one of them, uniform, is likely: it comes with probability `likely`, the others share
the rest. Every symbol is asked, at the token before it.

The last symbols alone do not tell the state, so counting what followed them falls short. The oracle is the ideal
observer: the most probable next symbol under the exact posterior over all automata, given the tokens so far. It knows
the law, not the automaton; who knew the automaton would be right with probability `likely`, which the oracle nears
string by string. References: `unigram`, `bigram` and `trigram`, the most frequent symbol so far after the last 0, 1 and
2 tokens; ties and new contexts fall back to shorter ones. Floor: 1 / num_symbols.

The posterior sums over where edges lead, at most 20,000 ways; which symbols are likely is integrated out, for a state
that showed symbol a in n_a of its n visits the mean over a of likely^n_a rest^(n - n_a), rest = (1 - likely) / (A - 1).

Differs from the paper's RegBench: 3 states of 2 symbols, all of them possible and one likely, where theirs have 4 to 12
states and up to 18 symbols, of which a state has 1 to 4, equally likely: too many automata for an exact posterior.
Strings have one length. A prediction is right if it is the next symbol, where theirs has to be a possible one.
"""

import math
from dataclasses import dataclass
from functools import cache
from itertools import permutations, product
from typing import ClassVar

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import one_hot, pad

from assay.tasks import tasks
from assay.tasks.base import Batch, Task, TaskShape, Tokens

START = 0  # the token before a string; symbols are 1, 2, ...
ENUMERABLE = 20_000
NUMBERS = 2**18  # sequences x automata at once: their counts stay in a processor's cache


@tasks.register("icll")
@dataclass(frozen=True, kw_only=True)
class Icll(Task):
    """Predict the next symbol of strings that one random automaton makes."""

    by_examples: ClassVar[bool] = True

    num_states: int = 3
    """States of an automaton."""
    num_symbols: int = 2
    """Kinds of symbol that strings are made of, at least 2."""
    num_strings: int = 8
    """Strings in a sequence, all of one automaton."""
    string_length: int = 8
    """Symbols of a string."""
    likely: float = 0.9
    """Probability of a state's likely symbol."""

    def __post_init__(self) -> None:
        self.require_positive("num_states", "num_strings", "string_length")
        self.require(self.num_symbols >= 2, f"num_symbols={self.num_symbols} leaves nothing to predict. Use 2 or more.")
        self.require(
            1 / self.num_symbols < self.likely < 1,
            f"likely={self.likely} must be above 1 / num_symbols and below 1. Use likely=0.9.",
        )
        edges = self.num_states * self.num_symbols
        self.require(
            edges * math.log(self.num_states) <= math.log(ENUMERABLE),
            f"num_states={self.num_states} with num_symbols={self.num_symbols}: {edges} edges have more than "
            f"{ENUMERABLE} ways to lead, too many for an exact oracle. Use num_states=3 with num_symbols=2 or 3, or "
            "num_states=2 with 2 to 7.",
        )

    def shape(self) -> TaskShape:
        tokens = Tokens(1 + self.num_symbols)
        return TaskShape(inputs=tokens, outputs=tokens, length=self.num_strings * (1 + self.string_length))

    def sample(self, batch: int, rng: torch.Generator) -> Batch:
        states, device = self.num_states, rng.device
        target = torch.randint(states, (batch, states * self.num_symbols), generator=rng, device=device)
        liked = torch.randint(self.num_symbols, (batch, states), generator=rng, device=device)
        size = (self.string_length, batch, self.num_strings)
        as_liked = torch.rand(size, generator=rng, device=device) < self.likely
        other = torch.randint(1, self.num_symbols, size, generator=rng, device=device)
        state = torch.zeros(size[1:], dtype=torch.long, device=device)
        strings = [torch.full_like(state, START)]
        for usual, shift in zip(as_liked, other, strict=True):  # all strings of all sequences at once
            symbol = (liked.gather(1, state) + shift.masked_fill(usual, 0)) % self.num_symbols
            strings.append(1 + symbol)
            state = target.gather(1, state * self.num_symbols + symbol)
        inputs = rearrange(strings, "t b s -> b s t")
        places = torch.arange(self.shape().length, device=device).reshape(self.num_strings, -1)[:, :-1]
        targets = rearrange(inputs[:, :, 1:], "b s t -> b (s t)")
        positions = places.flatten().expand(targets.shape)
        return Batch(inputs=rearrange(inputs, "b s t -> b (s t)"), targets=targets, positions=positions)

    def oracle(self, batch: Batch) -> Int[Tensor, "batch answers"]:
        """Return the symbol that is most probable under the exact posterior; of two, the first."""
        return 1 + self.predictive(batch.inputs).mul(1e9).round().argmax(-1)  # sums differ in their last digits

    def predictive(self, inputs: Int[Tensor, "batch time"]) -> Float[Tensor, "batch answers symbols"]:
        """Return the ideal observer's probability of each symbol, given the automata's law and the tokens before."""
        rows = max(1, NUMBERS // len(automata(self.num_states, self.num_symbols, inputs.device)[1]))
        return torch.cat([self._predictive(some) for some in inputs.split(rows)])

    def _predictive(self, inputs: Int[Tensor, "batch time"]) -> Float[Tensor, "batch answers symbols"]:
        """Follow the tokens through every automaton at once: its state, and how often each state showed each symbol."""
        target, weight = automata(self.num_states, self.num_symbols, inputs.device)
        size, symbols = (len(inputs), len(weight)), self.num_symbols
        state = torch.zeros(size, dtype=torch.long, device=inputs.device)
        seen = torch.zeros(*size, self.num_states * symbols, dtype=torch.float64, device=inputs.device)
        posterior = weight.expand(size)
        ratio = math.log(self.likely * (symbols - 1) / (1 - self.likely))
        rest = (1 - self.likely) / (symbols - 1)
        which, one = torch.arange(len(weight), device=inputs.device), torch.ones_like(seen[..., :1])
        chance, answers = weight.new_ones(*size, symbols), []
        for place, token in enumerate(inputs.unbind(1)):
            within = place % (1 + self.string_length)
            if within == 0:
                state = torch.zeros_like(state)
            else:
                symbol = rearrange(token - 1, "b -> b 1")
                edge = state * symbols + symbol
                posterior = posterior * chance.gather(2, symbol[..., None].expand(*size, 1))[..., 0]
                posterior = posterior / posterior.sum(1, keepdim=True)
                seen.scatter_add_(2, edge[..., None], one)
                state = target[which, edge]
            if within < self.string_length:
                here = state[..., None] * symbols + torch.arange(symbols, device=inputs.device)
                # Which symbol is likely: as probable as likely^n_a rest^(n - n_a), that is (likely / rest)^n_a.
                liked = (ratio * seen.gather(2, here)).softmax(-1)
                chance = rest + (self.likely - rest) * liked
                answers.append(torch.einsum("bh,bha->ba", posterior, chance))
        return torch.stack(answers, dim=1)

    def references(self, batch: Batch) -> dict[str, Tensor]:
        """Count in context: what followed the last n - 1 tokens, with shorter contexts where that is tied or new."""
        time = batch.inputs.shape[1]
        following = one_hot(batch.inputs.roll(-1, dims=1), 1 + self.num_symbols).double()
        place = torch.arange(time, device=batch.inputs.device)
        same = (rearrange(place, "s -> 1 s") < rearrange(place, "t -> t 1")).expand(len(batch.inputs), -1, -1)
        counts, found = torch.zeros_like(following), {}
        for order, name in enumerate(("unigram", "bigram", "trigram")):
            if order:
                token = pad(batch.inputs, (order - 1, 0), value=-1)[:, :time]
                same = same & (rearrange(token, "b t -> b t 1") == rearrange(token, "b s -> b 1 s"))
            # Counts are below `time`: a longer context outweighs all shorter ones.
            counts = counts / time + torch.einsum("bts,bsv->btv", same.double(), following)
            found[name] = (1 + counts[..., 1:].argmax(-1)).gather(1, batch.asked)
        return found


@cache
def automata(
    states: int, symbols: int, device: torch.device
) -> tuple[Int[Tensor, "automata edges"], Float[Tensor, " automata"]]:
    """Return where the edges lead, state by state, in every automaton, and how probable that is. Automata that differ
    in the names of their states alone, but for the first, or in states that are never reached, are one."""
    every = torch.tensor(list(product(range(states), repeat=states * symbols))).reshape(-1, states, symbols)
    reached = torch.zeros(every.shape[:2], dtype=torch.bool)
    reached[:, 0] = True
    for _ in range(states - 1):
        edges = one_hot(every, states).bool() & rearrange(reached, "h s -> h s 1 1")
        reached = reached | edges.flatten(1, 2).any(1)
    every[~reached] = 0
    digits = states ** torch.arange(states * symbols)
    codes = []
    for names in permutations(range(1, states)):
        renamed = torch.tensor((0, *names))
        codes.append((renamed[every][:, renamed.argsort()].flatten(1) * digits).sum(1))
    _, group, size = torch.stack(codes).amin(0).unique(return_inverse=True, return_counts=True)
    chosen = torch.full_like(size, len(every)).scatter_reduce(0, group, torch.arange(len(every)), "amin")
    return every[chosen].flatten(1).to(device), (size.double() / len(every)).to(device)
