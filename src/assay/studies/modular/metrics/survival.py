"""Estimates survival curves where some runs never arrive within the time allowed (Kaplan and Meier 1958).

    S(t) = prod over event times s <= t of (1 - events at s / still waiting at s)

Censored runs count as waiting until their last observation.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from assay.core.errors import UserError


@dataclass(frozen=True)
class Step:
    """The share `survival` is still waiting from `time` on; bounds are None where there is no interval."""

    time: float
    survival: float
    low: float | None
    high: float | None
    waiting: int
    """Runs still waiting just before that time."""


def kaplan_meier(times: Sequence[float], arrived: Sequence[bool], *, level: float = 0.95) -> list[Step]:
    """A step at 0 and at each time of arrival. The interval is Greenwood's on the scale of log(-log S), which stays
    between 0 and 1; where S is 1 or 0 it has none."""
    if not times or len(times) != len(arrived):
        raise UserError(f"{len(times)} times and {len(arrived)} ends: give one of each for every run.")
    from scipy.special import ndtri

    z = float(ndtri((1 + level) / 2))
    steps = [Step(0.0, 1.0, None, None, len(times))]
    survival, spread = 1.0, 0.0
    for time in sorted({t for t, here in zip(times, arrived, strict=True) if here}):
        waiting = sum(t >= time for t in times)
        events = sum(t == time and here for t, here in zip(times, arrived, strict=True))
        survival *= 1 - events / waiting
        if events < waiting:
            spread += events / (waiting * (waiting - events))
        low, high = _bounds(survival, spread, z)
        steps.append(Step(float(time), survival, low, high, waiting))
    return steps


def _bounds(survival: float, spread: float, z: float) -> tuple[float | None, float | None]:
    if not 0 < survival < 1:
        return None, None
    half = z * math.sqrt(spread) / abs(math.log(survival))
    return survival ** math.exp(half), survival ** math.exp(-half)
