"""State tracking asks for the running product of group elements (Merrill et al. 2024; Grazzi et al. 2024).

    parity   1 1 0 1 0  ->  1 0 0 1 1         the number of ones so far, modulo 2
    s3       a b c ...  ->  a, ab, abc, ...   all 6 permutations of three things; a5: the 60 even ones of five

A token is an element of the group, by its place in the lexicographic list of its permutations, so 0 is the identity;
tokens are uniform and independent. The target at every position is the element x_1 x_2 ... x_t, where
(p q)(i) = p(q(i)). Models are trained at `length` and scored at up to 256 tokens.

Differs from the paper (Grazzi et al. 2024): models are trained at one length, 40, where the paper's parity has lengths
up to 40; tests go to 256 tokens in both. Every position is scored.
"""

from dataclasses import dataclass, replace
from functools import cache
from itertools import permutations
from typing import ClassVar, Literal, assert_never

import torch
from jaxtyping import Int
from torch import Tensor

from assay.tasks import tasks
from assay.tasks.base import Batch, Task, TaskShape, Tokens

Group = Literal["parity", "s3", "a5"]
Element = tuple[int, ...]


@tasks.register("state_tracking")
@dataclass(frozen=True, kw_only=True)
class StateTracking(Task):
    """Say, after every token, the product of the group elements so far."""

    loss: ClassVar[Literal["cross_entropy", "mse", "bce"]] = "cross_entropy"

    group: Group = "parity"
    length: int = 40

    def __post_init__(self) -> None:
        self.require_positive("length")

    def longer(self) -> dict[int, Task]:
        """Return lengths up to 256 tokens, as the prior art tests models that were trained at 40."""
        lengths = sorted({self.length, 64, 96, 128, 192, 256})
        return {length: replace(self, length=length) for length in lengths if length >= self.length}

    def shape(self) -> TaskShape:
        order = Tokens(len(elements(self.group)))
        return TaskShape(inputs=order, outputs=order, length=self.length)

    def sample(self, batch: int, rng: torch.Generator) -> Batch:
        # Uniform independent tokens have uniform independent products, and the other way round: drawing the products
        # needs no scan over time, since x_t = (x_1 ... x_{t-1})^-1 (x_1 ... x_t).
        size = (batch, self.length)
        products = torch.randint(self.shape().outputs.vocab, size, generator=rng, device=rng.device)  # type: ignore[union-attr]
        inputs = products.clone()
        inputs[:, 1:] = division(self.group, rng.device)[products[:, :-1], products[:, 1:]]
        positions = torch.arange(self.length, device=rng.device).expand(size)
        return Batch(inputs=inputs, targets=products, positions=positions)

    def oracle(self, batch: Batch) -> Int[Tensor, "batch time"]:
        """Return the product, by doubling: after step s an entry is the product of the last 2^s tokens."""
        table, product = multiplication(self.group, batch.inputs.device), batch.inputs
        reach = 1
        while reach < product.shape[1]:
            joined = table[product[:, :-reach], product[:, reach:]]
            product = torch.cat((product[:, :reach], joined), dim=1)
            reach *= 2
        return product


@cache
def elements(group: Group) -> tuple[Element, ...]:
    """Return the group's permutations in lexicographic order: a token is an index into this list."""
    match group:
        case "parity":
            return tuple(permutations(range(2)))
        case "s3":
            return tuple(permutations(range(3)))
        case "a5":
            return tuple(p for p in permutations(range(5)) if _is_even(p))
        case other:
            assert_never(other)


# Cached per device: a captured CUDA graph cannot copy a table from the host.
@cache
def multiplication(group: Group, device: torch.device) -> Int[Tensor, "order order"]:
    """Return the table whose entry (p, q) is the token of p q."""
    every = elements(group)
    rows = [[every.index(tuple(p[i] for i in q)) for q in every] for p in every]
    return torch.tensor(rows, device=device)


@cache
def division(group: Group, device: torch.device) -> Int[Tensor, "order order"]:
    """Return the table whose entry (p, r) is the token of p^-1 r, that is the q with p q = r."""
    return multiplication(group, device).argsort(dim=1)


def _is_even(p: Element) -> bool:
    return sum(p[i] > p[j] for j in range(len(p)) for i in range(j)) % 2 == 0
