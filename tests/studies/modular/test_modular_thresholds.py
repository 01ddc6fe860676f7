"""From which width on models generalise: no lucky width decides it, and all seeds do."""

import numpy as np
import pytest

from assay.studies.modular.thresholds import from_here_on, half_pass

WIDTHS = range(1, 65)


def drawn(half: float, slope: float, seeds: int, seed: int) -> dict[int, dict[int, bool]]:
    """Runs that pass with the chance of a logistic curve in log width."""
    rng = np.random.default_rng(seed)
    chance = {d: 1 / (1 + (half / d) ** slope) for d in WIDTHS}
    return {d: {s: bool(rng.random() < chance[d]) for s in range(seeds)} for d in WIDTHS}


def test_a_lucky_narrow_width_is_not_the_smallest() -> None:
    assert from_here_on({8: False, 12: True, 16: False, 24: True, 32: True}) == 24
    assert from_here_on({32: True, 24: True, 8: False}) == 24, "in any order"
    assert from_here_on({4: True, 8: True}) == 4
    assert from_here_on({4: True, 8: True, 16: False}) is None, "the widest failed: there is no such width"
    assert from_here_on({}) is None


def test_a_lucky_narrow_width_hardly_moves_the_half() -> None:
    runs = {d: dict.fromkeys(range(5), d >= 40) for d in WIDTHS}
    plain = half_pass(runs)
    assert plain.width == pytest.approx(np.sqrt(39 * 40), rel=0.03)
    lucky = half_pass(runs | {12: dict.fromkeys(range(5), True)})
    assert 30 < lucky.width < plain.width


def test_the_half_of_drawn_runs_is_found_and_lies_in_its_interval() -> None:
    found = [half_pass(drawn(20, 4, seeds=6, seed=i)) for i in range(20)]
    assert np.median([half.width for half in found]) == pytest.approx(20, rel=0.05)
    assert all(half.low is not None and half.high is not None for half in found)
    inside = sum((half.low or 0) <= 20 <= (half.high or 0) for half in found)
    assert inside >= 15, f"{inside} of 20 intervals of 95 %"


def test_the_fit_is_that_of_a_logistic_regression() -> None:
    from sklearn.linear_model import LogisticRegression

    runs = drawn(20, 4, seeds=5, seed=0)
    x = np.log([d for d, own in runs.items() for _ in own])[:, None]
    y = [passed for own in runs.values() for passed in own.values()]
    fitted = LogisticRegression(C=1e6).fit(x, y)
    assert half_pass(runs).width == pytest.approx(np.exp(-fitted.intercept_[0] / fitted.coef_[0, 0]), rel=0.03)


def test_seeds_that_agree_have_a_narrow_interval_and_seeds_that_do_not_a_wide_one() -> None:
    agree = half_pass({d: dict.fromkeys(range(5), d >= 20) for d in WIDTHS})
    apart = half_pass({d: {s: d >= 10 * (s + 1) for s in range(5)} for d in WIDTHS})
    assert agree.low == agree.high == agree.width
    assert apart.low is not None and apart.high is not None and apart.low < 24 < 36 < apart.high


def test_outside_the_widths_tried_it_says_no_more_than_the_side() -> None:
    assert str(half_pass({d: {0: False, 1: False} for d in (4, 8)})) == "> 8 [> 8, > 8]"
    assert str(half_pass({d: {0: True} for d in (4, 8)})) == "< 4"
    some = half_pass({d: {0: d >= 8, 1: False} for d in (2, 4, 8, 16)})
    assert str(some).endswith(", > 16]")


def test_a_seed_that_a_width_lacks_says_nothing_there() -> None:
    whole = {d: {0: d >= 20, 1: d >= 20} for d in WIDTHS}
    lacking = {d: {s: p for s, p in runs.items() if s == 0 or d % 7} for d, runs in whole.items()}
    assert half_pass(lacking).width == pytest.approx(half_pass(whole).width, rel=0.02)
