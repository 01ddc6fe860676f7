"""What the claims of modular addition are measured by."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from assay.core.errors import UserError
from assay.core.run import Record, Run
from assay.core.store import Store
from assay.studies.modular.bilinear import answered
from assay.studies.modular.claims import (
    alike_answers,
    blocks,
    divergence_follows_overlap,
    half_perfect,
    planted,
    share_perfect,
)
from assay.studies.modular.metrics.frequency_law import frequency_law

Cli = Callable[..., tuple[int, str, str]]


def record(width: int, seed: int, *, perfect: bool) -> Record:
    run = Run("modular.sweep", {"P": 17, "d_hidden": width}, seed, {})
    return Record(run, "done", {"test_acc": 1.0 if perfect else 0.9, "val_acc": 1.0})


def test_perfect_runs_are_counted_from_the_claimed_width_on() -> None:
    records = [record(d, seed, perfect=d >= 12) for d in (4, 8, 10, 12, 16) for seed in (0, 1)]
    assert share_perfect(records).mean == pytest.approx(4 / 6) and share_perfect(records).n == 2
    assert share_perfect(records, widths=(10,)).mean == 0, "by test pairs: on validation pairs all are perfect"
    half = half_perfect(records)
    assert 10 < half.mean < 12 and half.n == 2


def test_a_planted_model_adds_with_its_frequencies_alone() -> None:
    model = planted(17, {2: 1.0, 5: 0.5})
    assert answered(model).mean() == 1
    law = frequency_law(model, "power").mean(axis=0)
    assert set(np.flatnonzero(law > 1e-6)) == {2, 5} and law[2] > law[5]


def test_the_divergence_follows_the_overlap_if_it_sees_all_frequencies() -> None:
    whole, part = (divergence_follows_overlap([record(4, 0, perfect=True)], vectors=n) for n in (16, 4))
    assert whole.mean > 0.8 > part.mean and whole.low is not None and whole.low < whole.mean


def test_similarity_is_measured_from_weights_and_refused_without_them(cli: Cli, tmp_path: Path) -> None:
    quick = ["--P", "7", "--batch", "9", "--epochs", "2", "--dimensions", "2", "3", "4", "5", "6", "7", "8", "9"]
    where = ["--seeds", "0", "1", "--device", "cpu", "--executor", "serial", "--quiet", "--out", tmp_path]
    assert cli("modular", "sweep", *quick, *where)[0] == 0
    records = Store(tmp_path).records("modular.sweep")
    perfect = [replace(one, metrics={**one.metrics, "test_acc": 1.0}) for one in records]
    assert blocks(records).n == 2
    alike = alike_answers(perfect)
    assert alike is not None and alike.n == 2 and -1 <= alike.mean <= 1
    assert alike_answers(perfect[:2]) is None, "two models have no interval"
    for measure in (blocks, alike_answers):
        with pytest.raises(UserError):
            measure([replace(one, folder=None) for one in perfect])
