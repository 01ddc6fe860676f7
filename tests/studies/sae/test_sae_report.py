"""Curves over active units, compared where they meet."""

import math
from dataclasses import replace

import pytest

from assay.core.run import Record, Run
from assay.report.section import Section
from assay.sparse_coders import sparse_coders
from assay.studies.sae.charts import benchmark_chart
from assay.studies.sae.curves import at_equal_l0, chosen, rate_shown
from assay.studies.sae.report import report

RECIPE = {"epochs": 1, "batch": 2, "optimizer": "adam", "partial": False}
PARAMS = {"parameters": 5}


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


def test_a_single_level_is_read_where_it_has_as_many_units_and_an_option_for_them() -> None:
    assert read(levels({"topk:k=8": (8.0, 0.2)}), 8.0) == {0: 0.2}
    assert at_equal_l0(chosen(levels({"pca": (8.0, 0.1)})), 8.0) == {}


def test_the_headline_names_the_coders_that_are_in_no_comparison_and_levels_that_do_not_meet() -> None:
    def said(*points: dict[str, tuple[float, float]]) -> str:
        out = Section("sae")
        report([r for own in points for seed in range(3) for r in levels(own, seed)], out)
        return out.findings[0].sentence

    rivals = {"topk:k=8": (8.0, 0.2), "relu_l1": (8.0, 0.3)}
    assert "In no comparison, for want of a level near these: gated 11." in said(rivals, {"gated": (11.0, 0.1)})
    assert "In no comparison" not in said(rivals)
    apart = {"topk:k=2": (2.0, 0.4), "topk:k=3": (3.0, 0.3), "relu_l1": (11.0, 0.2), "relu_l1:l1=0.1": (15.0, 0.1)}
    assert "Choose levels that meet: topk 2 to 3, relu_l1 11 to 15." in said(apart)


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
    assert {row.names["coder"]: row.tuned_value for row in chosen(found)} == {
        "topk": 1e-3,
        "topk:k=16": 1e-3,
        "topk:k=32": 3e-3,
    }
    there = at_equal_l0(chosen(found), 16.0)["topk"]
    assert there.tuned_value == 3e-3 and there.values("fvu") == {seed: pytest.approx(0.3) for seed in range(3)}
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
    assert {r.run.seed: r.run.options["lr"] for r in there.records} == {0: 3e-3, 1: 1e-3, 2: 1e-3}


def test_rates_without_validation_rows_are_not_chosen_between() -> None:
    ends = {"topk:k=8": (8.0, 0.4), "topk:k=32": (32.0, 0.2)}
    blind = [
        replace(r, metrics={name: value for name, value in r.metrics.items() if name != "validation_fvu"})
        for lr in (1e-3, 3e-3)
        for r in levels(ends, 0, lr)
    ]
    assert read(blind, 16.0) == {}
    assert read(blind[:2], 16.0) == {0: pytest.approx(0.3)}, "of one rate there is nothing to choose"


def test_without_validation_rows_each_rate_is_a_line_of_its_own() -> None:
    """One line through both would have two points at each number of active units."""
    ends = {"topk:k=8": (8.0, 0.4), "topk:k=32": (32.0, 0.2)}
    others = {"relu_l1": (8.0, 0.5), "relu_l1:l1=0.1": (32.0, 0.3)}
    found = [r for lr in (1e-3, 3e-3) for r in levels(ends, 0, lr)] + levels(others)
    blind = [replace(r, metrics={"l0": r.metrics["l0"], "fvu": r.metrics["fvu"]}) for r in found]
    (chart,) = reported(blind).charts
    points = [row for data in chart.spec["datasets"].values() for row in data if "low" in row]
    assert {row["series"] for row in points} == {"topk lr=0.001", "topk lr=0.003", "relu_l1"}
    assert all(len({p["y"] for p in points if (p["series"], p["x"]) == (q["series"], q["x"])}) == 1 for q in points)


def test_the_rate_with_the_least_validation_error_is_reported_and_edges_are_marked() -> None:
    rates = {1e-4: 0.5, 1e-3: 0.3, 1e-2: 0.4}
    records = [record("topk:k=2", s, lr, validation_fvu=v + s / 100, fvu=v) for lr, v in rates.items() for s in (0, 1)]
    (found,) = chosen(records)
    assert found.tuned_value == 1e-3 and not found.at_the_edge and found.label == "topk"
    (edge,) = chosen(
        [r for r in records if r.run.options["lr"] != 1e-4] + [record("topk:k=2", 0, 1e-1, validation_fvu=0.9)]
    )
    assert edge.tuned_value == 1e-3 and edge.at_the_edge


def test_levels_of_one_coder_are_one_family_and_other_options_are_not() -> None:
    words = [
        "lse_infomax:lambda_lse=3.0",
        "lse_infomax",
        "lse_infomax:scale=hinge:lambda_lse=0.1",
        "relu_l1:l1=2.0",
        "pca",
    ]
    found = chosen([record(word, 0, l0=2.0, fvu=0.5) for word in words])
    assert [row.label for row in found] == ["lse_infomax", "lse_infomax", "lse_infomax:scale=hinge", "relu_l1", "pca"]


def diverged(word: str, seed: int, lr: float) -> Record:
    return replace(record(word, seed, lr), status="diverged", metrics={})


def test_a_rate_that_few_seeds_survive_is_not_chosen_for_how_well_they_did() -> None:
    safe = [record("topk:k=2", seed, 1e-3, validation_fvu=0.3, fvu=0.3) for seed in range(4)]
    wild = [record("topk:k=2", 0, 1e-1, validation_fvu=0.1, fvu=0.1)] + [
        diverged("topk:k=2", s, 1e-1) for s in (1, 2, 3)
    ]
    (found,) = chosen(safe + wild)
    assert found.tuned_value == 1e-3 and len(found.finished) == 4 and found.diverged == 0
    assert found.at_the_edge, "of two rates each is at an edge"


def test_a_seed_counts_at_the_rate_of_the_others_and_is_counted_where_it_diverges_there() -> None:
    low = [record("topk:k=2", seed, 1e-3, validation_fvu=0.4, fvu=0.4) for seed in range(3)]
    high = [record("topk:k=2", seed, 1e-2, validation_fvu=0.2, fvu=0.2) for seed in (0, 1)] + [
        diverged("topk:k=2", 2, 1e-2)
    ]
    (found,) = chosen(low + high)
    assert found.values("fvu") == {0: 0.4, 1: 0.4} and found.diverged == 1
    (lost,) = chosen([diverged("topk:k=2", 0, 1e-3)])
    assert lost.diverged == 1 and not lost.finished, "a coder that only diverged is still a row"


def test_data_of_one_name_and_other_options_are_other_settings() -> None:
    some = record("topk:k=2", 0, validation_fvu=0.3)
    options = {**some.run.options, "data": {"name": "dictionary", "d_in": 8}}
    found = [
        replace(some, run=replace(some.run, options={**options, "data": {**options["data"], "d_in": d}}))
        for d in (8, 16)
    ]
    assert len({row.where for row in chosen(found)}) == 2


def fitted(word: str, seed: int, **metrics: float) -> Record:
    """A coder that is fitted at once: it has neither a rate nor a recipe."""
    found = record(word, seed, validation_fvu=0.5, fvu=0.5, **metrics)
    return replace(found, run=replace(found.run, options={**found.run.options, "lr": None, "recipe": None}))


def trained_for(epochs: int, found: Record) -> Record:
    options = {**found.run.options, "recipe": {**RECIPE, "epochs": epochs}}
    return replace(found, run=replace(found.run, options=options))


def reported(records: list[Record]) -> Section:
    section = Section("sae")
    report(records, section)
    return section


def test_what_is_fitted_at_once_stands_beside_every_recipe_and_captions_name_the_recipe() -> None:
    """A caption once had the setting of its first row: `epochs=None` where that was a coder without a recipe."""
    ends = {"topk:k=8": (8.0, 0.4), "topk:k=32": (32.0, 0.2)}
    found = [fitted("pca", 0), *(trained_for(epochs, r) for epochs in (1, 5) for r in levels(ends))]
    section = reported(found)
    assert [table.name for table in section.tables] == ["sae", "equal_l0_1", "equal_l0_2"]
    assert [row["recipe.epochs"] for row in section.tables[0].rows] == [None, 1, 1, 5, 5]
    charts = {chart.name: chart for chart in section.charts}
    for name, epochs in (("fvu_by_l0_1", 1), ("fvu_by_l0_2", 5)):
        assert charts[name].caption.startswith(f"epochs={epochs}: Fraction of variance unexplained")
        assert {"pca", "topk"} == {row["series"] for rows in charts[name].spec["datasets"].values() for row in rows}


def test_coders_fitted_at_once_alone_have_a_chart_for_each_of_their_settings() -> None:
    found = [fitted("pca", 0), fitted("random_relu", 0)]
    wide = [replace(r, run=replace(r.run, options={**r.run.options, "d_code": 8})) for r in found]
    names = [chart.name for chart in reported(found + wide).charts]
    assert names == ["fvu_by_l0_1", "fvu_by_l0_2"]
    assert [chart.name for chart in reported(found).charts] == ["fvu_by_l0"]


def test_of_one_fitted_coder_in_two_versions_the_last_stands_beside_the_trained_ones() -> None:
    old, new = fitted("pca", 0), fitted("pca", 0)
    new = replace(new, run=replace(new.run, versions={"pca": "2"}), metrics={**new.metrics, "fvu": 0.25})
    (table, *_) = reported([old, record("topk", 0, fvu=0.5), new]).tables
    assert [(row["coder"], row["FVU"].mean) for row in table.rows] == [("pca", 0.25), ("topk", 0.5)]


def test_a_column_and_what_it_means_are_there_where_a_coder_has_it() -> None:
    plain, atoms = record("topk", 0, fvu=0.5), record("topk", 0, fvu=0.5, atom_cosine=0.9)
    (without,), (having,) = reported([plain]).tables, reported([atoms]).tables
    assert "atoms" not in without.keys and "true atoms" not in without.note
    assert having.rows[0]["atoms"].mean == 0.9 and "matched |cosine| with the true atoms." in having.note
    assert {"lr", "dead", "params"} <= set(without.keys) and "±" not in without.note, "one seed"
    (pooled,) = reported([plain, record("topk", 1, fvu=0.4)]).tables
    assert pooled.note.startswith("± half the 95 %")


def test_a_seed_is_drawn_at_its_own_number_of_active_units() -> None:
    found = [record("topk", seed, l0=float(l0), fvu=0.3 + seed / 10) for seed, l0 in enumerate((6, 10, 0))]
    (chart,) = reported(found).charts
    rows = [row for data in chart.spec["datasets"].values() for row in data]
    assert {(row["x"], row["seed"]) for row in rows if "seed" in row} == {(6.0, 0), (10.0, 1)}, "0 has no logarithm"
    assert {row["x"] for row in rows if "low" in row} == {5.33}


def test_seeds_are_counted_at_equal_l0_where_curves_have_unequally_many() -> None:
    ends = {"topk:k=8": (8.0, 0.4), "topk:k=32": (32.0, 0.2)}
    others = {"relu_l1": (8.0, 0.5), "relu_l1:l1=0.1": (32.0, 0.3)}
    both = [r for seed in (0, 1) for r in levels(ends, seed)] + levels(others, 0)
    _, equal = reported(both).tables
    assert {(row["coder"], row["n"]) for row in equal.rows} == {("topk", 2), ("relu_l1", 1)}
    assert {row["L0"] for row in equal.rows} == {8.0, 16.0, 32.0}
    _, equal = reported([r for r in both if r.run.seed == 0]).tables
    assert "n" not in equal.keys


def test_a_coder_whose_file_is_not_given_is_a_row_under_its_name_alone() -> None:
    known = record("topk", 0, fvu=0.5)
    options = {**known.run.options, "coder": {"name": "strange", "k": 8}}
    (row,) = chosen([replace(known, run=replace(known.run, options=options))])
    assert row.names == {"coder": "strange"} and row.label == "strange"


def test_every_dot_of_the_specs_bars_names_its_seed() -> None:
    runs = [{"seed": seed, "linear_probe_accuracy": seed / 8} for seed in (3, 4)]
    spec = benchmark_chart(
        {"per_seed": {"ours": runs, "bare": [{"seed": 3}]}, "ours": PARAMS, "bare": PARAMS}
    ).to_dict()
    dots = [row for data in spec["datasets"].values() for row in data if row.get("seed") is not None]
    assert [(row["label"], row["seed"], row["y"]) for row in dots] == [("ours", 3, 0.375), ("ours", 4, 0.5)]
