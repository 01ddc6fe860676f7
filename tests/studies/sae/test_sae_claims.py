"""What the claims on sparse coders are measured by, on planted records."""

import math

import pytest

from assay.command.findings import planned
from assay.core.run import Record, Run
from assay.report.claims import Judged, identity, judge
from assay.studies.sae.claims import CLAIMS


def trained(run: Run) -> Record:
    """Twice as much is left by the decoder-free coder, seed by seed; other coders would tell."""
    coder = run.options["coder"]
    free = coder["name"] == "lse_infomax" and coder["lambda_lse"] == coder["lambda_var"] == coder["lambda_tc"] == 1
    left = 0.4 if free else 0.2 if coder["name"] == "relu_l1" else 0.01
    fvu = left * (1 + 0.01 * run.seed)
    metrics = {"fvu": fvu, "normalized_reconstruction_mse": fvu}
    return Record(run, "done", {**metrics, "l0_sparsity": 10.0, "params": 1 if free else 2})


def test_the_benchmark_compares_two_coders_of_the_paper_seed_by_seed() -> None:
    claim = CLAIMS["sae-benchmark"]
    runs = planned(claim)
    compared = [run for run in runs if run.options["coder"]["name"] in ("lse_infomax", "relu_l1")]
    assert {(run.options["lr"], run.options["recipe"]["epochs"]) for run in compared} == {(1e-3, 100)}
    assert {run.seed for run in compared} == set(range(80))
    found = [judge(check, runs, {identity(run): trained(run) for run in runs}) for check in claim.checks]
    assert found[1].found is not None and found[1].found.mean == pytest.approx(2.0)
    assert [one.verdict.word for one in found] == ["not reproduced", "not reproduced", "reproduced", "reproduced"]


@pytest.mark.parametrize(("pace", "word"), [(1.0, "reproduced"), (2.0, "not reproduced")])
def test_a_loss_that_falls_by_k_ln_t_converges_where_the_claim_says(pace: float, word: str) -> None:
    claim = CLAIMS["sae-convergence-units"]
    runs = planned(claim)
    assert {run.options["d_code"] for run in runs} == {16, 32, 64, 128} and len(runs) == 4 * 4 * 14

    def fell(run: Run) -> Record:
        losses = [-pace * run.options["d_code"] * math.log(epoch) for epoch in range(1, 201)]
        return Record(run, "done", {"history": {"train_loss": losses}})

    stored = {identity(run): fell(run) for run in runs}
    found: list[Judged] = [judge(check, runs, stored) for check in claim.checks]
    assert [one.verdict.word for one in found] == [word] * 4
