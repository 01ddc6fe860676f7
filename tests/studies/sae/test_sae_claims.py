"""The claims on sparse coders, run small: on the digits, for an epoch."""

from dataclasses import replace
from pathlib import Path

import pytest

from assay.api import Execution
from assay.command.reproduce import run_claim, session_of
from assay.core.executors import executors
from assay.core.store import Store
from assay.report.claims import Claim
from assay.studies.sae.claims import CLAIMS

SMALL = {"epochs": 1, "seeds": [0, 1, 2]}


def ran(name: str, claim: Claim, out: Path, capsys: pytest.CaptureFixture[str]) -> str:
    execution = Execution(out=out, device="cpu", executor=executors.parse("serial"))
    run_claim(name, claim, session_of(claim, execution))
    return capsys.readouterr().out


@pytest.mark.slow
def test_each_coder_of_the_benchmark_has_its_own_rate_and_the_search_goes_on_at_an_edge(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    claim = CLAIMS["sae-benchmark"]
    assert claim.certificate is not None
    shorter = replace(claim.certificate, longer={"epochs": 2}, tried={"lr": (1e-3, 1e-2)})
    small = replace(
        claim, options={**claim.options, "data": "digits", **SMALL}, certificate=shorter, grid={"lr": (1e-3, 1e-2)}
    )
    said = ran("benchmark", small, tmp_path, capsys)
    assert "recipe: " in said and "coder lse_infomax: of " in said and "coder relu_l1: of " in said, said
    records = Store(tmp_path).records("sae")
    rates = {record.run.options["lr"] for record in records if record.run.options["recipe"]["epochs"] == 1}
    assert len(rates) > 2, "the better of two rates is at an edge"
    doubled = {record.run.options["lr"] for record in records if record.run.options["recipe"]["epochs"] == 2}
    assert doubled == rates


def test_the_epoch_of_convergence_is_read_at_every_number_of_units(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {**CLAIMS["sae-convergence-units"].options, "dataset": "digits", "epochs": 8, "seeds": [0, 1, 2]}
    said = ran("units", replace(CLAIMS["sae-convergence-units"], options=options), tmp_path, capsys)
    assert "0.5 [0.5, 0.5]" in said, "8 epochs are over before 16 units 'converge'"
    table = said.partition("records: ")[2]
    assert [line.split()[0] for line in table.splitlines() if " sgd " in f" {line} "] == ["16"] * 4 + ["32"] * 4 + [
        "64"
    ] * 4 + ["128"] * 4
