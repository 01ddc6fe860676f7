"""Coders on planted atoms are read at the true L0 and at their best level, and few units are held to a floor."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from assay.core import shipped
from assay.core.run import Record, Run
from assay.core.store import Store
from assay.report.rows import Row
from assay.report.section import Section
from assay.sparse_coders import sparse_coders
from assay.studies.sae.curves import at_l0
from assay.studies.sae.planted import planted
from assay.studies.sae.report import report

RECIPE = {"epochs": 10, "batch": 2, "optimizer": "adam", "partial": False}


def record(word: str, seed: int, *, l0: float, found: float, fvu: float, lr: float = 1e-3, epochs: int = 10) -> Record:
    options = {
        "data": {"name": "dictionary"},
        "coder": sparse_coders.parse(word).spec(),
        "d_code": 4,
        "lr": lr,
        "recipe": {**RECIPE, "epochs": epochs},
    }
    metrics = {
        "l0": l0, "fvu": fvu, "validation_fvu": fvu, "params": 1, "true_l0": 8.0, "atoms_found": found,
        "firing_f1": found,
    }  # fmt: skip
    return Record(Run("sae", options, seed, {}), "done", metrics)


def penalised(seed: int, *, gain: float = 0.0, epochs: int = 10) -> list[Record]:
    """At the low rate codes are denser with less error and fewer atoms: FVU across levels would choose that rate."""
    low = [("relu_l1:l1=0.1", 60.0, 0.5, 0.05), ("relu_l1:l1=1.0", 16.0, 0.3, 0.15)]
    high = [("relu_l1:l1=0.1", 17.0, 0.96, 0.12), ("relu_l1:l1=1.0", 6.0, 0.80, 0.30)]
    return [
        record(word, seed, l0=l0 + seed / 100, found=found + gain, fvu=fvu, lr=lr, epochs=epochs)
        for lr, levels in ((1e-3, low), (1e-2, high))
        for word, l0, found, fvu in levels
    ]


def test_the_rate_is_chosen_at_the_true_l0_and_the_best_level_by_the_truth() -> None:
    ((_, label), own), *more = planted([r for seed in range(3) for r in penalised(seed)]).items()
    assert label == "relu_l1" and not more and own.longer is None, "a run is not its own doubling"
    assert own.there is not None and own.there.tuned_value == 1e-2, "the low rate does not reach an L0 of 8"
    there = own.there.interval("atoms_found")
    assert there is not None and 0.80 < there.mean < 0.96 and not own.is_level
    assert own.best.tuned_value == 1e-2 and own.best.interval("atoms_found").mean == pytest.approx(0.96)
    assert own.best.values("l0")[0] == 17.0 and own.level_at_edge, "of two levels each is at an edge"


def test_a_level_that_has_the_true_l0_is_named_so() -> None:
    records = [record(f"topk:k={k}", seed, l0=float(k), found=k / 20, fvu=1 / k) for seed in (0, 1) for k in (4, 8, 16)]
    (own,) = planted(records).values()
    assert own.is_level and own.there is not None and own.there.interval("atoms_found").mean == pytest.approx(0.4)
    assert own.best.interval("atoms_found").mean == pytest.approx(0.8) and own.level_at_edge


def test_one_level_is_enough_where_it_has_the_true_l0() -> None:
    (own,) = planted([record("topk:k=8", seed, l0=7.99, found=0.5, fvu=0.1) for seed in (0, 1)]).values()
    assert own.is_level and own.there is not None and own.there.interval("atoms_found").mean == 0.5
    assert own.level_at_edge, "of one level nothing says that another is not better"
    (other,) = planted([record("topk:k=9", seed, l0=9.0, found=0.5, fvu=0.1) for seed in (0, 1)]).values()
    assert other.there is None


def test_a_coder_that_does_not_reach_the_true_l0_has_no_number_there() -> None:
    records = [record(f"topk:k={k}", seed, l0=float(k), found=0.5, fvu=1 / k) for seed in (0, 1) for k in (16, 32)]
    (own,) = planted(records).values()
    assert own.there is None and own.best.interval("atoms_found").mean == 0.5
    lines = {table.name: table.rows for table in reported(records).tables}
    assert lines["true_l0"][0]["atoms found"] is None and lines["true_l0"][0]["best found"].mean == 0.5


def test_doubled_training_says_how_much_the_number_still_moves() -> None:
    short = [r for seed in range(3) for r in penalised(seed)]
    long = [r for seed in range(3) for r in penalised(seed, gain=0.03, epochs=20)]
    found = {where: own for (where, _), own in planted(short + long).items()}
    assert found["epochs=10"].longer is not None and found["epochs=10"].longer.mean == pytest.approx(0.03)
    assert found["epochs=20"].longer is None
    other = [r for seed in range(3) for r in penalised(seed, epochs=30)]
    assert all(own.longer is None for own in planted(short + other).values()), "three times is not twice"


def test_data_without_planted_atoms_has_none_of_these_tables() -> None:
    plain = [
        replace(r, metrics={key: value for key, value in r.metrics.items() if key != "true_l0"}) for r in penalised(0)
    ]
    assert {table.name for table in reported(plain).tables} <= {"sae", "equal_l0"}


def reported(records: list[Record]) -> Section:
    section = Section("sae")
    report(records, section)
    return section


@pytest.mark.usefixtures("undrawn")
def test_a_trained_code_tells_concepts_from_few_units_and_random_features_do_not(
    cli: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    """Of all units a probe may read as much from random features; of five it does not."""
    words = ["--data", "concepts:rows=2000:d_in=32:concepts=4:children=2:free=12", "--d_code", "24", "--epochs", "20"]
    words += ["--coders", "relu_l1", "relu_l1:l1=1.0", "random_relu", "--lrs", "1e-2", "--seeds", "0..2"]
    code, _, err = cli("sae", *words, "--device", "cpu", "--executor", "serial", "--quiet", "--out", tmp_path)
    assert code == 0, err
    records = Store(tmp_path).records("sae")
    tables: dict[str, list[dict[str, Any]]] = {t.name: [*t.rows] for t in reported([*records]).tables}
    (trained,) = [row for row in tables["few_units"] if row["coder"] == "relu_l1"]
    assert trained["5 units - random_relu"].low > 0 and trained["5 units"].mean > 0.85
    (floor,) = [row for row in tables["few_units"] if row["coder"] == "random_relu"]
    assert floor["5 units - random_relu"] is None
    assert {"absorbed", "parent F1", "TPP 2", "SCR 2"} <= tables["concepts"][0].keys()
    assert "best found" in tables["true_l0"][0]


@pytest.mark.parametrize(
    ("name", "count", "said"),
    [("dictionary", 485, "twice as long"), ("stream", 33, "twice the steps"), ("concepts", 345, "With 120 epochs")],
)
def test_the_page_shows_what_the_shipped_records_say(
    name: str, count: int, said: str, script: Callable[[str], ModuleType]
) -> None:
    page_of = script(f"docs/{name}_sae.py")
    page = page_of.PAGE.read_text(encoding="utf-8")
    assert page_of.placed(page) == page, f"run python docs/{name}_sae.py"
    shown = page.partition(f"<!-- {name}: begin -->")[2].partition(f"<!-- {name}: end -->")[0]
    assert len(shipped.records(f"sae.{name}")) == count and said in shown


def test_what_the_page_calls_final_twice_the_training_changes_by_less_than_its_interval() -> None:
    found = planted(shipped.records("sae.dictionary"))
    for coder, epochs in (("batch_topk", 96), ("relu_l1", 192)):
        one = found[f"epochs={epochs}", coder]
        assert one.there is not None and one.longer is not None and not one.there.at_the_edge
        own = one.there.interval("atoms_found")
        assert abs(one.longer.mean) < (own.high - own.low) / 2, coder
    for epochs in (192, 384):
        row = found[f"epochs={epochs}", "topk"].there
        assert row is not None and row.tuned_value == 1e-4 and row.at_the_edge


def test_a_rate_that_could_not_be_read_at_the_target_hides_no_edge() -> None:
    """At .01 only a level far below 8 active units was trained, so .003 is the highest rate that was read there."""

    def level(active: Mapping[float, tuple[float, float]]) -> Row:
        tried: dict[float, dict[int, Record]] = {}
        for (rate, (units, left)), seed in product(active.items(), (0, 1)):
            metrics = {"l0": units, "fvu": left, "validation_fvu": left}
            tried.setdefault(rate, {})[seed] = Record(Run("sae", {"lr": rate}, seed, {}), "done", metrics)
        return Row(tuple(tried[0.003].values()), label="coder", names={"coder": "k"}, tune="lr", tried=tried)

    sparse = level(dict.fromkeys((0.001, 0.003, 0.01), (4.0, 0.4)))
    row = at_l0([sparse, level({0.001: (9.0, 0.3), 0.003: (9.0, 0.1)})], 8.0)
    assert row is not None and row.tuned_value == 0.003 and row.tried[0.01] == {} and row.at_the_edge
    row = at_l0([sparse, level({0.001: (9.0, 0.3), 0.003: (9.0, 0.1), 0.01: (9.0, 0.2)})], 8.0)
    assert row is not None and row.tuned_value == 0.003 and not row.at_the_edge


def test_what_the_page_says_of_planted_concepts_holds_and_twice_the_training_leaves_it(
    script: Callable[[str], ModuleType],
) -> None:
    page_of = script("docs/concepts_sae.py")
    once, twice = (page_of.at_true_l0(page_of.trained_for(epochs)) for epochs in (60, 120))
    assert {name: round(once[name].interval("absorption").mean, 2) for name in twice} == {
        "matryoshka": 0.01, "topk": 0.68, "relu_l1:l1=1.0": 0.59,
    }  # fmt: skip
    assert not any(row.at_the_edge for row in once.values())
    for name, metric in product(twice, ("absorption", "concept_f1")):
        before, after = (rows[name].interval(metric) for rows in (once, twice))
        assert before.low <= after.mean <= before.high, (name, metric)
    best, *others = sorted((row.interval("probe_1_units") for row in once.values()), key=lambda one: -one.mean)
    assert best.low > max(other.high for other in others), "one unit of matryoshka tells more than one of the others"


def test_the_page_says_how_often_the_stream_was_read_and_that_test_and_validation_order_coders_apart(
    script: Callable[[str], ModuleType],
) -> None:
    page_of = script("docs/stream_sae.py")
    records = [record for row in page_of.shown() for record in row.records]
    assert len(records) == 18
    (streamed,) = {(each.cost["tokens_streamed"], each.cost["text_passes"]) for each in records}
    page = page_of.PAGE.read_text(encoding="utf-8")
    assert f"{streamed[0] / streamed[1] / 1e6:.1f} million tokens {streamed[1]:.2f} times over" in page
    (decay,) = {each.run.options["recipe"]["decay"] for each in records}
    assert decay == 0.2 and "the rate falls in the last fifth" in " ".join(page.split())

    def ranked(metric: str) -> list[str]:
        found: dict[str, list[float]] = {}
        for each in records:
            found.setdefault(each.run.options["coder"]["name"], []).append(each.metrics.get(metric, 1))
        return [name for name in sorted(found, key=lambda name: sum(found[name])) if "topk" in name or "jump" in name]

    assert ranked("fvu_own")[-1] == ranked("validation_fvu_own")[0] == "topk", "the order of the three is not told"
