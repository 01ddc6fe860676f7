"""The time left of a plan: by the pace of runs under way, and by what runs like the others have taken."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace

import pytest

from assay.core.drive import Event
from assay.core.run import Record, Run
from assay.core.study import Progress
from assay.report import time_left
from assay.report.time_left import Left, OfPlan

At = Callable[[float, Event], Left | None]


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
        def at(seconds: float, event: Event) -> Left | None:
            nonlocal now
            now = seconds
            return plan(event)

        return at

    return of


def told(text: str) -> Left:
    """`990 s` or, where something is not known, `> 990 s`."""
    return Left(float(text.removeprefix("> ").split()[0]), all_known=not text.startswith(">"))


def near(found: Left | None, text: str) -> bool:
    wanted = told(text)
    return found is not None and found == Left(pytest.approx(wanted.seconds, rel=0.01), wanted.all_known)


def test_a_reference_that_is_scored_in_a_second_says_nothing_of_trainings(clock: Callable[[OfPlan], At]) -> None:
    trainings = [trained(seed) for seed in range(10)]
    left = clock(OfPlan([*trainings, reference(0), reference(1)], lambda: 2))
    assert left(0.0, at_work(trainings[0], 0)) is None and left(0.0, at_work(trainings[1], 0)) is None
    assert near(left(1.5, stored(reference(0), 1.0)), "> 1 s"), "the other reference"
    left(10.0, at_work(trainings[0], 10))
    assert near(left(12.0, at_work(trainings[1], 12)), "4990 s"), "nine and a half more of 1000 s, two at once"


def test_no_plan_ends_sooner_than_its_longest_run(clock: Callable[[OfPlan], At]) -> None:
    first, last = trained(0), trained(1)
    left = clock(OfPlan([first, last], lambda: 2))
    left(0.0, at_work(last, 0))
    left(0.0, at_work(first, 999))
    assert near(left(5.0, stored(first, 5.0)), "5 s"), "like the other, as long as nothing else is known"
    assert near(left(10.0, at_work(last, 10)), "990 s")


def test_a_run_that_waits_for_a_worker_is_added_to_the_one_before_it(clock: Callable[[OfPlan], At]) -> None:
    runs = [trained(seed) for seed in range(5)]
    left = clock(OfPlan(runs, lambda: 4))
    for run in runs[:4]:
        left(0.0, at_work(run, 0))
    for place, run in enumerate(runs[:4]):
        found = left(100.0 + 2 * place, at_work(run, 100 + 2 * place))
    assert near(found, "1894 s"), "894 s of the four, 1000 s of the fifth"


def test_what_runs_cost_before_is_known_from_the_start(clock: Callable[[OfPlan], At]) -> None:
    before = [Record(trained(9), "done", {}, cost={"seconds": 30.0})]
    left = clock(OfPlan([trained(0), trained(1), reference(0)], lambda: 1, lambda: before))
    assert near(left(0.0, at_work(trained(0), 0)), "90 s"), "a reference, no more than a training"
    assert near(left(2.0, stored(reference(0), 1.0)), "60 s")


def test_runs_that_are_trained_together_share_their_time(clock: Callable[[OfPlan], At]) -> None:
    """Two programs of four models each, on one GPU: the second takes as long as the first."""
    banks = [trained(seed) for seed in range(8)]
    left = clock(OfPlan(banks, lambda: 1))
    for run in banks[:4]:
        left(0.0, at_work(run, 0))
    found = [left(100.0 + 2 * place, at_work(run, 500)) for place, run in enumerate(banks[:4])]
    assert found[-1] and found[-1].seconds == pytest.approx(100 + 200, rel=0.05)
    for run in banks[:4]:
        left(200.0, stored(run, 50.0))
    assert near(left(202.0, at_work(banks[4], 0)), "200 s")


def test_nobody_knows_how_long_scores_take_before_a_run_is_over(clock: Callable[[OfPlan], At]) -> None:
    first, last, failing = trained(0), trained(1), trained(2)
    left = clock(OfPlan([first, last, failing], lambda: 3))
    for run in (first, last):
        left(0.0, at_work(run, 1))
        left(10.0, at_work(run, 999))
        assert left(12.0, at_work(run, 1000)) is None
    failed = Event("stored", failing, record=Record(failing, "failed", {}, error="ValueError"))
    assert left(14.0, failed) is None, "which took the time that it took to fail"
    assert near(left(16.0, stored(first, 14.0)), "0 s")


def test_a_run_that_starts_over_has_no_pace_yet(clock: Callable[[OfPlan], At]) -> None:
    run = trained(0)
    left = clock(OfPlan([run], lambda: 1))
    left(0.0, at_work(run, 0))
    assert near(left(100.0, at_work(run, 900)), "11.1 s")
    assert left(120.0, at_work(run, 0)) is None
    assert near(left(130.0, at_work(run, 100)), "90 s")


@pytest.mark.parametrize("event", [at_work(trained(0), 1), stored(trained(0), 1.0)], ids=["progress", "stored"])
def test_a_long_plan_is_looked_at_rarely(event: Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most a twentieth of the time goes into it."""
    now, asked = 0.0, 0

    def slow(runs: Sequence[Run], _: object) -> list[float]:
        nonlocal now, asked
        now, asked = now + 2.0, asked + 1
        return [60.0 for _ in runs]

    monkeypatch.setattr(time_left, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(time_left, "estimates", slow)
    plan = OfPlan([trained(seed) for seed in range(9)], lambda: 1)
    while now < 400:
        plan(event)
        now += 0.1
    assert 8 <= asked <= 10
