"""A certificate: the search that widens by itself, what doubled training may move, and how many seeds tell."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from assay.core.errors import UserError
from assay.core.run import Record, Run
from assay.metrics.intervals import Interval, student_t
from assay.report.certificate import Finding, enough, examined, steady
from assay.report.claims import Certificate, Check, Claim, Judged, identity, judge, seeds_needed
from assay.report.recipes import Keep, Look, widened

SCORE = Check(what="score", metric="score", at_least=0.9)
CLAIM = Claim(
    claim="It cannot be learnt.",
    source="nobody",
    study="planted",
    options={"lr": 0.01, "steps": 100},
    checks=(SCORE,),
    certificate=Certificate(
        about="what can be learnt",
        metric="validation",
        tried={"lr": (0.003, 0.01, 0.03)},
        longer={"steps": 200},
        number=SCORE,
    ),
)
Score = Callable[[float, int, int], float]


def at_the_best_rate(records: Sequence[Record]) -> Interval:
    by_rate: dict[float, list[float]] = {}
    for record in records:
        by_rate.setdefault(record.run.options["lr"], []).append(record.metrics["score"])
    return student_t(max(by_rate.values(), key=sum))


CHOOSES = replace(
    CLAIM,
    grid={"lr": (0.003, 0.01, 0.03)},
    checks=(Check(what="score", measure=at_the_best_rate, at_least=0.9),),
    certificate=replace(CLAIM.certificate, number=Check(what="score", measure=at_the_best_rate, at_least=0.9)),
)
"""The claim, if it chooses its rate by itself."""


def looked_at(score: Score, asked: list[Claim]) -> Look:
    """Records of a study whose score is a function of rate, steps and seed."""

    def look(claim: Claim, keep: Keep) -> tuple[Sequence[Run], Mapping[str, Record]]:
        asked.append(claim)
        steps = claim.grid.get("steps", [claim.options["steps"]])[0]
        rates = claim.grid.get("lr", [claim.options["lr"]])
        planned = [Run("planted", {"lr": lr, "steps": steps}, seed, {}) for lr in rates for seed in range(5)]
        runs = [run for run in planned if keep(run)]
        values = {run: score(run.options["lr"], steps, run.seed) for run in runs}
        records = [Record(run, "done", {"score": value, "validation": value}) for run, value in values.items()]
        return runs, {identity(record.run): record for record in records}

    return look


def verdict(score: Score, claim: Claim = CLAIM) -> tuple[Finding, list[Claim]]:
    asked: list[Claim] = []
    return examined("planted", claim, looked_at(score, asked)), asked


def noise(seed: int) -> float:
    return 0.002 * (seed - 2)


def test_models_that_were_trained_too_little_refute_nothing() -> None:
    found, _ = verdict(lambda lr, steps, seed: steps / 400 + noise(seed))
    assert found.checked.word == "not reproduced"
    assert str(found.verdict) == "not converged: says nothing about what can be learnt" and not found.publishable
    assert [part.holds for part in found.parts] == [True, False, True]
    trained, _ = verdict(lambda lr, steps, seed: 0.5 + noise(seed))
    assert trained.verdict.word == "not reproduced" and trained.publishable, (
        "the same, if more training changes nothing"
    )


def test_a_rate_that_is_told_below_another_refutes_nothing() -> None:
    found, _ = verdict(lambda lr, steps, seed: 0.5 + 0.1 * (lr == 0.003) + noise(seed))
    assert (
        found.verdict.word == "not converged"
        and "lr=0.003 is told apart as better than the claim's own" in found.parts[0].said
    )
    assert "(validation 0.6, its own 0.5)" in found.parts[0].said


def test_the_search_goes_on_while_the_best_is_at_an_edge_and_stops_once_it_is_not() -> None:
    found, asked = verdict(lambda lr, steps, seed: 0.7 - 0.1 * abs(np.log10(lr / 0.1)) + noise(seed), CHOOSES)
    assert [list(claim.grid["lr"]) for claim in asked[1:4]] == [
        [0.003, 0.01, 0.03],
        [0.003, 0.01, 0.03, 0.1],
        [0.003, 0.01, 0.03, 0.1, 0.3],
    ]
    assert found.parts[0].holds and "lr=0.1" in found.parts[0].said
    assert list(asked[-1].grid["lr"])[-1] == 0.3 and asked[-1].grid["steps"] == [200], "doubled on the wider grid"


@pytest.mark.parametrize("sign", [1, -1])
def test_a_search_without_a_best_ends_at_its_limit_and_says_so(sign: int) -> None:
    found, _ = verdict(lambda lr, steps, seed: 0.5 + sign * 0.02 * np.log10(lr) + noise(seed), CHOOSES)
    assert found.verdict.word == "not converged" and "of 6 recipes" in found.parts[0].said
    assert "at an edge of lr" in found.parts[0].said


def test_the_next_value_of_an_axis_is_1_or_3_times_a_power_of_ten() -> None:
    start = {"lr": (0.003, 0.01), "decay": (0.25,)}
    assert widened(start, [("lr", True), ("decay", False)], start) == {"lr": [0.003, 0.01, 0.03], "decay": [0.1, 0.25]}
    assert widened(start, [], start) == {"lr": [0.003, 0.01], "decay": [0.25]}


Arms = Callable[[str, float, int], float | None]
"""The score of a coder at a rate with a seed; None: it was not run."""


def two_arms(score: Arms, start: Sequence[float], *, in_preset: bool = False) -> tuple[Finding, set[tuple[str, float]]]:
    """What is found about coders `a` and `b`, beside references, and which recipes were doubled."""
    doubled: set[tuple[str, float]] = set()

    def look(claim: Claim, keep: Keep) -> tuple[Sequence[Run], Mapping[str, Record]]:
        steps = claim.grid.get("steps", [100])[0]
        rates = claim.grid.get("lr", start)
        options = [{"coder": coder, "lr": lr, "steps": steps} for coder in ("a", "b", "none") for lr in rates]
        planned = [Run("planted", {**each}, seed, {}) for each in options for seed in range(5)]
        runs = [run for run in planned if keep(run)]
        doubled.update((run.options["coder"], run.options["lr"]) for run in runs if steps != 100)
        values = {run: score(run.options["coder"], run.options["lr"], run.seed) for run in runs}
        records = [Record(run, "done", {"score": v, "validation": v}) for run, v in values.items() if v is not None]
        return runs, {identity(record.run): record for record in records}

    assert CHOOSES.certificate is not None
    arms = replace(CHOOSES.certificate, tried={"lr": tuple(start)}, arms=({"coder": "a"}, {"coder": "b"}))
    claim = replace(CHOOSES, grid={} if in_preset else {"lr": tuple(start)}, certificate=arms)
    return examined("planted", claim, look), doubled


def peak(at: float, lr: float) -> float:
    return 0.7 - 0.1 * abs(math.log10(lr / at))


def test_a_claim_that_chooses_its_recipe_is_doubled_at_the_best_of_each_arm() -> None:
    """Of two arms, one is best at .01 and one at .03; runs of neither, such as references, are doubled too."""
    rates = (0.003, 0.01, 0.03, 0.1)
    best = {"a": 0.01, "b": 0.03, "none": 0.01}
    found, doubled = two_arms(lambda coder, lr, seed: peak(best[coder], lr) + noise(seed), rates)
    assert doubled == {("a", 0.01), ("b", 0.03), *(("none", lr) for lr in rates)}
    assert found.parts[0].holds, found.parts[0].said


@pytest.mark.parametrize("in_preset", [False, True])
def test_wider_runs_have_to_be_there_for_the_arms_at_an_edge_alone(in_preset: bool) -> None:
    """Arm a is best at .03, beyond the rates to begin with, which the claim has or its preset; b is best at .003."""
    best = {"a": 0.03, "b": 0.003, "none": 0.003}

    def score(coder: str, lr: float, seed: int, *, lacks: str) -> float | None:
        return None if coder == lacks and lr > 0.02 else peak(best[coder], lr) + noise(seed)

    start = (0.001, 0.003, 0.01)
    found, _ = two_arms(partial(score, lacks="b"), start, in_preset=in_preset)
    assert found.parts[0].holds and "a: of 5 recipes, lr=0.03" in found.parts[0].said
    assert "b: of 3 recipes, lr=0.003" in found.parts[0].said
    counted = {(record.run.options["coder"], record.run.options["lr"]) for record in found.judged[0].records}
    assert ("a", 0.03) in counted and ("b", 0.01) in counted and ("b", 0.03) not in counted
    found, _ = two_arms(partial(score, lacks="a"), start, in_preset=in_preset)
    assert not found.parts[0].holds and "of a wider grid 5 of 20 runs of other recipes are not stored" in str(
        found.parts
    )


def test_each_arm_is_widened_at_its_own_edge() -> None:
    """Arm a is best above the rates to begin with and b below: neither is run where the other has its best."""
    best = {"a": 0.03, "b": 0.001, "none": 0.003}

    def score(coder: str, lr: float, seed: int) -> float:
        assert (coder, lr > 0.02, lr < 0.002) not in (("a", False, True), ("b", True, False))
        return peak(best[coder], lr) + noise(seed)

    found, doubled = two_arms(score, (0.003, 0.01))
    assert found.parts[0].holds, found.parts[0].said
    assert "a: of 4 recipes, lr=0.03" in found.parts[0].said and "b: of 4 recipes, lr=0.001" in found.parts[0].said
    assert {each for each in doubled if each[0] != "none"} == {("a", 0.03), ("b", 0.001)}


def test_a_rate_at_an_edge_that_may_be_better_is_an_edge_unless_it_is_as_good() -> None:
    """Arm a: one seed is far better at the edge, the others are worse. Arm b: all rates are alike."""

    def score(coder: str, lr: float, seed: int) -> float | None:
        if lr > 0.1:
            return None
        if coder == "a" and lr == 0.1:
            return 0.9 if seed == 0 else 0.6 + noise(seed)
        return 0.5 if coder != "a" else peak(0.03, lr) + noise(seed)

    found, _ = two_arms(score, (0.003, 0.01, 0.03, 0.1))
    assert not found.parts[0].holds
    assert (
        "a: of 4 recipes, lr=0.03 is the best by mean (validation 0.7), but lr=0.1 may be better" in found.parts[0].said
    )
    of_b = found.parts[0].said.partition("b: ")[2]
    assert "may be better" not in of_b, of_b


def test_an_arm_without_a_run_is_an_error() -> None:
    assert CHOOSES.certificate is not None
    with pytest.raises(UserError, match="no run of the plan has"):
        verdict(
            lambda lr, steps, seed: 0.5 + noise(seed),
            replace(CHOOSES, certificate=replace(CHOOSES.certificate, arms=({"coder": "none"},))),
        )


def test_a_goal_that_is_reached_asks_for_no_search() -> None:
    found, asked = verdict(lambda lr, steps, seed: 0.95 + noise(seed))
    assert found.verdict.word == "reproduced" and len(asked) == 1 and found.publishable


def test_as_many_seeds_are_asked_for_as_tell_the_effect_seen_four_times_of_five() -> None:
    """By simulation: with that many seeds, an interval that excludes the limit is found about as often."""
    check = Check(what="", metric="m", at_least=0.0)
    seen = student_t([0.6, 1.4, 0.2, 1.9, 0.9])
    needed = seeds_needed(check, seen)
    assert needed is not None
    rng = np.random.default_rng(0)
    deviation = float(np.std([0.6, 1.4, 0.2, 1.9, 0.9], ddof=1))
    drawn = [student_t(list(rng.normal(1.0, deviation, needed))) for _ in range(2000)]
    share = np.mean([one.low is not None and one.low > 0 for one in drawn])
    assert 0.74 < share < 0.9, f"{needed} seeds: {share}"
    assert seeds_needed(check, Interval(0.0, -1.0, 1.0, 5)) is None, "at the limit"
    assert seeds_needed(check, Interval(0.0, 0.0, 0.0, 5)) is None, "at the limit, without a spread"


def counted(check: Check, *values: float) -> Judged:
    """A check of seeds with these numbers."""
    runs = [Run("planted", {}, seed, {}) for seed in range(len(values))]
    records = (Record(run, "done", {"score": value}) for run, value in zip(runs, values, strict=True))
    return judge(check, runs, {identity(record.run): record for record in records})


EVERY = Check(what="worst seed", metric="score", over="min", at_least=0.9)
FIXED = Check(what="x", metric="score", target=1, tolerance=0.1, unit="")
ONCE = Check(what="best seed", metric="score", over="max", at_least=0.9)


def test_a_bound_on_failing_seeds_is_given_only_where_none_failed() -> None:
    assert (
        enough([counted(EVERY, 1, 1, 1)]).said
        == "3, all as wanted: with 95 % confidence fewer than 63% of all seeds are not"
    )
    failed = enough([counted(EVERY, 0.99, 0.71, 1)]).said
    assert failed == "3, of which 2 of 3 as wanted, 0.67 [0.21, 0.94] (worst seed)"


def test_the_count_of_seeds_is_said_in_plain_words() -> None:
    few, clusters = (counted(replace(SCORE, unit=unit), 0.8, 1.0, 0.97) for unit in ("seed", "cluster"))
    assert enough([counted(SCORE, 0.99, 0.98, 0.97)]).said == f"3; 3 are enough to decide ({SCORE.what})"
    assert enough([few]).said == f"3; 170 are needed to decide ({SCORE.what})"
    assert enough([clusters]).said == f"3 clusters; 170 are needed to decide ({SCORE.what})"
    assert enough([counted(SCORE, 0.8, 1.0)]).said == f"2; no number would decide ({SCORE.what})", "at the limit"


def test_no_seeds_are_asked_of_a_number_that_nothing_is_drawn_for() -> None:
    fixed, drawn = counted(FIXED, 1.05), counted(replace(FIXED, unit="seed"), 1.05)
    assert str(enough([fixed])) == "seeds: not asked, nothing is drawn: another run gives the same number"
    assert fixed.number == "1.05" and fixed.verdict.word == "reproduced"
    assert not enough([drawn]).holds and not enough([fixed, drawn]).holds


def test_a_goal_that_one_seed_has_to_reach_says_how_many_did() -> None:
    said = enough([counted(EVERY, 1, 1, 1), counted(ONCE, 1, 1, 1), counted(ONCE, 0.99, 0.71, 1)]).said
    assert said.startswith("3, all as wanted: with 95 % confidence fewer than 63% of all seeds are not; ")
    assert "; where a goal has to be reached once, 2 of 3 as wanted, 0.67 [0.21, 0.94]" in said


@pytest.mark.parametrize(
    ("before", "after", "holds"),
    [
        ((0.99, 0.71, 1), (0.5, 0.77, 1), True),  # 2 of 3, then 1 of 3
        ((0.5, 0.71, 0.6), (1, 1, 1), False),
        ((0.99, 0.71, 1), (1, 1, 1), False),  # 2 of 3, then all: the verdict turns, if inside the interval of 3 seeds
        ((1, 1, 1, 1, 0), (0.8, 0.8, 0.8, 0.8, 0.8), False),  # the means, .8 and .8, are one
        ((0.5, 0.51, 0.52), (0.6, 0.61, 0.62), False),  # none passes, but all seeds moved
    ],
)
def test_the_number_of_a_worst_seed_moves_if_the_share_of_seeds_that_pass_does(
    before: tuple[float, ...], after: tuple[float, ...], holds: bool
) -> None:
    certificate = replace(CLAIM.certificate, number=EVERY, goal=False)
    part = steady(certificate, counted(EVERY, *before), counted(EVERY, *after))
    assert part.holds == holds and f" of {len(after)} as wanted" in part.said


@pytest.mark.parametrize("over", ["mean", "max"])
@pytest.mark.parametrize("after", [(0.494, 0.492, 1.0), (0.5, 1.0, 1.0)])
def test_seeds_that_learn_with_twice_the_training_move_the_number_however_far_apart_they_lie(
    over: str, after: tuple[float, ...]
) -> None:
    """The interval of the doubled runs may be as wide as it likes: the number's own counts."""
    guesses = replace(EVERY, over=over, at_least=None, at_most=0.6)
    certificate = replace(CLAIM.certificate, number=guesses, goal=False)
    assert not steady(certificate, counted(guesses, 0.493, 0.492, 0.495), counted(guesses, *after)).holds


def test_a_goal_of_one_number_certifies_no_refutation_of_another() -> None:
    """The first check is reached and the second is not, which twice the training mends."""
    high = replace(SCORE, what="high score", at_least=0.99)
    claim = replace(CLAIM, checks=(SCORE, high))
    found, _ = verdict(lambda lr, steps, seed: (0.95 if steps == 100 else 1.0) + noise(seed), claim)
    assert found.checked.word == "not reproduced" and found.verdict.word == "not converged" and not found.publishable


def test_a_mean_of_one_seed_decides_nothing_and_two_seeds_are_no_worst_or_best() -> None:
    one = counted(SCORE, 0.99)
    assert str(one.verdict) == "undecided: about 1 more seed would tell" and not enough([one]).holds
    assert not enough([counted(EVERY, 1, 1)]).holds and enough([counted(EVERY, 1, 1, 1)]).holds


def test_a_run_that_failed_is_no_number() -> None:
    runs = [Run("planted", {}, seed, {}) for seed in range(3)]
    stored = {identity(run): Record(run, "failed" if run.seed else "done", {"score": 1.0}) for run in runs}
    found = judge(EVERY, runs, stored)
    assert found.verdict.word == "no record" and found.reason == "2 of 3 runs failed"
    none = judge(Check(what="x", measure=lambda records: {}, at_least=1), runs[:1], stored)
    assert none.verdict.word == "not reproduced" and none.found is None


def test_a_grid_that_begins_at_0_has_nothing_below_it() -> None:
    start = {"decay": (0.0, 0.1)}
    assert widened(start, [("decay", False)], start) == {"decay": [0.0, 0.1]}


def test_an_accuracy_at_a_length_has_no_interval_beyond_1() -> None:
    check = Check(what="", metric="by_length.256", at_least=0.99)
    runs = [Run("planted", {}, seed, {}) for seed in range(3)]
    records = [
        Record(run, "done", {"by_length": {"256": value}})
        for run, value in zip(runs, (0.992, 0.712, 0.999), strict=True)
    ]
    found = judge(check, runs, {identity(record.run): record for record in records})
    assert found.number.startswith("mean of 3 seeds 0.901 [0.4943, 1]") and found.found is not None
    assert found.found == student_t([0.992, 0.712, 0.999]), "seeds that are needed come from the whole interval"


def test_a_better_mean_at_an_edge_that_is_not_told_is_named_with_its_difference() -> None:
    """One of five seeds is much better at the last rate: the mean is, but not told apart, and by less than 2 %."""
    found, _ = verdict(lambda lr, steps, seed: 0.5 + 0.04 * (lr == 0.03 and seed == 0) + noise(seed))
    assert found.parts[0].holds, "its own is at no edge, and none is told apart as better"
    said = (
        "the claim has lr=0.01, and no other is told apart as better (validation 0.5), at no edge; the best by mean, "
    )
    assert said + "lr=0.03, is not told apart (better by 0.008 [-0.014, 0.03]), at an edge of lr" in found.parts[0].said
    further, asked = verdict(lambda lr, steps, seed: 0.5 + 0.4 * (1 + lr) * (lr >= 0.03 and seed == 0) + noise(seed))
    assert any(0.1 in claim.grid.get("lr", ()) for claim in asked), "a better mean by more asks for the next rate"
    assert not further.parts[0].holds and "may be better, at an edge of lr" in further.parts[0].said
    flat, _ = verdict(lambda lr, steps, seed: 0.5 + noise(seed))
    assert "the best by mean" not in flat.parts[0].said, "of recipes with one mean its own is the best"
