"""Estimates survival curves where some runs never arrive within the time allowed (Kaplan and Meier 1958).

    S(t) = prod over event times s <= t of (1 - events at s / still waiting at s)

Censored runs count as waiting until their last observation.
"""

import warnings
from collections.abc import Sequence
from typing import NamedTuple

from assay.core.errors import UserError


class Step(NamedTuple):
    """The share `survival` is still waiting from `time` on; bounds are None where there is no interval."""

    time: float
    survival: float
    low: float | None
    high: float | None


def kaplan_meier(arrived: Sequence[float], censored: Sequence[float]) -> list[Step]:
    """A step at 0 and at each time of arrival. The 95 % interval is Greenwood's on the scale of log(-log S), which
    stays between 0 and 1; where S is 1 or 0 it has none."""
    if not arrived and not censored:
        raise UserError("a survival curve needs at least one run.")
    from scipy.stats import CensoredData, ecdf

    curve = ecdf(CensoredData(uncensored=arrived, right=censored)).sf
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # scipy says where there is no interval
        bounds = curve.confidence_interval(method="log-log")
    columns = (curve.quantiles, curve.probabilities, bounds.low.probabilities, bounds.high.probabilities)
    steps = [Step(*step) for step in zip(*(column.tolist() for column in columns), strict=True)]
    inner = [step if 0 < step.survival < 1 else Step(*step[:2], None, None) for step in steps]
    return [Step(0.0, 1.0, None, None), *(step for step in inner if step.time in set(arrived))]
