"""Kaplan-Meier: the textbook's numbers, and 1 - the distribution where nobody is lost."""

import numpy as np
import pytest

from assay.metrics.intervals import wilson
from assay.studies.modular.figures import kaplan_meier


def test_without_censoring_it_is_one_minus_the_distribution() -> None:
    times = [3.0, 1.0, 4.0, 1.0, 5.0]
    steps = kaplan_meier(times, [])
    assert [(s["epoch"], s["y"]) for s in steps] == [
        (t, pytest.approx(np.mean([x > t for x in times]))) for t in (0, 1, 3, 4, 5)
    ]


def test_remission_times_of_freireich_1963() -> None:
    """The 6-MP group, the example of every textbook: 21 patients, 9 relapses; S and Greenwood's variance by hand."""
    times = [6, 6, 6, 6, 7, 9, 10, 10, 11, 13, 16, 17, 19, 20, 22, 23, 25, 32, 32, 34, 35]
    relapsed = [1, 1, 1, 0, 1, 0, 1, 0, 0, 1, 1, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0]
    ends = list(zip(map(float, times), relapsed, strict=True))
    steps = kaplan_meier([t for t, here in ends if here], [t for t, here in ends if not here])
    found = {s["epoch"]: round(s["y"], 4) for s in steps[1:]}
    assert found == {6: 0.8571, 7: 0.8067, 10: 0.7529, 13: 0.6902, 16: 0.6275, 22: 0.5378, 23: 0.4482}
    last = steps[-1]
    assert (round(last["low"], 3), round(last["high"], 3)) == (0.188, 0.680)


def test_those_who_never_arrive_keep_the_curve_up() -> None:
    steps = kaplan_meier([10.0], [50.0, 50.0, 50.0])
    assert [s["y"] for s in steps] == [1, 0.75] and 0 < steps[1]["low"] < 0.75 < steps[1]["high"] < 1
    (only,) = kaplan_meier([], [5.0])
    assert only["y"] == 1 and only["high"] == 1


def test_where_none_or_all_arrived_the_interval_is_that_of_the_share() -> None:
    start, *_, end = kaplan_meier([3.0, 1.0, 4.0, 1.0, 5.0], [])
    assert (start["low"], start["high"]) == (wilson(5, 5).low, 1) and (end["low"], end["high"]) == (
        0,
        wilson(0, 5).high,
    )
    (never,) = kaplan_meier([], [50.0] * 4)
    assert (never["low"], never["high"]) == (wilson(4, 4).low, 1)
    assert kaplan_meier([10.0], [5.0, 50.0, 50.0])[0]["low"] == wilson(3, 3).low, "one is lost before the first arrival"
