"""How long runs will take is told by stored runs that are like them, at a cost that is linear in both."""

import time
from pathlib import Path
from typing import Any

import pytest

from assay.core.estimate import estimate
from assay.core.plan import make_plan
from assay.core.run import Numerics, Record, Run
from assay.core.store import Store
from assay.core.study import Outcome


def done(run: Run, seconds: float) -> Record:
    return Record(run, "done", {"a": 1.0}, {"seconds": seconds})


def cell(seed: int = 0, **options: Any) -> Run:
    return Run("s", {"steps": 5, "lr": 0.1} | options, seed, {"s": "1"}, Numerics())


def test_an_estimate_comes_from_stored_costs_of_the_same_device_or_not_at_all(toy: Any, tmp_path: Path) -> None:
    store, runs = Store(tmp_path), make_plan(toy(), {}, Numerics()).runs
    assert estimate(runs, store.records(), 2) is None
    store.commit(Outcome(runs[0], {"a": 1.0}, {"seconds": 3.0}))
    assert estimate(runs, store.records(), 2) == 3.0 * len(runs) / 2
    assert estimate(make_plan(toy(), {}, Numerics(device="cuda")).runs, store.records(), 2) is None


def test_runs_of_another_size_say_nothing_of_how_long_a_run_takes(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.commit(Outcome(cell(), {"a": 1.0}, {"seconds": 3.0}))
    assert estimate([cell(1), cell(lr=0.2)], store.records(), 1) == 6.0
    assert estimate([cell(steps=3000)], store.records(), 1) is None


def test_the_likest_runs_count() -> None:
    records = [done(cell(1), 3.0), done(cell(2), 5.0), done(cell(3), 4.0), done(cell(lr=0.2), 50.0)]
    assert estimate([cell()], records, 1) == 4.0  # the same but for the seed
    assert estimate([cell(lr=0.3)], records, 1) == 4.5  # of that size
    assert estimate([cell(steps=9)], [*records, done(cell(steps=8), 7.0)], 1) == (4.5 + 7.0) / 2


def test_what_failed_or_has_no_cost_tells_nothing() -> None:
    assert estimate([cell()], [Record(cell(1), "failed"), Record(cell(2), "done")], 1) is None
    assert estimate([], [done(cell(), 1.0)], 1) is None


def model(mixer: str, seed: int = 0, **options: Any) -> Run:
    held = {"mixer": {"name": mixer, **options}, "width": 8}
    return Run("s", {"task": {"name": "t", "length": 4}, "model": held, "steps": 10}, seed, {"s": "1"}, Numerics())


def test_a_run_with_another_plugin_or_with_fewer_is_like_enough() -> None:
    """An interrupted grid over mixers has stored some of them, and perhaps no reference."""
    reference = Run("s", {"task": {"name": "t", "length": 4}, "model": None}, 0, {"s": "1"}, Numerics())
    stored = [done(model("attention", seed, conv=0, heads=1), 6.0) for seed in range(2)]
    todo = [model("attention", 2, conv=0, heads=1), model("gru", conv=4, heads=64), reference]
    assert estimate(todo, stored, 2) == 6.0 * 3 / 2
    assert estimate(todo[1:2], [*stored, done(model("gru", 1, conv=4, heads=64), 2.0)], 1) == 2.0
    assert estimate([model("attention")], [done(reference, 1.0)], 1) is None  # with more plug-ins it may take for ever
    far = Run("s", {**stored[0].run.options, "steps": 10_000}, 0, {"s": "1"}, Numerics())
    assert estimate([far, model("gru")], stored, 1) is None


def test_the_order_of_stored_options_does_not_matter() -> None:
    turned = Run("s", {"lr": 0.1, "steps": 5}, 1, {"s": "1"}, Numerics())
    assert estimate([cell()], [done(turned, 2.0)], 1) == estimate([cell(lr=3.0)], [done(turned, 2.0)], 1) == 2.0


def test_thousands_of_runs_are_compared_with_thousands_of_records_at_once() -> None:
    """2,000 over 2,000 of as many sizes took 40 s, each with each."""

    def runs(seed: int) -> list[Run]:
        return [cell(seed, lr=0.1 + seed, width=width, depth=2, heads=4) for width in range(1, 2001)]

    records = [done(run, 1.0) for run in runs(0)]
    before = time.process_time()
    assert estimate(runs(1), records, 1) == 2000.0
    assert time.process_time() - before < 5  # 0.2 s on a quiet core


@pytest.mark.usefixtures("hasty", "undrawn")
def test_the_verbs_of_sae_learn_from_the_runs_of_sae(cli: Any, tmp_path: Path) -> None:
    verbs = ["sae", "ablation", "--dataset", "digits", "--epochs", "1", "--out", tmp_path, "--device", "cpu"]
    verbs += ["--executor", "serial", "--output_dir", tmp_path / "ablation", "--quiet"]
    assert cli(*verbs, "--seeds", "0")[0] == 0
    _, out, _ = cli(*verbs, "--seeds", "1", "--dry-run")
    assert "to run" in out and "(about" in out


def test_an_interrupted_grid_of_icl_gets_an_estimate(tmp_path: Path) -> None:
    from assay.api import Execution, Session, combined_grid, configure
    from assay.studies import studies

    study, grid = configure(studies["icl"], "demo", {}), combined_grid(studies["icl"], "demo", {}, named=())
    runs = make_plan(study, grid, Numerics()).runs
    Store(tmp_path).commit(Outcome(runs[0], {"score": 1.0}, {"seconds": 3.0}))
    session = Session.open(study, grid, Execution(out=tmp_path, device="cpu", workers=1))
    assert session.seconds_left == 3.0 * (len(runs) - 1)
    assert "(about 33 s)" in session.describe()
