"""The time left of a plan: by the pace of runs under way, and by what runs like the others have taken."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from assay.core.drive import Event
from assay.core.run import Record, Run
from assay.core.study import Progress
from assay.report import time_left
from assay.report.time_left import OfPlan

At = Callable[[float, Event], float | None]


def trained(seed: int) -> Run:
    return Run("toy", {"model": {"name": "gru"}, "steps": 1000}, seed, {"gru": ""})


def reference(seed: int) -> Run:
    return Run("toy", {"model": None, "steps": 1000}, seed, {})


def stored(run: Run, seconds: float) -> Event:
    return Event("stored", run, record=Record(run, "done", {}, cost={"seconds": seconds}))


def at_work(run: Run, done: int, total: int = 1000) -> Event:
    return Event("progress", run, progress=Progress(run, done, total))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[OfPlan], At]:
    now = 0.0
    monkeypatch.setattr(time_left, "time", SimpleNamespace(monotonic=lambda: now))

    def of(plan: OfPlan) -> At:
        def at(seconds: float, event: Event) -> float | None:
            nonlocal now
            now = seconds
            return plan(event)

        return at

    return of


def test_a_reference_that_is_scored_in_a_second_says_nothing_of_trainings(clock: Callable[[OfPlan], At]) -> None:
    trainings = [trained(seed) for seed in range(10)]
    left = clock(OfPlan([*trainings, reference(0), reference(1)], lambda: 2))
    assert left(0.0, at_work(trainings[0], 0)) is None and left(0.5, at_work(trainings[1], 0)) is None
    assert left(1.0, stored(reference(0), 1.0)) is None
    left(10.0, at_work(trainings[0], 10))
    of_training = 10 / 0.01
    whole = left(10.5, at_work(trainings[1], 10))
    assert whole == pytest.approx((10 * of_training - 20 + 1.0) / 2, rel=0.01), "nine and a half more, two at once"


def test_no_plan_ends_sooner_than_its_longest_run(clock: Callable[[OfPlan], At]) -> None:
    first, last = trained(0), trained(1)
    left = clock(OfPlan([first, last], lambda: 2))
    left(0.0, at_work(last, 0))
    left(0.0, at_work(first, 999))
    assert left(5.0, stored(first, 5.0)) == pytest.approx(5.0), "like the other, as long as nothing else is known"
    assert left(10.0, at_work(last, 10)) == pytest.approx(990.0)


def test_runs_that_are_trained_together_share_their_time(clock: Callable[[OfPlan], At]) -> None:
    """Two programs of four models each, on one GPU: the second takes as long as the first."""
    banks = [trained(seed) for seed in range(8)]
    left = clock(OfPlan(banks, lambda: 1))
    for run in banks[:4]:
        left(0.0, at_work(run, 0))
    found = [left(100.0 + place, at_work(run, 500)) for place, run in enumerate(banks[:4])]
    assert found[-1] == pytest.approx(100 + 200, rel=0.05)
    for run in banks[:4]:
        last = left(200.0, stored(run, 50.0))
    assert last == pytest.approx(200.0)


def test_nobody_knows_how_long_scores_take_before_a_run_is_over(clock: Callable[[OfPlan], At]) -> None:
    first, last = trained(0), trained(1)
    left = clock(OfPlan([first, last], lambda: 2))
    for run in (first, last):
        left(0.0, at_work(run, 1))
        left(10.0, at_work(run, 999))
        assert left(12.0, at_work(run, 1000)) is None
    assert left(14.0, stored(first, 14.0)) == 0.0


def test_a_long_plan_is_looked_at_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most a twentieth of the time goes into it."""
    now, asked = 0.0, 0

    def slow(*_: object, **__: object) -> float:
        nonlocal now, asked
        now, asked = now + 2.0, asked + 1
        return 60.0

    monkeypatch.setattr(time_left, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(time_left, "estimate", slow)
    plan = OfPlan([trained(seed) for seed in range(9)], lambda: 1)
    while now < 400:
        plan(at_work(trained(0), 1))
        now += 0.1
    assert 8 <= asked <= 10
