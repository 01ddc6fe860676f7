"""Who differs from whom, against scipy's own Welch test, closed forms, and simulations of the field of a card."""

import math

import numpy as np
import pytest
from scipy import stats

from assay.compare.apart import LEVEL, differs, judged, places
from assay.metrics.intervals import holm

FIELD = (0.001, 0.003, 0.006, 0.01, 0.01, 0.02, 0.02, 0.03, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.12, 0.002, 0.15, 0.2)
"""Standard deviations over seeds as those of a field of mixers are: from none to half of the seeds learning."""


def by_seed(values) -> dict[int, float]:  # type: ignore[no-untyped-def]
    return dict(enumerate(map(float, values)))


@pytest.mark.parametrize(("n", "m"), [(3, 3), (5, 5), (3, 8)])
def test_it_is_welch_s_test(n: int, m: int) -> None:
    rng = np.random.default_rng(n * m)
    a, b = rng.normal(0.3, 0.2, n), rng.normal(0.1, 0.02, m)
    ours, theirs = differs(by_seed(a), by_seed(b)), stats.ttest_ind(a, b, equal_var=False)
    assert ours.p == pytest.approx(theirs.pvalue, rel=1e-9)
    assert ours.freedom == pytest.approx(theirs.df, rel=1e-9)
    ends = theirs.confidence_interval(0.95)
    assert (ours.interval.low, ours.interval.high) == pytest.approx((ends.low, ends.high), rel=1e-9)


def test_constant_scores_have_the_p_of_their_order() -> None:
    ones, halves = by_seed([1.0] * 5), by_seed([0.5] * 5)
    assert differs(ones, halves).p == pytest.approx(2 / math.comb(10, 5))
    assert differs(ones, ones).p == 1.0
    # With the error of what a score is taken from they are compared as any others.
    known = differs(ones, by_seed([0.99] * 5), sampling=0.01)
    assert known.error == pytest.approx(0.01 * math.sqrt(2 / 5)) and known.p > LEVEL


def test_two_seeds_tell_nobody_apart() -> None:
    far = differs(by_seed([0.0, 0.001]), by_seed([1.0, 1.001]))
    assert (far.p, far.word, far.mark) == (1.0, "few seeds", "?")
    assert differs(by_seed([0.0]), by_seed([1.0])).interval.low is None


def test_less_is_better_where_the_question_says_so() -> None:
    low, high = by_seed([1.0, 1.01, 0.99]), by_seed([2.0, 2.01, 1.99])
    assert differs(low, high).word == "worse" and differs(low, high, lower=True).word == "better"


def test_documents_that_both_sides_share_widen_the_interval() -> None:
    a, b = by_seed([1.0, 1.1, 0.9]), by_seed([0.5, 0.6, 0.4])
    alone, beside = differs(a, b), differs(a, b, documents=(0.1, 39.0))
    assert beside.error == pytest.approx(math.hypot(alone.error, 0.1)) and beside.freedom > alone.freedom


def test_holm_over_a_row_and_the_places_that_follow() -> None:
    row = judged(by_seed([0.5, 0.51, 0.49]), {"low": by_seed([0.1, 0.11, 0.09]), "same": by_seed([0.5, 0.52, 0.49]),
                                             "high": by_seed([0.9, 0.91, 0.89])})  # fmt: skip
    assert [each.word for each in row.values()] == ["better", "no difference shown", "worse"]
    assert places(row.values()) == (2, 3)
    alone = differs(by_seed([0.5, 0.51, 0.49]), by_seed([0.1, 0.11, 0.09]))
    assert row["low"].p == pytest.approx(3 * alone.p) or row["low"].p == pytest.approx(2 * alone.p)


def test_the_smallest_difference_that_could_have_been_shown() -> None:
    one = differs(by_seed([0.1, 0.2, 0.3, 0.4, 0.5]), by_seed([0.2, 0.3, 0.4, 0.5, 0.6]))
    assert one.detectable(18) == pytest.approx(stats.t.ppf(1 - 0.05 / 36, 8) * one.error)
    assert stats.t.ppf(1 - 0.05 / 36, 8) == pytest.approx(4.26, abs=0.02)


def false_alarms(seeds: int, rows: int = 300) -> float:
    """The share of rows of a card with any difference where there is none."""
    rng = np.random.default_rng(seeds)
    alarms = 0
    for row in range(rows):
        own = FIELD[row % len(FIELD)]
        mine = by_seed(rng.normal(0.5, own, seeds))
        others = {f"m{i}": by_seed(rng.normal(0.5, spread, seeds)) for i, spread in enumerate(FIELD)}
        alarms += any(each.p < LEVEL for each in judged(mine, others).values())
    return alarms / rows


@pytest.mark.parametrize("seeds", [3, 5])
def test_false_alarms_of_a_row_where_nothing_differs(seeds: int) -> None:
    rate = false_alarms(seeds)
    assert rate <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 300)


def protocol_5(mine: np.ndarray, others: list[np.ndarray]) -> list[bool]:
    """Cards of protocol 5 tested so: one standard deviation of all, but for a side that an F test tells wider."""
    rows = [mine, *others]
    freedom = sum(len(row) - 1 for row in rows)
    deviation = math.sqrt(sum((len(row) - 1) * row.var(ddof=1) for row in rows) / freedom)

    def side(row: np.ndarray) -> tuple[float, int]:
        own = row.std(ddof=1)
        wider = own > deviation and stats.f.sf((own / deviation) ** 2, len(row) - 1, freedom) < LEVEL
        return (own, len(row) - 1) if wider else (deviation, freedom)

    found = {}
    for place, other in enumerate(others):
        parts = [(own**2 / len(row), degrees) for row in (mine, other) for own, degrees in (side(row),)]
        variance = sum(part for part, _ in parts)
        alone = any(degrees != freedom for _, degrees in parts)
        degrees = variance**2 / sum(part**2 / own for part, own in parts) if alone else freedom
        found[place] = float(2 * stats.t.sf(abs(mine.mean() - other.mean()) / math.sqrt(variance), degrees))
    return [p < LEVEL for p in holm(found).values()]


def test_at_five_seeds_it_shows_no_fewer_differences_than_the_pooled_test() -> None:
    """Of differences over .05 between mixers whose scores and deviations lie as those of a field do."""
    rng = np.random.default_rng(0)
    welch = pooled = real = 0
    for _ in range(60):
        means, spreads = rng.uniform(0.1, 1.0, len(FIELD) + 1), rng.choice(FIELD, len(FIELD) + 1)
        rows = [rng.normal(mean, spread, 5) for mean, spread in zip(means, spreads, strict=True)]
        far = [abs(mean - means[0]) > 0.05 for mean in means[1:]]
        row = judged(by_seed(rows[0]), {str(i): by_seed(other) for i, other in enumerate(rows[1:])})
        welch += sum(each.p < LEVEL for each, apart in zip(row.values(), far, strict=True) if apart)
        pooled += sum(told for told, apart in zip(protocol_5(rows[0], rows[1:]), far, strict=True) if apart)
        real += sum(far)
    assert real > 500 and welch >= pooled
