"""Many minima at once: each that of its own problem, none at the expense of another."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from assay.metrics import lbfgs
from assay.metrics.lbfgs import minimise
from assay.nn.random import stream

CONDITIONS = (1.0, 30.0, 3000.0)


@dataclass
class Problems:
    """Any function of x, one row a problem; notes how many problems each pass evaluates."""

    function: Callable[[Tensor, Tensor], Tensor]
    data: Tensor
    sizes: list[int] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            x = x.detach().clone().requires_grad_(True)
            values = self.function(x, self.data)
            (gradient,) = torch.autograd.grad(values.sum(), x)
        self.sizes.append(len(x))
        self.values.append(values.detach())
        return values.detach(), gradient

    def only(self, places: Tensor) -> "Problems":
        return Problems(self.function, self.data[places], self.sizes, self.values)


def quadratic(x: Tensor, matrix: Tensor) -> Tensor:
    """1/2 (x - 1)' A (x - 1)"""
    return (((x - 1)[:, None] @ matrix @ (x - 1)[:, :, None]) / 2)[:, 0, 0]


def quadratics() -> Problems:
    turn = torch.linalg.qr(torch.randn(3, 8, 8, generator=stream(0, "turn"), dtype=torch.float64))[0]
    spread = torch.stack([torch.logspace(0, math.log10(c), 8, dtype=torch.float64) for c in CONDITIONS])
    return Problems(quadratic, turn @ torch.diag_embed(spread) @ turn.mT)


def start() -> Tensor:
    return torch.zeros(3, 8, dtype=torch.float64)


def test_each_problem_ends_at_its_own_minimum() -> None:
    found = minimise(quadratics(), start(), 500)
    torch.testing.assert_close(found, torch.ones_like(found), rtol=0, atol=1e-4)


def test_a_problem_takes_the_path_it_takes_alone() -> None:
    problems = quadratics()
    together = minimise(problems, start(), 500)
    evaluated = []
    for k in range(3):
        alone = quadratics().only(torch.tensor([k]))
        torch.testing.assert_close(minimise(alone, start()[:1], 500), together[k : k + 1], rtol=0, atol=1e-9)
        evaluated.append(len(alone.sizes))
    assert evaluated == sorted(evaluated) and evaluated[0] < evaluated[2], "the cases must differ in what they take"
    assert sum(problems.sizes) == sum(evaluated), "what has ended is left out"


def test_a_problem_that_begins_at_its_minimum_stays_there() -> None:
    problems = quadratics()
    ones = torch.ones_like(start())
    assert torch.equal(minimise(problems, ones, 500), ones) and problems.sizes == [3]


def test_the_number_of_evaluations_is_kept_to() -> None:
    problems = quadratics()
    found = minimise(problems, start(), 6)
    assert len(problems.sizes) == 6
    assert float(quadratic(found, quadratics().data)[2]) < float(quadratic(start(), quadratics().data)[2])


def test_a_step_that_is_too_long_is_shortened_and_no_value_rises() -> None:
    """sqrt(1 + x^2), far out: the slope says nothing of how near the minimum is, the curvature far too much."""
    problems = Problems(
        lambda x, scale: (1 + (scale * x).square()).sqrt().sum(dim=1), torch.tensor([[1.0], [20.0]]).double()
    )
    begin = torch.tensor([[3.0, -2.0], [0.3, 4.0]], dtype=torch.float64)
    found = minimise(problems, begin, 500)
    assert found.abs().max() < 1e-4
    first = torch.stack([value for value in problems.values if len(value) == 2])
    assert (first.diff(dim=0) > 0).any(), "the case must have a step that is refused"
    for few in (3, 5, 8, 12):
        before, after = (
            Problems(problems.function, problems.data)(minimise(problems, begin, n))[0] for n in (few, few + 1)
        )
        assert (after <= before).all()


@pytest.mark.parametrize("pairs", [0, 1, 4, lbfgs.PAIRS])
def test_the_direction_is_that_of_the_recursion(pairs: int) -> None:
    rng = stream(0, "pairs")
    moves = torch.randn(2, lbfgs.PAIRS, 30, generator=rng, dtype=torch.float64)
    bent = torch.rand(2, 1, 30, generator=rng, dtype=torch.float64) + 0.1
    moves[:, : lbfgs.PAIRS - pairs] = 0
    turns, gradient = bent * moves, torch.randn(2, 30, generator=rng, dtype=torch.float64)
    found = lbfgs._curved(moves, turns, gradient)
    for k in range(2):
        q, factors = gradient[k], []
        kept = [(s, y) for s, y in zip(moves[k], turns[k], strict=True) if s.abs().sum() > 0]
        for s, y in reversed(kept):
            factors.append(s @ q / (s @ y))
            q = q - factors[-1] * y
        q = q * (kept[-1][0] @ kept[-1][1] / kept[-1][1].square().sum() if kept else 1 / gradient[k].abs().sum())
        for (s, y), factor in zip(kept, reversed(factors), strict=True):
            q = q + s * (factor - y @ q / (s @ y))
        torch.testing.assert_close(found[k], q, rtol=1e-9, atol=1e-12)


def test_the_host_waits_once_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    problems, waits = quadratics(), list[str]()
    for name in ("item", "tolist", "__float__", "__bool__", "__int__", "cpu", "numpy", "nonzero"):
        real = getattr(torch.Tensor, name)

        def noted(self: Tensor, *words: Any, name: str = name, real: Any = real) -> Any:
            waits.append(name)
            return real(self, *words)

        monkeypatch.setattr(torch.Tensor, name, noted)
    minimise(problems, start(), 500)
    assert waits == ["nonzero"] * len(problems.sizes)
