"""Whether the convergence epoch follows the units or the rate is told apart by curves of a known law."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from assay.core.run import Record, Run
from assay.report.section import Section
from assay.studies.sae.law import Law, convergence_epochs, exponent_of_rate, exponent_of_units


def record(units: int, rate: float, seed: int, losses: list[float], optimizer: str = "sgd") -> Record:
    recipe = {"epochs": len(losses), "batch": 2, "optimizer": optimizer, "partial": True}
    options = {"coder": {"name": "lse_infomax"}, "d_code": units, "lr": rate, "recipe": recipe}
    return Record(Run("sae", options, seed, {}), "done", {"history": {"train_loss": losses}})


def falling(slope: float, *, epochs: int = 300) -> list[float]:
    return [-slope * math.log(epoch) for epoch in range(1, epochs + 1)]


def grid(slope: Callable[[int, float], float]) -> list[Record]:
    return [
        record(units, rate, seed, falling(slope(units, rate) * (1 + seed / 50)))
        for units in (16, 32, 64, 128)
        for rate in (1e-3, 1e-2, 1e-1)
        for seed in range(3)
    ]


def test_a_loss_of_minus_k_ln_t_converges_at_epoch_k_at_any_rate() -> None:
    law = grid(lambda units, rate: float(units))
    units, rate = exponent_of_units(law), exponent_of_rate(law)
    assert units is not None and rate is not None
    assert units.mean == pytest.approx(1, abs=0.01) and rate.mean == pytest.approx(0, abs=1e-6)
    assert convergence_epochs(law)[64, 1e-2][0] == pytest.approx(67, abs=1), "the spec's epoch ~70 is its 64 units"


def test_a_loss_that_stops_at_epoch_70_whatever_k_is_told_from_it() -> None:
    spec = grid(lambda units, rate: 68.0)
    assert exponent_of_units(spec).mean == pytest.approx(0, abs=1e-6)
    by_rate = grid(lambda units, rate: 64 * (rate / 1e-3) ** 0.1)
    assert exponent_of_rate(by_rate).mean == pytest.approx(0.1, abs=0.02)


def test_a_run_that_never_comes_there_has_no_epoch_and_is_counted() -> None:
    records = [record(units, 1e-2, seed, falling(units, epochs=100)) for units in (32, 128) for seed in (0, 1)]
    assert convergence_epochs(records) == {(32, 1e-2): {0: 35.0, 1: 35.0}, (128, 1e-2): {}}
    assert exponent_of_units(records) is None, "one width is no law"
    section = Section("sae.law")
    Law().report(records, section)
    (table,) = section.tables
    assert [row["reached"] for row in table.rows] == ["2/2", "0/2"] and table.rows[1]["epoch"] is None


def test_other_optimizers_and_failed_runs_are_left_out() -> None:
    adam = record(16, 1e-2, 0, falling(16), "adam")
    failed = replace(record(16, 1e-2, 0, falling(16)), status="diverged", metrics={})
    assert convergence_epochs([adam, failed]) == {} and exponent_of_units([adam]) is None


@pytest.mark.usefixtures("undrawn")
def test_the_command_plans_sgd_at_every_width_and_rate_and_reports_the_law(
    cli: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    planned = Law().plan()
    assert len(planned) == 4 * 4 * 5 and {run.options["recipe"]["optimizer"] for run in planned} == {"sgd"}
    assert {run.options["d_code"] for run in planned} == {16, 32, 64, 128}
    words = ["--dataset", "digits", "--widths", "2", "4", "--epochs", "12", "--seeds", "0"]
    code, out, err = cli("sae", "law", *words, "--device", "cpu", "--executor", "serial", "--quiet", "--out", tmp_path)
    assert code == 0, err
    assert "epoch / K" in out and "slope / K" in out
