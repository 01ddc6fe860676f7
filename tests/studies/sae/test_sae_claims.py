"""What the claims on sparse coders are measured by, on planted records."""

import math

import pytest

from assay.command.findings import planned
from assay.core.run import Record, Run
from assay.report.claims import Judged, identity, judge
from assay.studies.sae.claims import CLAIMS


def trained(run: Run) -> Record:
    """The decoder-free coder is best at 3e-3, the standard one at 1e-3; other rates would tell."""
    free = run.options["coder"]["name"] == "lse_infomax"
    best = run.options["lr"] == (3e-3 if free else 1e-3)
    fvu = (0.4 if free else 0.2) * (1 + 0.01 * run.seed) if best else 0.01
    metrics = {"validation_fvu": 0.3 if best else 0.9, "fvu": fvu, "normalized_reconstruction_mse": fvu}
    return Record(run, "done", {**metrics, "l0_sparsity": 10.0, "params": 1 if free else 2})


def test_each_coder_of_the_benchmark_counts_at_the_rate_that_its_other_seeds_choose() -> None:
    claim = CLAIMS["sae-benchmark"]
    runs = planned(claim)
    assert len(runs) == 2 * 4 * 10 and {run.options["data"]["validation"] for run in runs} == {10_000}
    found = [judge(check, runs, {identity(run): trained(run) for run in runs}) for check in claim.checks]
    assert found[1].found is not None and found[1].found.mean == pytest.approx(2.0)
    assert [one.verdict.word for one in found] == ["not reproduced", "not reproduced", "reproduced", "reproduced"]


@pytest.mark.parametrize(("pace", "word"), [(1.0, "reproduced"), (2.0, "not reproduced")])
def test_a_loss_that_falls_by_k_ln_t_converges_where_the_claim_says(pace: float, word: str) -> None:
    claim = CLAIMS["sae-convergence-units"]
    runs = planned(claim)
    assert {run.options["d_code"] for run in runs} == {16, 32, 64, 128} and len(runs) == 4 * 4 * 5

    def fell(run: Run) -> Record:
        losses = [-pace * run.options["d_code"] * math.log(epoch) for epoch in range(1, 201)]
        return Record(run, "done", {"history": {"train_loss": losses}})

    stored = {identity(run): fell(run) for run in runs}
    found: list[Judged] = [judge(check, runs, stored) for check in claim.checks]
    assert [one.verdict.word for one in found] == [word] * 4
