"""Curves over active units, compared where they meet."""

import math
from dataclasses import replace

import pytest

from assay.core.run import Record, Run
from assay.report.cells import Cell, cells
from assay.report.tuned import Tuned
from assay.sparse_coders import sparse_coders
from assay.studies.sae.curves import Point, at_equal_l0, chosen, rate_shown

RECIPE = {"epochs": 1, "batch": 2, "optimizer": "adam", "partial": False}


def record(word: str, seed: int, lr: float = 1e-3, **metrics: float) -> Record:
    options = {
        "data": {"name": "digits"},
        "coder": sparse_coders.parse(word).spec(),
        "d_code": 4,
        "lr": lr,
        "recipe": RECIPE,
    }
    return Record(Run("sae", options, seed, {}), "done", {"l0": 1.0, "params": 1, **metrics})


def levels(points: dict[str, tuple[float, float]], seed: int = 0, lr: float = 1e-3) -> list[Record]:
    """By coder, its L0 and FVU."""
    return [record(word, seed, lr, l0=x, fvu=y, validation_fvu=y) for word, (x, y) in points.items()]


def point(cell: Cell) -> Point:
    tried = {cell.options["lr"]: {record.run.seed: record for record in cell.records}}
    return Point(Tuned(cell.records, tuple(tried)), {}, tried)


def read(records: list[Record], target: float, metric: str = "fvu") -> dict[int, float]:
    found = at_equal_l0(chosen(records), target).get("topk")
    return found.values(metric) if found else {}


def test_between_two_levels_a_metric_is_linear_in_the_log_of_l0() -> None:
    found = levels({"topk:k=2": (2.0, 0.4), "topk:k=8": (8.0, 0.2), "topk:k=16": (16.0, 0.1)})
    assert read(found, 4.0) == {0: pytest.approx(0.3)}
    assert read(found, 8 * math.sqrt(2)) == {0: pytest.approx(0.15)}
    assert read(found, 1.0) == read(found, 17.0) == {}, "nothing is guessed beyond the levels"


def test_a_level_that_is_missed_by_a_hair_is_met() -> None:
    found = levels({"topk:k=2": (2.0, 0.4), "topk:k=8": (7.99, 0.2), "topk:k=64": (64.0, 0.1)})
    assert read(found, 8.0) == {0: 0.2} and read(found, 8.5) == {}


def test_a_level_that_is_dominated_is_not_on_the_curve() -> None:
    found = levels({"topk:k=8": (8.0, 0.4), "topk:k=12": (12.0, 0.7), "topk:k=32": (32.0, 0.2)})
    assert read(found, 16.0) == {0: pytest.approx(0.3)}
    assert read(levels({"topk:k=8": (8.0, 0.4), "topk:k=16": (16.0, 0.7)}), 12.0) == {}, "denser and worse: no curve"


def test_nothing_is_read_across_a_wide_gap() -> None:
    assert read(levels({"topk:k=2": (2.0, 0.4), "topk:k=16": (16.0, 0.2)}), 4.0) == {}
    assert read(levels({"topk:k=4": (3.99, 0.4), "topk:k=16": (16.0, 0.2)}), 8.0) != {}, "a factor of 4 is none"


def test_a_curve_is_read_where_every_seed_reaches() -> None:
    near = {"topk:k=8": (8.0, 0.4), "topk:k=32": (32.0, 0.2)}
    far = {"topk:k=8": (20.0, 0.4), "topk:k=32": (40.0, 0.2)}
    found = levels(near, 0) + levels(far, 1)
    assert read(found, 16.0) == {}, "one seed in range is no comparison"
    assert read(found, 24.0).keys() == {0, 1}


def test_at_equal_l0_the_rate_is_chosen_there_and_not_by_how_dense_its_codes_are() -> None:
    """At every level the low rate is denser, and has less error; at L0 16 the high rate has."""
    low = {"topk:k=8": (16.0, 0.40), "topk:k=16": (32.0, 0.20)}
    high = {"topk:k=8": (8.0, 0.45), "topk:k=16": (16.0, 0.30), "topk:k=32": (32.0, 0.10)}
    found = [r for seed in range(3) for r in levels(low, seed, 1e-3) + levels(high, seed, 3e-3)]
    assert {p.label: p.cell.rate for p in chosen(found)} == {"topk": 1e-3, "topk:k=16": 1e-3, "topk:k=32": 3e-3}
    there = at_equal_l0(chosen(found), 16.0)["topk"]
    assert there.rate == 3e-3 and there.values("fvu") == {seed: pytest.approx(0.3) for seed in range(3)}
    assert there.at_the_edge and rate_shown(there) == "0.003*", "of two rates each is at an edge"


def test_the_seed_that_is_read_has_no_say_in_its_rate() -> None:
    ends = {"topk:k=8": 8.0, "topk:k=32": 32.0}
    errors = {1e-3: (0.10, 0.30, 0.30), 3e-3: (0.35, 0.25, 0.25)}  # seed 0 would take 1e-3, the others 3e-3
    found = [
        r
        for lr, by_seed in errors.items()
        for seed, error in enumerate(by_seed)
        for r in levels({word: (l0, error + 1 / l0) for word, l0 in ends.items()}, seed, lr)
    ]
    there = at_equal_l0(chosen(found), 16.0)["topk"]
    assert {r.run.seed: r.run.options["lr"] for r in there.every} == {0: 3e-3, 1: 1e-3, 2: 1e-3}


def test_rates_without_validation_rows_are_not_chosen_between() -> None:
    ends = {"topk:k=8": (8.0, 0.4), "topk:k=32": (32.0, 0.2)}
    blind = [
        replace(r, metrics={name: value for name, value in r.metrics.items() if name != "validation_fvu"})
        for lr in (1e-3, 3e-3)
        for r in levels(ends, 0, lr)
    ]
    assert read(blind, 16.0) == {}
    assert read(blind[:2], 16.0) == {0: pytest.approx(0.3)}, "of one rate there is nothing to choose"


def test_the_rate_with_the_least_validation_error_is_reported_and_edges_are_marked() -> None:
    rates = {1e-4: 0.5, 1e-3: 0.3, 1e-2: 0.4}
    records = [record("topk:k=2", s, lr, validation_fvu=v + s / 100, fvu=v) for lr, v in rates.items() for s in (0, 1)]
    (found,) = chosen(records)
    assert found.cell.rate == 1e-3 and not found.cell.at_the_edge and found.family == "topk"
    (edge,) = chosen(
        [r for r in records if r.run.options["lr"] != 1e-4] + [record("topk:k=2", 0, 1e-1, validation_fvu=0.9)]
    )
    assert edge.cell.rate == 1e-3 and edge.cell.at_the_edge


def test_levels_of_one_coder_are_one_family_and_other_options_are_not() -> None:
    words = [
        "lse_infomax:lambda_lse=3.0",
        "lse_infomax",
        "lse_infomax:scale=hinge:lambda_lse=0.1",
        "relu_l1:l1=2.0",
        "pca",
    ]
    points = [point(cell) for cell in cells([record(word, 0, l0=2.0, fvu=0.5) for word in words])]
    assert [p.family for p in points] == ["lse_infomax", "lse_infomax", "lse_infomax:scale=hinge", "relu_l1", "pca"]


def diverged(word: str, seed: int, lr: float) -> Record:
    return replace(record(word, seed, lr), status="diverged", metrics={})


def test_a_rate_that_few_seeds_survive_is_not_chosen_for_how_well_they_did() -> None:
    safe = [record("topk:k=2", seed, 1e-3, validation_fvu=0.3, fvu=0.3) for seed in range(4)]
    wild = [record("topk:k=2", 0, 1e-1, validation_fvu=0.1, fvu=0.1)] + [
        diverged("topk:k=2", s, 1e-1) for s in (1, 2, 3)
    ]
    (found,) = chosen(safe + wild)
    assert found.cell.rate == 1e-3 and len(found.cell.records) == 4 and found.cell.diverged == 0
    assert found.cell.at_the_edge, "of two rates each is at an edge"


def test_a_seed_counts_at_the_rate_of_the_others_and_is_counted_where_it_diverges_there() -> None:
    low = [record("topk:k=2", seed, 1e-3, validation_fvu=0.4, fvu=0.4) for seed in range(3)]
    high = [record("topk:k=2", seed, 1e-2, validation_fvu=0.2, fvu=0.2) for seed in (0, 1)] + [
        diverged("topk:k=2", 2, 1e-2)
    ]
    (found,) = chosen(low + high)
    assert found.cell.values("fvu") == {0: 0.4, 1: 0.4} and found.cell.diverged == 1
    (lost,) = chosen([diverged("topk:k=2", 0, 1e-3)])
    assert lost.cell.diverged == 1 and not lost.cell.records, "a coder that only diverged is still a row"


def test_data_of_one_name_and_other_options_are_other_settings() -> None:
    some = record("topk:k=2", 0, validation_fvu=0.3)
    options = {**some.run.options, "data": {"name": "dictionary", "d_in": 8}}
    found = [
        replace(some, run=replace(some.run, options={**options, "data": {**options["data"], "d_in": d}}))
        for d in (8, 16)
    ]
    assert len({point.where for point in chosen(found)}) == 2
