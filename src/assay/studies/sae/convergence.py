"""When a loss curve counts as converged, as the spec has it, and how it falls against the logarithm of time."""

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

THRESHOLD, WINDOW = 1.0, 5


def convergence_epoch(losses: Sequence[float]) -> int:
    """The first epoch at which the loss has changed by less than 1 per epoch, averaged over 5; the last if none is."""
    changes = [abs(after - before) for before, after in pairwise(losses)]
    for end in range(WINDOW, len(changes) + 1):
        if fmean(changes[end - WINDOW : end]) < THRESHOLD:
            return end + 1
    return len(losses)


def log_slope(losses: Sequence[float]) -> float:
    """d loss / d ln(epoch), least squares over the last two thirds of the epochs."""
    start = len(losses) // 3
    points = [(math.log(epoch), loss) for epoch, loss in enumerate(losses, 1)][start:]
    x, y = fmean(p[0] for p in points), fmean(p[1] for p in points)
    spread = sum((a - x) ** 2 for a, _ in points)
    return sum((a - x) * (b - y) for a, b in points) / spread if spread else 0.0
