"""Curves over active units, compared where they meet."""

import math

import pytest

from assay.core.run import Record, Run
from assay.report.cells import cells
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
    return [Point(cell, {}, False) for cell in cells(records)]


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
    (point,) = chosen(records)
    assert point.cell.options["lr"] == 1e-3 and not point.at_edge and point.family == "topk"
    (edge,) = chosen(
        [r for r in records if r.run.options["lr"] != 1e-4] + [record("topk:k=2", 0, 1e-1, validation_fvu=0.9)]
    )
    assert edge.cell.options["lr"] == 1e-3 and edge.at_edge


def test_levels_of_one_coder_are_one_family_and_other_options_are_not() -> None:
    words = [
        "lse_infomax:lambda_lse=3.0",
        "lse_infomax",
        "lse_infomax:scale=hinge:lambda_lse=0.1",
        "relu_l1:l1=2.0",
        "pca",
    ]
    points = [Point(cell, {}, False) for cell in cells([record(word, 0, l0=2.0, fvu=0.5) for word in words])]
    assert [p.family for p in points] == ["lse_infomax", "lse_infomax", "lse_infomax:scale=hinge", "relu_l1", "pca"]
