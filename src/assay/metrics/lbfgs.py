"""Many smooth convex problems are minimised at once, each with its own step size and stopping point.

L-BFGS (Nocedal 1980) with a line search by backtracking (Armijo). Every pass evaluates each unfinished problem at one
trial point: those it suits move there and turn to a new direction, the others try a shorter step along the old one. So
no problem waits for the line search of another, the host waits for the device once a pass, and finished problems are
left out. The direction is in closed form (Byrd, Nocedal & Schnabel 1994, eq. 3.1): a few products of small matrices,
where the usual recursion has eight small operations for each remembered pair.
"""

from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

PAIRS = 10
"""Steps in L-BFGS's memory."""
DECREASE = 1e-4
"""Armijo's constant: the share of the decrease the slope predicts that a step has to reach."""
STEEP, CHANGE = 1e-5, 1e-9
"""A problem ends once no entry of its gradient is above STEEP, or its value or point change by at most CHANGE."""

Points = Float[Tensor, "problems size"]
Numbers = Float[Tensor, " problems"]
Pairs = Float[Tensor, "problems pairs size"]


@runtime_checkable
class Objective(Protocol):
    def __call__(self, x: Points) -> tuple[Numbers, Points]:
        """Return values and gradients."""

    def only(self, places: Int[Tensor, " some"]) -> "Objective":
        """Return the objective of some of the problems."""


class _State(NamedTuple):
    """The unfinished problems; moves and turns are the last steps and what they changed in the gradient, the newest
    last, zeros where there is none."""

    place: Int[Tensor, " problems"]
    x: Points
    value: Numbers
    gradient: Points
    step: Numbers
    moves: Pairs
    turns: Pairs

    def only(self, places: Int[Tensor, " some"]) -> "_State":
        return _State(*(part[places] for part in self))


@torch.no_grad()
def minimise(objective: Objective, start: Points, evaluations: int) -> Points:
    """Return the minima, or the points reached after so many evaluations."""
    found = start.clone()
    value, gradient = objective(start)
    none = start.new_zeros(len(start), PAIRS, start.shape[1])
    place = torch.arange(len(start), device=start.device)
    state = _State(place, start, value, gradient, torch.ones_like(value), none, none)
    ended = _largest(gradient) <= STEEP
    for _ in range(1, evaluations):
        left = (~ended).nonzero()[:, 0]  # the one place where the host waits
        if len(left) < len(ended):
            found[state.place] = state.x
            state = state.only(left)
            objective = objective.only(left)
        if not len(left):
            return found
        state, ended = _tried(objective, state)
    found[state.place] = state.x
    return found


def _tried(objective: Objective, state: _State) -> tuple[_State, Bool[Tensor, " problems"]]:
    """Take one pass; return the state after it, and which problems ended."""
    step, column = state.step, state.step[:, None]
    direction = -_curved(state.moves, state.turns, state.gradient)
    slope = (direction * state.gradient).sum(dim=1)
    move = column * direction
    x = state.x + move
    value, gradient = objective(x)
    good = value <= state.value + DECREASE * step * slope
    turn = gradient - state.gradient
    # Without a rise of the slope along the step, a pair would make the next direction point uphill.
    pair = good & ((move * turn).sum(dim=1) > 1e-10 * turn.square().sum(dim=1))
    moves, turns = (
        torch.where(pair[:, None, None], torch.cat([old[:, 1:], new[:, None]], dim=1), old)
        for old, new in ((state.moves, move), (state.turns, turn))
    )
    # The minimum of the parabola through both values.
    shorter = step * (-slope * step / (2 * (value - state.value - slope * step))).clamp(0.1, 0.5)
    still = ((value - state.value).abs() <= CHANGE) & good | (_largest(move) <= CHANGE)
    after = _State(
        state.place,
        torch.where(good[:, None], x, state.x),
        torch.where(good, value, state.value),
        torch.where(good[:, None], gradient, state.gradient),
        torch.where(good, torch.ones_like(step), shorter),
        moves,
        turns,
    )
    return after, (_largest(after.gradient) <= STEEP) | still


def _curved(moves: Pairs, turns: Pairs, gradient: Points) -> Points:
    """Return the gradient times the pairs' inverse Hessian; without a pair, the gradient at length 1."""
    met, turned = moves @ turns.mT, turns @ turns.mT
    along = met.diagonal(dim1=1, dim2=2)[:, :, None]
    newest, length = along[:, -1], turned[:, -1, -1:]
    first = 1 / gradient.abs().sum(dim=1, keepdim=True).clamp_min(1)
    scale = torch.where(length > 0, newest / length, first)[:, :, None]
    unused = torch.diag_embed((along[:, :, 0] == 0).to(met))
    upper, column = met.triu() + unused, gradient[:, :, None]
    a = torch.linalg.solve_triangular(upper, moves @ column, upper=True)
    middle = along * a + scale * (turned @ a - turns @ column)
    b = torch.linalg.solve_triangular(upper.mT, middle, upper=False)
    return (scale * (column - turns.mT @ a) + moves.mT @ b)[:, :, 0]


def _largest(x: Points) -> Numbers:
    return x.abs().amax(dim=1)
