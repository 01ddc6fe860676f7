"""Curves over active units, compared where they meet."""

import math
from dataclasses import replace

import pytest

from assay.core.run import Record, Run
from assay.report.cells import Cell, cells
from assay.report.tuned import Tuned
from assay.sparse_coders import sparse_coders
from assay.studies.sae.report import Point, at_l0, chosen

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


def curve(points: dict[str, tuple[float, float]], seed: int = 0) -> list[Point]:
    records = [record(word, seed, l0=x, fvu=y) for word, (x, y) in points.items()]
    return [point(cell) for cell in cells(records)]


def point(cell: Cell) -> Point:
    return Point(Tuned(cell.records, (cell.options["lr"],)), {}, False)


def test_between_two_levels_a_metric_is_linear_in_the_log_of_l0() -> None:
    levels = curve({"topk:k=2": (2.0, 0.4), "topk:k=8": (8.0, 0.2), "topk:k=16": (16.0, 0.1)})
    assert at_l0(levels, 4.0, "fvu") == {0: pytest.approx(0.3)}
    assert at_l0(levels, 8 * math.sqrt(2), "fvu") == {0: pytest.approx(0.15)}
    assert at_l0(levels, 1.0, "fvu") == at_l0(levels, 17.0, "fvu") == {}, "nothing is guessed beyond the levels"


def test_an_end_that_is_missed_by_a_hair_is_met() -> None:
    levels = curve({"topk:k=2": (2.0, 0.4), "topk:k=8": (7.99, 0.2)})
    assert at_l0(levels, 8.0, "fvu") == {0: 0.2} and at_l0(levels, 8.5, "fvu") == {}


def test_the_rate_with_the_least_validation_error_is_reported_and_edges_are_marked() -> None:
    rates = {1e-4: 0.5, 1e-3: 0.3, 1e-2: 0.4}
    records = [record("topk:k=2", s, lr, validation_fvu=v + s / 100, fvu=v) for lr, v in rates.items() for s in (0, 1)]
    (found,) = chosen(records)
    assert found.cell.rate == 1e-3 and not found.at_edge and found.family == "topk"
    (edge,) = chosen(
        [r for r in records if r.run.options["lr"] != 1e-4] + [record("topk:k=2", 0, 1e-1, validation_fvu=0.9)]
    )
    assert edge.cell.rate == 1e-3 and edge.at_edge


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
    assert found.at_edge, "of two rates each is at an edge"


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
