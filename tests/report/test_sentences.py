import re
from statistics import fmean

import pytest

from assay.report.rows import Row, rows
from assay.report.sentences import LEAST, Measure, across, compared, groups

R2 = Measure("recovery (R2)", "R2")
LOSS = Measure("loss", "R2", lower=True)


@pytest.fixture
def scored(record):
    """Rows by name, each with a score per seed."""

    def make(scores: dict[str, list[float]], **options) -> list[Row]:
        records = [
            record(seed=seed, model={"name": name}, metrics={"R2": value}, **options)
            for name, values in scores.items()
            for seed, value in enumerate(values)
        ]
        return rows(records, names={"model": "model"})

    return make


def test_the_best_is_told_apart_from_every_other_with_the_difference_to_the_next(scored):
    said = compared(scored({"a": [0.1, 0.11, 0.12], "b": [0.9, 0.91, 0.921], "c": [0.2, 0.21, 0.22]}), R2, of="encoder")
    assert said == (
        "In these runs (3 seeds) b scores highest on recovery (R2), 0.91 ±0.03, and is told apart from every other "
        "encoder: the next, c, is 0.70 ±0.00 below, at 0.21 ±0.02."
    )


def test_a_difference_that_is_told_apart_has_the_decimals_that_show_it(scored):
    close = {"a": [0.9991, 0.9992, 0.9993], "b": [0.9987, 0.9988, 0.999]}
    assert compared(scored(close), R2, of="encoder").endswith(
        "a scores highest on recovery (R2), 0.9992 ±0.0002, and is told apart from b, which is 0.0004 ±0.0001 below, "
        "at 0.9988 ±0.0004."
    )
    level = compared(scored({"a": [0.9991, 0.9992, 0.9993], "b": [0.9993, 0.9991, 0.999]}), R2, of="encoder")
    assert "1.00 ±0.00" in level and "no two encoders are told apart" in level


def test_those_that_are_not_told_apart_from_the_best_are_named(scored):
    found = scored({"best": [0.8, 0.9, 1.0], "level": [0.95, 0.75, 0.9], "worse": [0.1, 0.21, 0.3]})
    assert compared(found, R2, of="encoder").endswith("it is told apart from worse, not from level.")


def test_where_nothing_is_told_apart_there_is_one_sentence_that_says_so(scored):
    said = compared(scored({"a": [0.5, 0.7, 0.1], "b": [0.6, 0.2, 0.4]}), R2, of="encoder")
    assert said.endswith("b lowest, 0.40 ±0.50, but no two encoders are told apart.")
    assert said.count(".") - len(re.findall(r"\d\.\d", said)) == 1, "one sentence"


@pytest.mark.parametrize(("values", "few"), [([0.9], "one seed tells"), ([0.9, 0.91], "2 seeds tell")])
def test_one_or_two_seeds_tell_nothing_apart_and_have_no_letters(scored, values, few):
    found = scored({"a": values, "b": [value - 0.8 for value in values]})
    spread = " ±0.06" * (len(values) > 1)
    said = compared(found, R2, of="encoder")
    assert said.endswith(f"b lowest, {fmean(values) - 0.8:.2f}{spread}; {few} nothing apart.")
    assert groups(found, R2) == {} and len(values) < LEAST
    assert said.count("±") == 2 * (len(values) > 1), "a number of several seeds has its interval"


def test_letters_agree_with_the_sentence(scored):
    found = scored({"best": [0.8, 0.9, 1.0], "level": [0.95, 0.75, 0.9], "worse": [0.1, 0.21, 0.3]})
    shared = groups(found, R2)
    assert set(shared["best"]) & set(shared["level"]) and not set(shared["best"]) & set(shared["worse"])


def test_the_lowest_is_best_where_less_is_better(scored):
    said = compared(scored({"a": [0.1, 0.11, 0.12], "b": [0.9, 0.91, 0.921]}), LOSS, of="coder")
    assert said.endswith(
        "a scores lowest (best) on loss, 0.11 ±0.02, and is told apart from b, which is 0.80 ±0.00 above, at 0.91 "
        "±0.03."
    )


def test_nothing_is_ranked_at_the_floor(scored):
    floor = Measure("lookup", "R2", floor=lambda row: 0.05)
    found = scored({"a": [0.01, 0.02, 0.03], "b": [0.001, 0.0, 0.002]})
    said = compared(found, floor, of="encoder")
    assert "no encoder scores far above chance on lookup: at best 0.02 ±0.02 (a)" in said
    assert groups(found, floor) == {}


def test_a_rate_at_the_edge_and_diverged_seeds_are_said(record):
    records = [
        record(seed=seed, model={"name": name}, lr=lr, metrics={"R2": score + lr})
        for name, score in (("a", 0.5), ("b", 0.1))
        for seed in (0, 1, 2)
        for lr in (0.1, 0.2)
    ]
    lost = [record(seed=9, model={"name": "a"}, lr=lr, status="diverged") for lr in (0.1, 0.2)]
    found = rows([*records, *lost], names={"model": "model"}, tune="lr", score=lambda one: one.metrics["R2"])
    said = compared(found, R2, of="encoder")
    assert "lies at the edge of those tried, so better scores may lie beyond" in said
    assert "seeds of a diverged and have no score" in said


def test_a_share_has_an_interval_between_0_and_1(scored):
    found = scored({"a": [0.99, 1.0, 0.9]})
    assert "[0.83, 1.00]" in compared(found, Measure("accuracy", "R2", share=True), of="mixer")


def test_over_several_settings_it_is_counted_who_is_best_and_told_apart(scored):
    clear = scored({"a": [0.9, 0.91, 0.921], "b": [0.1, 0.11, 0.12]})
    close = scored({"a": [0.5, 0.7, 0.1], "b": [0.6, 0.2, 0.4]})
    said = across({"noise=0.1": clear, "noise=0.2": close}, R2, of="encoder", over="settings", runs="untrained")
    assert said == (
        "In these runs (untrained, 3 seeds), over 2 settings, the highest recovery (R2) has a in 2 (told apart from "
        "every other in 1)."
    )
    assert across({"noise=0.1": clear}, R2, of="encoder", over="settings") == compared(clear, R2, of="encoder")


def test_without_the_score_nothing_is_said(scored):
    assert compared(scored({"a": [0.1]}), Measure("none", "none"), of="encoder") == ""
    assert across({}, R2, of="encoder", over="settings") == ""
