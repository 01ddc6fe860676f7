"""State tracking asks for the running product of group elements (Merrill et al. 2024; Grazzi et al. 2024).

    parity   1 1 0 1 0  ->  1 0 0 1 1         the number of ones so far, modulo 2
    s3       a b c ...  ->  a, ab, abc, ...   all 6 permutations of three things; s5: all 120 of five, a5: the 60 even

A token is an element of the group, by its place in the lexicographic list of its permutations, so 0 is the identity;
tokens are uniform and independent. The target at a position is the element x_1 x_2 ... x_t, where (p q)(i) = p(q(i)).

    length=40            every position is asked
    length=3..40         one position is asked, the end of a sequence whose length is uniform over 3, ..., 40
    tokens=generators    two elements alone come as tokens, of which all are products: in s5 the swap of the first two
                         things and the cycle of all five. There are 2^t words of t tokens, where all 120 tokens
                         make 120^t, so training sees short words often

A causal model does not see what stands behind the question, so sequences of all lengths have one shape, the longest:
no padding, and as many tokens in every step. Models are scored at up to 256 tokens, asked as in training.

Differs from the paper (Grazzi et al. 2024): nothing in the law of `length=3..40`, but its accuracy at 40 to 256 tokens
is one number, where each length has its own here.
"""

from dataclasses import dataclass, replace
from functools import cache
from itertools import permutations
from typing import Literal

import torch
from jaxtyping import Int
from torch import Tensor

from assay.core.convert import added
from assay.tasks import tasks
from assay.tasks.base import Batch, Task, TaskShape, Tokens

Group = Literal["parity", "s3", "a5", "s5"]
Element = tuple[int, ...]
PERMUTED: dict[Group, int] = {"parity": 2, "s3": 3, "a5": 5, "s5": 5}
"""How many things a group permutes."""
GENERATORS: dict[Group, tuple[Element, Element]] = {
    "s3": ((1, 0, 2), (1, 2, 0)),
    "a5": ((1, 2, 0, 3, 4), (1, 2, 3, 4, 0)),
    "s5": ((1, 0, 2, 3, 4), (1, 2, 3, 4, 0)),
}
"""Two elements of which every other is a product."""


@tasks.register("state_tracking")
@dataclass(frozen=True, kw_only=True)
class StateTracking(Task):
    """Say, after every token, the product of the group elements so far."""

    group: Group = "parity"
    """What tokens stand for: bits, permutations of three things (s3), of five (s5), or the even ones of five (a5)."""
    length: int | str = 40
    """Tokens of a sequence, asked after each; or a range of lengths, 3..40, asked at the end alone."""
    tokens: Literal["all", "generators"] = added("all")
    """Which elements come as tokens: all of the group, or two of which all are products."""

    def __post_init__(self) -> None:
        shortest, longest = self.lengths
        self.require(
            self.tokens == "all" or self.group in GENERATORS,
            f"group={self.group} has no two generators. Use tokens=all, or group=s3, a5 or s5.",
        )
        self.require(
            1 <= shortest <= longest,
            f"length={self.length} must be at least 1, or a range that rises. Use length=40, or length=3..40.",
        )

    @property
    def lengths(self) -> tuple[int, int]:
        """The shortest and the longest sequence."""
        if isinstance(self.length, int):
            return self.length, self.length
        first, dots, last = self.length.partition("..")
        whole = bool(dots) and first.isdecimal() and last.isdecimal()
        self.require(whole, f"length={self.length} is no length. Use a number such as length=40, or length=3..40.")
        return int(first), int(last)

    def longer(self) -> dict[int, Task]:
        """Return lengths up to 256 tokens, as the prior art tests models that were trained at up to 40."""
        longest, every = self.lengths[1], isinstance(self.length, int)
        lengths = sorted({longest, 64, 96, 128, 192, 256})
        return {n: replace(self, length=n if every else f"{n}..{n}") for n in lengths if n >= longest}

    def shape(self) -> TaskShape:
        order = Tokens(len(elements(self.group)))
        return TaskShape(inputs=order, outputs=order, length=self.lengths[1])

    def sample(self, batch: int, rng: torch.Generator) -> Batch:
        shortest, longest = self.lengths
        size, device = (batch, longest), rng.device
        if self.tokens == "generators":
            inputs = generators(self.group, device)[torch.randint(2, size, generator=rng, device=device)]
            products = self._products(inputs)
        else:
            # Uniform independent tokens have uniform independent products, and the other way round: drawing the
            # products needs no scan over time, since x_t = (x_1 ... x_{t-1})^-1 (x_1 ... x_t).
            products = torch.randint(len(elements(self.group)), size, generator=rng, device=device)
            inputs = products.clone()
            inputs[:, 1:] = division(self.group, device)[products[:, :-1], products[:, 1:]]
        if isinstance(self.length, int):
            return Batch(inputs=inputs, targets=products, positions=torch.arange(longest, device=device).expand(size))
        end = torch.randint(shortest - 1, longest, (batch, 1), generator=rng, device=device)
        return Batch(inputs=inputs, targets=products.gather(1, end), positions=end)

    def oracle(self, batch: Batch) -> Int[Tensor, "batch answers"]:
        """Return the product."""
        product = self._products(batch.inputs)
        return product if batch.positions is None else product.gather(1, batch.positions)

    def _products(self, inputs: Int[Tensor, "batch time"]) -> Int[Tensor, "batch time"]:
        """Return all prefix products, by doubling: after step s an entry is the product of the last 2^s tokens."""
        table, product = multiplication(self.group, inputs.device), inputs
        reach = 1
        while reach < product.shape[1]:
            joined = table[product[:, :-reach], product[:, reach:]]
            product = torch.cat((product[:, :reach], joined), dim=1)
            reach *= 2
        return product


@cache
def elements(group: Group) -> tuple[Element, ...]:
    """Return the group's permutations in lexicographic order: a token is an index into this list."""
    every = permutations(range(PERMUTED[group]))
    return tuple(p for p in every if group != "a5" or _is_even(p))


# Cached per device: a captured CUDA graph cannot copy a table from the host.
@cache
def generators(group: Group, device: torch.device) -> Int[Tensor, "2"]:
    """Return the tokens of the group's generators."""
    return torch.tensor([elements(group).index(each) for each in GENERATORS[group]], device=device)


@cache
def multiplication(group: Group, device: torch.device) -> Int[Tensor, "order order"]:
    """Return the table whose entry (p, q) is the token of p q."""
    every = elements(group)
    token = {element: place for place, element in enumerate(every)}
    rows = [[token[tuple(p[i] for i in q)] for q in every] for p in every]
    return torch.tensor(rows, device=device)


@cache
def division(group: Group, device: torch.device) -> Int[Tensor, "order order"]:
    """Return the table whose entry (p, r) is the token of p^-1 r, that is the q with p q = r."""
    return multiplication(group, device).argsort(dim=1)


def _is_even(p: Element) -> bool:
    return sum(p[i] > p[j] for j in range(len(p)) for i in range(j)) % 2 == 0
