"""What the claims of modular addition are measured by."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from assay.command.findings import planned
from assay.core import shipped
from assay.core.errors import UserError
from assay.core.run import Record, Run
from assay.core.store import Store
from assay.core.study import Context
from assay.report.certificate import examined
from assay.report.claims import Claim, by_identity
from assay.report.recipes import Keep, varied
from assay.studies.modular import evidence
from assay.studies.modular.bilinear import Model, answered, constructive_model
from assay.studies.modular.claims import CLAIMS, half_perfect, share_perfect
from assay.studies.modular.files import SweepResults
from assay.studies.modular.metrics.frequency_law import frequency_law, frequency_use, phase_scrambled
from assay.studies.modular.metrics.tensor_similarity import Weights, symmetric_similarity_matrix, weights
from assay.studies.modular.sweep import Sweep
from assay.studies.modular.thresholds import is_perfect

Cli = Callable[..., tuple[int, str, str]]


def record(width: int, seed: int, *, perfect: bool, P: int = 17) -> Record:
    run = Run("modular.sweep", {"P": P, "d_hidden": width}, seed, {})
    return Record(run, "done", {"test_acc": 1.0 if perfect else 0.9, "val_acc": 1.0, "best_val_acc": float(width >= 8)})


def test_perfect_runs_are_counted_from_the_claimed_width_on() -> None:
    records = [record(d, seed, perfect=d >= 12) for d in (4, 8, 10, 12, 16) for seed in (0, 1)]
    assert share_perfect(records).mean == pytest.approx(4 / 6) and share_perfect(records).n == 2
    assert share_perfect(records, widths=(10,)).mean == 0, "by test pairs: on validation pairs all are perfect"
    half = half_perfect(records)
    assert 10 < half.mean < 12 and half.n == 2
    by_spec = half_perfect(records, at_some_epoch=True)
    assert 4 < by_spec.mean < 8, "the spec asks for validation pairs at some epoch"
    assert share_perfect(records, widths=(10,), at_some_epoch=True).mean == 1


def test_the_page_says_what_the_shipped_records_say(script: Callable[[str], ModuleType]) -> None:
    widths = script("docs/widths_modular.py")
    page = widths.PAGE.read_text(encoding="utf-8")
    assert widths.placed(page) == page, "run python docs/widths_modular.py"
    assert "| 64 | 10 | 3/40 |" in page and "| 61 | 0.03, 0.3 | 0 [0, 0.2775] |" in page, (
        "the counts, and the share of width 10"
    )
    (wide,) = (line for line in page.splitlines() if line.startswith("| 64 | 10 |"))
    assert "| 28/40 |" in wide, "by the spec's criterion"


def test_the_page_s_counts_of_the_default_recipe_are_of_records_that_ship(script: Callable[[str], ModuleType]) -> None:
    """At P = 64, rate .03 and decay .1: wide models after 400 epochs, and width 10 by the spec's criterion."""
    recipe = {"P": 64, "lr": 0.03, "weight_decay": 0.1}
    records = [each for each in shipped.records("modular.sweep") if recipe.items() <= each.run.options.items()]

    def counted(epochs: int, widths: range, metric: str, device: str) -> tuple[int, int]:
        chosen = [
            each for each in records if each.run.options["epochs"] == epochs and each.run.numerics.device == device
        ]
        found = [each.metrics[metric] == 1 for each in chosen if each.run.options["d_hidden"] in widths]
        return sum(found), len(found)

    page = " ".join(script("docs/widths_modular.py").PAGE.read_text(encoding="utf-8").split())
    right, wide = counted(400, range(16, 65), "test_acc", "cuda")
    assert f"{right} of {wide} runs of widths 16 to 64 answer every test pair" in page
    assert counted(800, range(10, 11), "best_val_acc", "cpu") == (28, 40) and "28 of 40 runs of width 10" in page
    assert counted(1600, range(10, 11), "best_val_acc", "cpu") == (31, 40) and "twice the training 31 do" in page


def test_a_planted_model_adds_with_its_frequencies_alone() -> None:
    model = constructive_model(17, {2: 1.0, 5: 0.5})
    assert answered(model).mean() == 1
    law = frequency_law(model, "power").mean(axis=0)
    assert set(np.flatnonzero(law > 1e-6)) == {2, 5} and law[2] > law[5]


def models_of(count: int, P: int = 31, size: int = 6) -> list[Model]:
    """Models that add with sets of frequencies, some alike and some not."""
    rng = np.random.default_rng(0)
    return [
        constructive_model(P, {(3 * place + i) % (P // 2) + 1: rng.uniform(0.5, 1.5) for i in range(size)})
        for place in range(count)
    ]


def test_the_divergence_follows_what_models_use_if_it_sees_all_frequencies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six frequencies have 24 eigenvectors: the spec's four show the loudest alone, the power of forms shows all."""
    records = [record(24, seed, perfect=True, P=31) for seed in range(3)]
    monkeypatch.setattr(evidence, "saved_sweep", lambda records: SweepResults(31, {}, {}))
    monkeypatch.setattr(evidence, "weights_of", lambda models, P: models_of(8))
    used = evidence.frequencies_used(records)
    assert used is not None and 5 <= used.mean <= 6, "six, the softest of which may be beyond 90 %"
    power, spec = (evidence.divergence_follows_use(records, kind=kind) for kind in ("power", "eigen"))
    assert power is not None and spec is not None and power.mean > 0.9 > spec.mean and power.n == 3
    overlap = evidence.divergence_follows_overlap(records)
    assert overlap is not None and overlap.mean < 0.8 and overlap.n == evidence.SETS
    monkeypatch.setattr(evidence, "frequencies_used", lambda records: replace(used, mean=1.0))
    alone = evidence.divergence_follows_overlap(records)
    assert alone is not None and alone.mean == pytest.approx(1), "of one frequency four eigenvectors show all"


def test_scrambled_phases_keep_the_divergence_and_lose_the_use() -> None:
    """Why the divergence is not judged by another law of power: models that add nothing have the same."""
    for place, model in enumerate(models_of(3)):
        broken = phase_scrambled(model, torch.Generator().manual_seed(place))
        kept = frequency_law(broken, "power").mean(axis=0) > 1e-6
        assert (kept == (frequency_law(model, "power").mean(axis=0) > 1e-6)).all()
        assert np.abs(frequency_use(broken)).sum() < 0.5 * frequency_use(model).sum()


def test_units_are_matched_whatever_their_order_and_scale() -> None:
    """1.6: what TN similarity is asked about."""
    (model,) = (weights(one) for one in models_of(1))
    order = torch.randperm(len(model.w_l), generator=torch.Generator().manual_seed(0))
    turned = Weights(3 * model.w_r[order], model.w_l[order] / 3, model.w_p[:, order])
    assert evidence.matched_units(model, turned) == pytest.approx(1)
    runs = [record(24, seed, perfect=True, P=64) for seed in range(3)]
    assert evidence.units_of_one_form(runs).mean < 0.5, "an eighth of a circle turns every unit, and no form"
    other = constructive_model(64, phase=0.7)
    assert answered(other).mean() == 1
    assert symmetric_similarity_matrix([constructive_model(64), other])[0, 1] == pytest.approx(1)


def test_alike_logits_need_not_answer_alike() -> None:
    runs = [record(24, seed, perfect=True, P=64) for seed in range(3)]
    found = evidence.answers_of_like_logits(runs)
    assert found.n == 3 and found.high is not None and found.high < 0.5
    models = [weights(one) for one in models_of(3)]
    assert np.allclose(np.diag(evidence.alike(models)), 1) and evidence.alike(models).min() > 0.9, "all three add"


def test_models_without_test_pairs_are_perfect_by_their_validation_pairs() -> None:
    plain = record(24, 0, perfect=False)
    assert is_perfect(replace(plain, metrics={**plain.metrics, "test_acc": None})) and not is_perfect(plain)


def test_similarity_is_measured_from_weights_and_refused_without_them(cli: Cli, tmp_path: Path) -> None:
    quick = ["--P", "7", "--batch", "9", "--epochs", "2", "--dimensions", "2", "3", "4", "5", "6", "7", "8", "9"]
    where = ["--seeds", "0", "1", "--device", "cpu", "--executor", "serial", "--quiet", "--out", tmp_path]
    assert cli("modular", "sweep", *quick, *where)[0] == 0
    records = Store(tmp_path).records("modular.sweep")
    perfect = [replace(one, metrics={**one.metrics, "test_acc": 1.0}) for one in records]
    assert evidence.blocks(records).n == 2 and 0 < evidence.blocks_by_chance(records).mean <= 1
    for measure in (evidence.alike_answers, evidence.divergence_follows_use):
        found = measure(perfect)
        assert found is not None and found.n == 2 and -1 <= found.mean <= 1
        assert measure(perfect[:2]) is None, "two models have no interval"
    for measure in (evidence.weights_follow_forms, evidence.answers_follow_logits):
        assert -1 <= measure(records).mean <= 1
    for measure in (evidence.blocks, evidence.alike_answers, evidence.divergence_follows_use):
        with pytest.raises(UserError):
            measure([replace(one, folder=None) for one in perfect])


@pytest.mark.parametrize("name", [name for name, claim in CLAIMS.items() if not claim.exempt])
def test_a_certificate_asks_other_seeds_around_the_recipe_and_twice_the_training(name: str) -> None:
    claim = CLAIMS[name]
    certificate = claim.certificate
    assert certificate is not None
    own, search, longer = (
        planned(one)
        for one in (claim, varied(claim, certificate.on, certificate.tried), varied(claim, certificate.longer))
    )
    assert not {run.seed for run in own} & {run.seed for run in search}, "what chose the recipe is not reported"
    for axis, values in certificate.tried.items():
        assert {min(values) < run.options[axis] < max(values) for run in own} == {True}, "at no edge"
    assert {run.options["d_hidden"] for run in search} == {10}, "by the width that is claimed"
    assert {run.options["anneal"] for run in [*own, *search, *longer]} == {0.5}
    (epochs,), (doubled,) = ({run.options["epochs"] for run in runs} for runs in (own, longer))
    assert doubled == 2 * epochs
    asked = certificate.number.chosen(own)
    assert {run.options["d_hidden"] for run in asked} == {run.options["d_hidden"] for run in longer}
    assert {run.seed for run in asked} == {run.seed for run in longer} == {run.seed for run in own}


def test_runs_that_are_hardly_trained_certify_nothing(tmp_path: Path) -> None:
    """No model of eight epochs is perfect, by any recipe and twice as long: that is no finding."""
    claim = CLAIMS["modular-width-113"]
    assert claim.certificate is not None
    few = {"P": 23, "batch": 32, "epochs": 8, "dimensions": (10, 12), "seeds": (10, 11, 12, 13, 14)}
    number = replace(claim.certificate.number, rows={"d_hidden": 10})
    certificate = replace(
        claim.certificate, on={"dimensions": [10], "seeds": [0, 1, 2]}, longer={"epochs": 16, "dimensions": [10]}
    )
    claim = replace(
        claim,
        options=few,
        checks=tuple(replace(check, rows={}) for check in claim.checks),
        certificate=replace(certificate, number=number),
    )
    store = Store(tmp_path)

    def look(wanted: Claim, keep: Keep) -> tuple[Sequence[Run], dict[str, Record]]:
        runs = [run for run in planned(wanted) if keep(run)]
        cohorts: dict[Hashable, list[Run]] = {}
        stored = {record.run.id for record in store.records("modular.sweep")}
        for run in runs:
            if run.id not in stored:
                cohorts.setdefault(Sweep().cohort(run), []).append(run)
        for cohort in cohorts.values():
            for outcome in Sweep().execute(cohort, Context()):
                store.commit(outcome)
        return runs, by_identity(store.records("modular.sweep"))

    found = examined("hardly-trained", claim, look)
    assert found.checked.word == "not reproduced" and found.verdict.word == "not converged"
    assert [part.name for part in found.parts if not part.holds][:2] == ["recipe", "doubled training"]
    assert not found.publishable
