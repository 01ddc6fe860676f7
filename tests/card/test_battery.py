"""The battery asks rates by successive halving, scores the winner with fresh seeds, and doubles what fell short."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from assay.api import Execution
from assay.card.battery import Bounds, Records, Trial, answer, battery, wanted
from assay.card.judge import line
from assay.card.protocol import SCREENING_SEED, TIERS
from assay.card.question import Question, Tier
from assay.card.running import Runner
from assay.card.verdict import parts_of
from assay.core.run import Numerics, Record, Run

QUESTION = Question("recall", "recalls", "mqar", steps=300, rates=(1e-3, 1e-2, 1e-1))
TIER = Tier("toy", "toy", (0, 1), (QUESTION,))
Law = Callable[[Trial], float]


def recorded(trial: Trial, accuracy: float) -> Record:
    run = Run("icl", {"model": trial.mixer, "lr": trial.rate, "steps": trial.steps}, trial.seed, {}, Numerics())
    metrics = {"accuracy": accuracy, "curve": [{"accuracy": accuracy}], "references": {"oracle": {"accuracy": 1.0}}}
    return Record(run, "done" if accuracy >= 0 else "diverged", metrics)


def computed(law: Law, asked: list[list[Trial]]) -> Callable[[Sequence[Trial]], Records]:
    def compute(trials: Sequence[Trial]) -> Records:
        asked.append([trial for trial in trials if trial.mixer])
        return {trial: recorded(trial, law(trial)) for trial in trials}

    return compute


def rounds(law: Law) -> tuple[list[list[Trial]], Records]:
    asked: list[list[Trial]] = []
    return asked, battery(TIER, {"recall": ["mine"]}, computed(law, asked))


def test_the_winner_of_the_screening_is_scored_with_seeds_it_was_not_chosen_by() -> None:
    asked, found = rounds(lambda trial: 0.95 if trial.rate == 1e-2 else 0.2)
    assert [len(each) for each in asked] == [3, 2, 2]
    assert {trial.steps for trial in asked[0]} == {100} and {trial.seed for trial in asked[0]} == {SCREENING_SEED}
    assert {(trial.rate, trial.seed, trial.steps) for trial in asked[2]} == {(1e-2, 0, 300), (1e-2, 1, 300)}
    result = answer(TIER, QUESTION, "mine", found)
    assert result.reached and result.rate == 1e-2 and not result.at_edge and not result.longer
    assert result.window == 1


def test_a_rate_at_the_edge_is_followed_by_one_beyond_once() -> None:
    asked, found = rounds(lambda trial: min(0.95, 0.5 + 40 * trial.rate**2))  # the higher the better, without end
    assert [trial.rate for trial in asked[2]] == [1.0]
    result = answer(TIER, QUESTION, "mine", found)
    assert result.at_edge, "still at the edge of all that were tried"


def test_a_screening_that_told_nothing_lets_every_rate_train_in_full() -> None:
    """A mixer that leaves its plateau late, and only at one rate."""
    asked, found = rounds(lambda trial: 0.97 if trial.steps >= 300 and trial.rate == 1e-1 else 0.15)
    assert [len(each) for each in asked[:2]] == [3, 3]
    result = answer(TIER, QUESTION, "mine", found)
    assert result.rate == 1e-1 and result.reached


def test_nothing_is_tried_beyond_a_grid_on_which_nothing_was_learned() -> None:
    asked, _ = rounds(lambda trial: 0.02 + 0.01 * (trial.rate == 1e-1))
    assert all(trial.rate <= 1e-1 for each in asked for trial in each)


def test_what_falls_short_is_trained_twice_as_long() -> None:
    asked, found = rounds(lambda trial: (0.5 if trial.steps == 600 else 0.3) if trial.rate == 1e-2 else 0.2)
    assert {trial.steps for trial in asked[-1]} == {600} and len(asked) == 4
    result = answer(TIER, QUESTION, "mine", found)
    assert set(result.longer.values()) == {0.5}


def test_a_rate_that_diverges_hides_no_plateau() -> None:
    """A mixer that leaves its plateau late at one rate, where another diverges: every rate is trained in full."""

    def law(trial: Trial) -> float:
        if trial.rate == 1e-1:
            return -1.0
        return 0.97 if trial.steps >= 300 and trial.rate == 1e-2 else 0.15

    asked, found = rounds(law)
    assert [len(each) for each in asked[:2]] == [3, 3]
    assert answer(TIER, QUESTION, "mine", found).reached


def test_rates_that_come_out_alike_have_no_edge_and_a_solved_question_none() -> None:
    for accuracy in (0.2, 0.995):
        _, found = rounds(lambda trial, level=accuracy: level + 0.001 * (trial.rate == 1e-1))  # type: ignore[misc]
        assert not answer(TIER, QUESTION, "mine", found).at_edge


def test_rates_that_rise_to_the_edge_have_one_also_if_they_lie_close() -> None:
    """Within SLACK of each other, so that no rate beyond is tried, but the last is the best by more than noise."""
    _, found = rounds(lambda trial: 0.6 + 0.04 * math.log10(max(trial.rate, 1e-3) / 1e-3))
    result = answer(TIER, QUESTION, "mine", found)
    assert result.rate == max(QUESTION.rates) and result.at_edge and not result.comparable


def test_a_rate_that_did_better_in_a_third_of_the_steps_leaves_the_recipe_open() -> None:
    """The screening seed learns at one rate in the first round alone: what is chosen instead is not compared."""

    def law(trial: Trial) -> float:
        return 0.42 if trial.rate == 1e-2 and trial.steps == 100 else 0.13 + 0.001 * (trial.rate == 1e-1)

    _, found = rounds(law)
    result = answer(TIER, QUESTION, "mine", found)
    assert result.rate == 1e-1 and not result.comparable
    recipe, *_ = parts_of(result)
    assert not recipe.holds and recipe.said.startswith("a rate of 0.01 validates at 0.42 after a third of the steps")
    assert "no better than a guess" not in line(result, [], Bounds(0.15, 1.0)).verdict


def test_a_rate_that_diverges_is_never_chosen() -> None:
    _, found = rounds(lambda trial: -1.0 if trial.rate == 1e-1 else 0.93)
    result = answer(TIER, QUESTION, "mine", found)
    assert result.rate < 1e-1


def test_where_every_rate_diverges_no_more_is_trained_and_there_is_no_score() -> None:
    asked, found = rounds(lambda trial: -1.0)
    assert [len(each) for each in asked] == [3]
    result = answer(TIER, QUESTION, "mine", found)
    assert result.lost == "diverged" and not result.comparable and result.diverged == 3 and not result.failed
    assert result.window == 0 and not any(result.scores.values())
    judged = line(result, [], Bounds(floor=0.1, ceiling=1.0))
    assert judged.verdict == "recall: no run gave a number, at rates of 0.001 to 0.1: they diverged"
    assert [part.holds for part in judged.parts if part.asked] == [False, False, False]


@pytest.mark.parametrize(
    ("law", "trained"),
    [
        (lambda trial: 0.5 if trial.steps == 100 else -1.0, [3, 3]),
        (lambda trial: 0.5 if trial.seed == SCREENING_SEED else -1.0, [3, 3, 2]),
    ],
    ids=["in full", "with fresh seeds"],
)
def test_what_diverges_in_a_later_round_has_no_score_either(law: Law, trained: list[int]) -> None:
    asked, found = rounds(law)
    assert [len(each) for each in asked] == trained
    assert answer(TIER, QUESTION, "mine", found).lost == "diverged"


def test_one_failure_among_runs_that_diverged_is_named() -> None:
    _, found = rounds(lambda trial: -1.0)
    first = next(trial for trial in found if trial.mixer)
    found = {**found, first: replace(found[first], status="failed", error="Traceback\nValueError: no")}
    result = answer(TIER, QUESTION, "mine", found)
    assert result.lost == "diverged" and result.failed == "ValueError: no"
    every = {trial: replace(each, status="failed", error="no") for trial, each in found.items()}
    assert answer(TIER, QUESTION, "mine", every).lost == "failed"


def test_an_interrupted_battery_asks_only_for_what_is_missing() -> None:
    _, found = rounds(lambda trial: 0.95)
    lost = next(trial for trial in found if trial.mixer and trial.seed == 1)
    kept = {trial: record for trial, record in found.items() if trial != lost}
    assert wanted(TIER, QUESTION, "mine", kept) == [lost]
    assert wanted(TIER, QUESTION, "mine", found) == []


@pytest.mark.parametrize(
    "change",
    [{"batch": 11}, {"task": "regression"}, {"every": 7}, {"eval_size": 11}, {"curriculum": 0.5}, {"weight_decay": 0.7},
     {"model": {"model_dim": 8}}, {"lower": True}],
)  # fmt: skip
def test_options_of_a_run_name_everything_that_decides_it(change: dict[str, Any]) -> None:
    given = QUESTION.options("gru", rate=1e-2, seed=3, steps=7)
    assert replace(QUESTION, **change).options("gru", rate=1e-2, seed=3, steps=7) != given
    assert given["seeds"] == [3] and given["train"]["max_steps"] == 7 and given["optimizer"]["lr"] == 1e-2


@pytest.mark.parametrize("name", TIERS)
def test_every_question_of_a_tier_is_a_run_of_icl(name: str, tmp_path: Path) -> None:
    tier = TIERS[name]
    runner = Runner(tier, Execution(out=tmp_path), compute=lambda session: [])
    for question in tier.questions:
        trials = wanted(tier, question, "delta_net", {})
        runs = [runner.run_of(trial) for trial in trials]
        assert [run.options["optimizer"]["lr"] for run in runs] == list(question.rates)
        assert runner.run_of(Trial(question.name, seed=1)).options["model"] is None
        assert len({run.id for run in runs}) == len(runs)


def test_a_seed_that_never_opens_the_second_size_is_held_back() -> None:
    question = replace(TIER.question("recall"), curriculum=0.9)
    tier = replace(TIER, questions=(question,))

    def compute(reached: float) -> Callable[[Sequence[Trial]], Records]:
        def of(trials: Sequence[Trial]) -> Records:
            told = {trial: recorded(trial, 0.2) for trial in trials}
            curve = [{"accuracy": 0.2, "smallest": 0.3}, {"accuracy": 0.2, "smallest": reached}]
            return {trial: replace(each, metrics={**each.metrics, "curve": curve}) for trial, each in told.items()}

        return of

    for reached, held in ((0.89, len(tier.seeds)), (0.9, 0)):
        found = battery(tier, {"recall": ["mine"]}, compute(reached))
        assert answer(tier, question, "mine", found).held_back == held
