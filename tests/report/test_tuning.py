"""Which learning rate each seed counts with, which a row shows, and when it is marked as at the edge."""

from dataclasses import replace

import pytest

from assay.core.run import Record, Run
from assay.report.rows import Row, rows


@pytest.mark.parametrize(
    "chosen, is_marked",
    [
        ([3e-3, 3e-3, 3e-3], False),
        ([3e-3, 3e-3, 1e-2], True),  # one seed of three is enough
        ([1e-3, 3e-3, 3e-3], True),
        ([1e-2, 1e-2, 1e-2], True),
    ],
)
def test_a_row_is_marked_where_any_seed_counts_at_the_lowest_or_highest_rate(
    chosen: list[float | None], is_marked: bool
) -> None:
    assert at_rates(chosen, [3e-3, 1e-2, 1e-3]).at_the_edge is is_marked


def at_rates(chosen: list[float | None], tried: list[float | None]) -> Row:
    """A row whose seeds count with the chosen rates."""
    records = tuple(Record(Run("sae", {"lr": rate}, seed, {}), "done", {}) for seed, rate in enumerate(chosen))
    return Row(records, tune="lr", tried={rate: {} for rate in tried})


def test_one_rate_or_none_has_no_edge() -> None:
    assert not at_rates([1e-3, 1e-3], [1e-3]).at_the_edge and not at_rates([None], [None]).at_the_edge


@pytest.mark.parametrize(
    ("seeds_at", "chosen", "is_edge"),
    [
        ({1e-3: 3, 3e-3: 3, 1e-2: 3}, [3e-3] * 3, False),
        ({1e-3: 3, 3e-3: 3, 1e-2: 2}, [3e-3] * 3, True),  # nobody knows of the third seed at 1e-2
        ({1e-3: 1, 3e-3: 3, 1e-2: 3, 3e-2: 3}, [1e-3, 1e-2, 1e-2], True),  # beyond those that can be compared
        ({1e-3: 2, 3e-3: 1}, [3e-3, 1e-3], True),
        ({3e-3: 3, 1e-2: 0}, [3e-3] * 3, True),
    ],
)
def test_a_rate_that_was_tried_with_some_seeds_hides_no_edge(
    seeds_at: dict[float, int], chosen: list[float | None], is_edge: bool
) -> None:
    row = at_rates(chosen, [*seeds_at])
    tried = {rate: {seed: row.records[seed] for seed in range(count)} for rate, count in seeds_at.items()}
    assert replace(row, tried=tried).at_the_edge is is_edge


def test_where_rates_were_tried_with_different_seeds_none_can_be_compared() -> None:
    row = at_rates([3e-3, 1e-2], [3e-3, 1e-2])
    apart = replace(row, tried={3e-3: {0: row.records[0]}, 1e-2: {1: row.records[1]}})
    assert apart.tried_by_all == [] and apart.at_the_edge


def test_the_rate_shown_is_that_of_most_seeds_and_of_equals_the_lowest() -> None:
    assert at_rates([1e-2, 3e-3, 3e-3], []).tuned_value == 3e-3 and at_rates([1e-2, 1e-3], []).tuned_value == 1e-3
    assert at_rates([None, None], []).tuned_value is None


def record(seed: int, lr: float, validation: float | None, test: float = 0.0, mixer: str = "gru") -> Record:
    """A trained model; without a validation score it diverged."""
    options = {"model": {"seq_mixer": {"name": mixer}}, "optimizer": {"lr": lr, "clip": 3.0}}
    run = Run("icl", options, seed, {})
    if validation is None:
        return Record(run, "diverged", {"steps": 3})
    return Record(run, "done", {"accuracy": test, "curve": [{"step": 1, "accuracy": 0.1}, {"accuracy": validation}]})


def tuned(records: list[Record]) -> list[Row]:
    return rows(records, tune="optimizer.lr", score=lambda one: float(one.metrics["curve"][-1]["accuracy"]))


def test_a_seed_counts_with_the_rate_that_the_other_seeds_chose_and_with_its_test_score() -> None:
    found = tuned(
        [
            record(0, 1e-3, 0.80, 0.1), record(0, 3e-3, 0.70, 0.2),  # seed 0 itself would choose 1e-3
            record(1, 1e-3, 0.60, 0.3), record(1, 3e-3, 0.90, 0.4),
            record(2, 1e-3, 0.60, 0.5), record(2, 3e-3, 0.70, 0.6),
        ]
    )  # fmt: skip
    (row,) = found
    assert row.values("accuracy") == {0: 0.2, 1: 0.3, 2: 0.6}  # 1: .80 + .60 against .70 + .70, a tie: the smaller rate
    assert row.tuned_value == 3e-3 and row.at_the_edge


def test_an_inner_rate_is_not_at_the_edge_and_one_rate_has_none() -> None:
    best = {1e-3: 0.1, 3e-3: 0.9, 1e-2: 0.2}
    (row,) = tuned([record(seed, rate, best[rate]) for seed in (0, 1) for rate in best])
    assert row.tuned_value == 3e-3 and not row.at_the_edge
    (row,) = tuned([record(0, 1e-3, 0.5), record(1, 1e-3, 0.5)])
    assert not row.at_the_edge and len(row.tried) == 1


def test_a_seed_that_diverges_at_the_rate_the_others_chose_stays_without_a_score() -> None:
    (row,) = tuned(
        [
            record(0, 1e-3, 0.5, 0.5), record(0, 1e-2, None),
            record(1, 1e-3, 0.5, 0.5), record(1, 1e-2, 0.9, 0.9),
            record(2, 1e-3, 0.5, 0.5), record(2, 1e-2, 0.9, 0.9),
        ]
    )  # fmt: skip
    # Seeds 1 and 2 see that 1e-2 lost seed 0, and count with 1e-3; seed 0 is told 1e-2 by the others, and diverged.
    assert row.diverged == 1 and len(row.records) == 3
    assert row.values("accuracy") == {1: 0.5, 2: 0.5}


def test_a_rate_at_which_every_seed_diverged_still_counts_as_tried() -> None:
    (row,) = tuned([record(s, lr, 0.5 if lr < 1 else None) for s in (0, 1) for lr in (1e-3, 3e-3, 1e30)])
    assert sorted(row.tried) == [1e-3, 3e-3, 1e30] and row.diverged == 0
    (row,) = tuned([record(s, lr, lr if lr < 1 else None) for s in (0, 1) for lr in (1e-3, 3e-3, 1e30)])
    assert row.tuned_value == 3e-3 and not row.at_the_edge, "beyond it all is lost"


def test_mixers_are_told_apart_and_a_lone_seed_chooses_for_itself() -> None:
    found = tuned([record(0, 1e-3, 0.2), record(0, 3e-3, 0.4), record(0, 1e-3, 0.9, mixer="attention")])
    assert [row.tuned_value for row in found] == [3e-3, 1e-3]
    assert found[0].values("accuracy") == {0: 0.0}


def test_a_setting_of_which_every_seed_diverged_stays_without_scores_and_without_a_rate() -> None:
    (row,) = tuned([record(seed, rate, None) for seed in (0, 1) for rate in (1e-3, 3e-3)])
    assert row.diverged == 2 and len(row.records) == 2 and not row.finished and not row.first
    assert row.values("accuracy") == {} and row.interval("accuracy") is None and row.tuned_words is None
    (crossed,) = tuned(
        [record(0, 1e-3, 0.5), record(0, 3e-3, None), record(1, 1e-3, None), record(1, 3e-3, 0.5)],
    )
    assert crossed.diverged == 2 and crossed.tuned_words == "0.001 (1/2) edge", "each was told a rate that lost it"
