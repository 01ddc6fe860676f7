"""The sweep over widths from the command: any widths, any seeds, the same models whoever they are trained with."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

import assay
from assay.core.run import Record, canonical
from assay.core.store import Store
from assay.core.study import Outcome
from assay.report.section import Section
from assay.studies.modular.bilinear import answered
from assay.studies.modular.bilinear_bank import PairSplit
from assay.studies.modular.files import load
from assay.studies.modular.records import WEIGHTS, saved_model
from assay.studies.modular.report import references
from assay.studies.modular.sweep import Sweep

TINY = ["--P", "7", "--batch", "9", "--epochs", "3", "--device", "cpu", "--executor", "serial", "--quiet"]
Cli = Callable[..., tuple[int, str, str]]
pytestmark = pytest.mark.usefixtures("undrawn")


def records(out: Path) -> dict[tuple[int, int], Record]:
    return {(r.run.options["d_hidden"], r.run.seed): r for r in Store(out).records("modular.sweep")}


def contents(record: Record) -> tuple[str, bytes]:
    return canonical(dict(record.metrics)), record.artifact(WEIGHTS)


def test_any_list_of_widths_is_swept_and_reported(cli_json: Callable[..., Any], tmp_path: Path) -> None:
    words = [*TINY, "--dimensions", "2", "17", "4..5", "--seeds", "0..1", "--out", tmp_path]
    rows = cli_json("modular", "sweep", *words)["rows"]
    assert [row["d_hidden"] for row in rows] == [2, 4, 5, 17]
    assert all(
        row["val acc"]["n"] == 2 and row["perfect"] == "0/2" and row["effective rank"]["mean"] > 1 for row in rows
    )
    assert rows[0]["share perfect"]["low"] == 0 < rows[0]["share perfect"]["high"]
    charts = {path.stem for path in (tmp_path / "modular.sweep").glob("*.png")}
    assert charts == {
        "val_acc_by_width", "perfect_by_width", "perfect_within_1", "effective_rank_by_width", "survival", "capacity",
        "tn_by_width", "activation_by_width", "js_by_width", "frequencies_d17",
    }  # fmt: skip


def test_charts_of_two_settings_are_told_apart_by_their_captions(tmp_path: Path) -> None:
    small = {"batch": 9, "epochs": 2, "dimensions": (2, 3), "seeds": (0,), "device": "cpu", "executor": "serial"}
    for P in (5, 7):
        assay.run("modular.sweep", P=P, out=tmp_path, **small)
    section = Section("modular.sweep")
    Sweep().report(Store(tmp_path).records("modular.sweep"), section)
    captions = {chart.name: chart.caption for chart in section.charts}
    assert len(set(captions.values())) == len(captions)
    for name in ("survival", "js_by_width", "frequencies_d3"):
        assert {captions[f"{name}_{place}"].partition(": ")[0] for place in (1, 2)} == {"P=5", "P=7"}


def test_a_record_has_its_curve_and_its_weights(cli: Cli, tmp_path: Path) -> None:
    assert cli("modular", "sweep", *TINY, "--dimensions", "3", "--seeds", "0", "--out", tmp_path)[0] == 0
    (record,) = records(tmp_path).values()
    metrics, model = record.metrics, saved_model(record)
    assert model.w_l.shape == (3, 14) and metrics["params"] == 5 * 7 * 3
    assert metrics["full_acc"] == answered(model).mean() and metrics["test_acc"] is None
    assert metrics["epochs"] == len(metrics["curve"]) == 3 and metrics["val_acc"] == metrics["curve"][-1]
    assert metrics["best_val_acc"] == max(metrics["curve"]) and metrics["epochs_to_perfect"] is None
    assert record.cost["trained_together"] == 1 and record.cost["seconds"] > 0


def test_a_sweep_in_two_parts_has_the_bits_of_one(tmp_path: Path) -> None:
    def sweep(out: Path, *dimensions: int) -> None:
        small = {"P": 7, "batch": 9, "epochs": 3, "seeds": (0, 1), "device": "cpu", "executor": "serial"}
        assay.run("modular.sweep", dimensions=dimensions, out=out, **small)

    sweep(tmp_path / "whole", 1, 2, 3, 4, 5, 6)
    sweep(tmp_path / "parts", 2, 5)
    sweep(tmp_path / "parts", 1, 2, 3, 4, 5, 6)
    whole, parts = records(tmp_path / "whole"), records(tmp_path / "parts")
    assert len(whole) == 12 and {key: contents(r) for key, r in whole.items()} == {
        key: contents(r) for key, r in parts.items()
    }


def test_all_widths_and_seeds_of_a_recipe_are_one_cohort() -> None:
    small = Sweep(P=7, batch=9, dimensions=(1, 2), seeds=(0, 1))
    assert len({small.cohort(run) for run in small.plan()}) == 1
    other = Sweep(P=7, batch=9, dimensions=(1, 2), seeds=(0, 1), lr=1e-2)
    assert len({small.cohort(run) for run in [*small.plan(), *other.plan()]}) == 2


def test_a_grid_over_a_recipe_gives_a_line_for_each(cli: Cli, tmp_path: Path) -> None:
    words = [*TINY, "--dimensions", "2", "3", "--seeds", "0", "--grid", "weight_decay=0.1,0.5", "--out", tmp_path]
    code, _, err = cli("modular", "sweep", *words)
    assert code == 0, err
    table = list(csv.DictReader((tmp_path / "modular.sweep" / "modular_sweep.csv").open()))
    assert [(row["weight_decay"], row["d_hidden"]) for row in table] == [(w, d) for w in ("0.1", "0.5") for d in "23"]
    smallest = list(csv.DictReader((tmp_path / "modular.sweep" / "smallest_width.csv").open()))
    assert [row["setting"] for row in smallest] == ["weight_decay=0.1", "weight_decay=0.5"]


def test_a_model_that_diverges_is_a_record_and_the_others_go_on(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from assay.studies.modular import sweep

    def wild(P: int, widths: Any, seeds: Any) -> Any:
        models = fresh(P, widths, seeds)
        with torch.no_grad():
            models[0].bi_linear.weight.mul_(1e25)
        return models

    fresh = sweep.fresh_models
    monkeypatch.setattr(sweep, "fresh_models", wild)
    code, _, err = cli("modular", "sweep", *TINY, "--dimensions", "2", "3", "--seeds", "0", "--out", tmp_path)
    assert code == 1 and "diverged: modular.sweep d_hidden=2" in err
    assert {key: r.status for key, r in records(tmp_path).items()} == {(2, 0): "diverged", (3, 0): "done"}


def test_a_file_that_no_model_is_there_for_is_said_to_be_missing(cli: Cli, tmp_path: Path) -> None:
    saved = tmp_path / "all.safetensors"
    asked = [*TINY, "--dimensions", "2", "3", "--seeds", "0", "--out", tmp_path, "--save", saved]
    code, _, err = cli("modular", "sweep", *asked, "--lr", "1e30")
    assert code == 1 and not saved.exists()
    assert err.splitlines()[-1] == f"{saved} was not written: no run came to its end."
    code, _, err = cli("modular", "sweep", *asked)
    assert code == 0 and saved.is_file() and "not written" not in err


def test_a_seed_that_diverged_counts_as_not_perfect(tmp_path: Path) -> None:
    """Two seeds of a width, one perfect after two epochs and one diverged: 1/2, and waiting to the end."""
    store, study = Store(tmp_path), Sweep(P=7, batch=9, epochs=8, dimensions=(2, 3), seeds=(0, 1))
    done = dict.fromkeys(("val_acc", "best_val_acc", "full_acc", "effective_rank", "train_acc"), 1.0)
    weights = {"bi_linear.weight": torch.ones(4, 14), "projection.weight": torch.ones(7, 2)}
    wide = {"bi_linear.weight": torch.ones(6, 14), "projection.weight": torch.ones(7, 3)}
    for run in study.plan():
        artifact = {WEIGHTS: safetensors.torch.save(weights if run.options["d_hidden"] == 2 else wide)}
        if run.seed == 0:
            metrics = done | {"perfect": 1, "epochs_to_perfect": 2, "epochs": 2, "test_acc": None}
            store.commit(Outcome(run, metrics, artifacts=artifact))
        else:
            store.commit(Outcome(run, {"val_acc": 0.1, "perfect": 0, "epochs": 1}, diverged=True))
    section = Section("modular.sweep")
    study.report(store.records(), section)
    tables = {table.name: table.json_rows() for table in section.tables}
    assert [(row["perfect"], row["diverged"]) for row in tables["modular_sweep"]] == [("1/2", 1), ("1/2", 1)]
    assert tables["modular_sweep"][0]["share perfect"]["n"] == 2
    assert tables["modular_sweep"][0]["val acc"]["mean"] == pytest.approx(0.55)
    assert tables["smallest_width"][0]["some seed perfect"] == 2
    assert tables["smallest_width"][0]["every seed perfect"] is None
    (chart,) = [chart for chart in section.charts if chart.name == "survival"]
    ends = [p for p in str(chart.spec).split("{") if "'x': 8.0" in p and "'series': 'd 2'" in p]
    assert ends and all("'y': 0.5" in end for end in ends)


def test_capacity_compares_training_with_cutting_and_four_units(cli_json: Callable[..., Any], tmp_path: Path) -> None:
    rows = cli_json("modular", "sweep", *TINY, "--dimensions", "2", "8", "--seeds", "0", "--out", tmp_path)
    found = {row["model"]: row for row in rows["tables"]["capacity"]}
    assert list(found) == ["trained", "cut to units", "cut to eigenvalues", "constructed"]
    assert found["constructed"]["smallest width, all 1"] == 4 and found["constructed"]["at width 4"]["mean"] == 1


def test_references_are_scored_on_the_pairs_of_each_seed() -> None:
    """By hand for P = 7: the answer that fewest training pairs have, on what each seed keeps apart."""
    study = Sweep(P=7, batch=9, test_share=0.125)
    options = study.plan()[0].options
    rows = {row["model"]: row for row in references(options, [0, 1, 2])}
    train, val, test = study.sizes(7)
    assert train + val + test == 49
    scores = []
    for seed in range(3):
        split = PairSplit.of(7, seed, study)
        sums = [(row // 7 + row % 7) % 7 for row in split.train.tolist()]
        rarest = min(range(7), key=lambda answer: (sums.count(answer), answer))
        scores.append(np.mean([(row // 7 + row % 7) % 7 == rarest for row in split.val.tolist()]))
    assert rows["one answer"]["val acc"].mean == pytest.approx(np.mean(scores)) and rows["one answer"]["val acc"].n == 3
    assert rows["one answer"]["full table"].mean == pytest.approx(1 / 7)
    heart = rows["training pairs by heart"]
    assert heart["test acc"] == rows["one answer"]["test acc"] and heart["full table"].mean > train / 49
    assert all(rows["four units by hand"][column].mean == 1 for column in ("val acc", "test acc", "full table"))
    assert references(Sweep(P=7, batch=9).plan()[0].options, [0])[0]["test acc"] is None


def test_the_smallest_width_is_no_lucky_one(tmp_path: Path) -> None:
    """Both seeds are perfect at 3, one at 4 and none at 5, both at 6 and 7: from 6 on, not from 3."""
    store, study = Store(tmp_path), Sweep(P=7, batch=9, epochs=8, dimensions=(2, 3, 4, 5, 6, 7), seeds=(0, 1))
    perfect = {3: (0, 1), 4: (0,), 6: (0, 1), 7: (0, 1)}
    for run in study.plan():
        width = run.options["d_hidden"]
        reached = run.seed in perfect.get(width, ())
        scores = dict.fromkeys(("val_acc", "best_val_acc", "full_acc", "train_acc"), 1.0 if reached else 0.5)
        weights = {"bi_linear.weight": torch.ones(2 * width, 14), "projection.weight": torch.ones(7, width)}
        metrics = scores | {"epochs_to_perfect": 2 if reached else None, "effective_rank": 1.0}
        store.commit(Outcome(run, metrics, artifacts={WEIGHTS: safetensors.torch.save(weights)}))
    section = Section("modular.sweep")
    study.report(store.records(), section)
    tables = {table.name: table for table in section.tables}
    (row,) = tables["smallest_width"].rows
    assert (row["mean >= 0.95"], row["some seed perfect"], row["every seed perfect"]) == (6, 6, 6)
    assert row["pairs"] == "37/12/0" and row["seeds"] == 2 and str(row["half perfect"])[0] in "345"
    trained = tables["capacity"].rows[0]
    assert trained["smallest width, all 1"] == trained["smallest width, mean >= 0.95"] == 6


def test_a_sweep_is_saved_where_it_is_asked_for(cli: Cli, tmp_path: Path) -> None:
    words = [*TINY, "--dimensions", "2", "--seeds", "0", "--out", tmp_path]
    for name in ("made/s.pkl", "s.safetensors"):
        assert cli("modular", "sweep", *words, "--save", tmp_path / name)[0] == 0
        assert load(tmp_path / name).val_accs.keys() == {2}
    for wrong in (["--save", tmp_path / "s.npz"], ["--seeds", "0", "1", "--save", tmp_path / "s.pkl"]):
        code, out, err = cli("modular", "sweep", *words, *wrong)
        assert code == 2 and out == "" and "--save" in err
    code, _, err = cli("modular", "sweep", *words, "--grid", "lr=1e-3,1e-2", "--save", tmp_path / "two.safetensors")
    assert code == 2 and "one setting" in err and not (tmp_path / "two.safetensors").exists()


@pytest.mark.parametrize(
    "words", [["--dimensions", "0"], ["--lr", "0"], ["--P", "3"], ["--train_share", "2"], ["--epochs", "0"]]
)
def test_what_cannot_be_swept_is_refused_before_anything_runs(cli: Cli, words: list[str], tmp_path: Path) -> None:
    code, out, err = cli("modular", "sweep", *words, "--out", tmp_path)
    assert code == 2 and out == "" and words[1] in err


def test_a_place_that_cannot_be_written_is_found_before_training(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    (tmp_path / "folder.pkl").mkdir()
    for place in ("file/s.safetensors", "folder.pkl"):
        words = [*TINY, "--dimensions", "2", "--seeds", "0", "--out", tmp_path / "out", "--save", tmp_path / place]
        code, out, err = cli("modular", "sweep", *words)
        assert code == 2 and out == "" and place in err
    assert not Store(tmp_path / "out").records()


def test_widths_are_1_to_P_unless_told() -> None:
    assert sorted(run.options["d_hidden"] for run in Sweep(P=9, batch=8, seeds=(0,)).plan()) == list(range(1, 10))


def test_the_presets_are_those_of_the_spec_and_a_demo() -> None:
    spec = Sweep(**Sweep.presets["spec"])
    assert spec.P == 64 and sorted(run.options["d_hidden"] for run in spec.plan()) == list(range(1, 65))
    assert (spec.epochs, spec.batch, spec.lr, spec.weight_decay, spec.train_share) == (500, 64, 3e-3, 1e-4, 0.75)
    assert len(Sweep(**Sweep.presets["demo"]).plan()) == 50


@pytest.mark.parametrize(("P", "width"), [(7, 4), (31, 5), (64, 16)])
def test_pairs_that_are_scored_in_pieces_get_the_answers_they_get_at_once(
    P: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from assay.nn.random import initialised_from
    from assay.studies.modular import bilinear
    from assay.studies.modular.bilinear import addition_table, init_model, one_hot

    with initialised_from(0, "model"):
        model = init_model(P, width)
    a, b, target = addition_table(P)
    whole = (model(one_hot(a, b, P)).argmax(dim=1) == target).double()
    assert 0 < whole.sum() < P**2
    assert torch.equal(answered(model), whole)
    monkeypatch.setattr(bilinear, "ONE_HOT", 3 * P * P + 1)
    assert torch.equal(answered(model), whole)
