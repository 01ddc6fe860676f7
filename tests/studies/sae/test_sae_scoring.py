"""Models are scored together where that is faster, and no score tells it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from assay.core.run import Run
from assay.core.store import Store
from assay.nn.random import stream
from assay.sparse_coders import sparse_coders
from assay.sparse_coders.base import CoderModule
from assay.studies.sae import fitting, scoring, training
from assay.studies.sae.scoring import score, together
from assay.vectors import vectors
from assay.vectors.base import Part, Vectors

WORDS = ("lse_infomax", "topk:k=2", "relu_l1")


@pytest.fixture(scope="module")
def digits() -> Vectors:
    return vectors.parse("digits").load()


def modules(data: Vectors) -> list[CoderModule]:
    found = [sparse_coders.parse(word).build(1, data.d_in, 12) for word in WORDS]
    for word, module in zip(WORDS, found, strict=True):
        for parameter in module.parameters():
            parameter.data.copy_(torch.randn(parameter.shape, generator=stream(0, word)) / 4)
    return found


def test_scores_are_those_a_model_has_alone(digits: Vectors) -> None:
    models = modules(digits)
    for model, found in zip(models, score(models, digits), strict=True):
        (alone,) = score([model], digits)
        assert found == pytest.approx(alone, rel=1e-9) and "linear_probe_accuracy" in found and "probe_C" in found


def test_probes_need_labels_and_a_choice_of_penalty_needs_validation_rows(digits: Vectors) -> None:
    models = modules(digits)
    no_choice = replace(digits, validation=Part(digits.validation.x[:0], digits.test.labels[:0]))  # type: ignore[index]
    for found in score(models, no_choice):
        assert "linear_probe_accuracy" in found and "probe_5_units" in found and "probe_accuracy" not in found
    unlabelled = replace(digits, train=replace(digits.train, labels=None))
    assert not any("probe" in name for found in score(models, unlabelled) for name in found)


def test_a_cpu_scores_one_by_one_and_a_gpu_as_many_as_fit(digits: Vectors, monkeypatch: pytest.MonkeyPatch) -> None:
    assert together(digits, 12) == 1
    elsewhere = replace(digits, train=Part(digits.train.x.to("meta")))
    monkeypatch.setattr(scoring, "TOGETHER", 12 * len(digits.train) * 5 + 1)
    assert together(elsewhere, 12) == 5 and together(elsewhere, 61) == 1


def test_a_model_that_diverged_takes_nobodys_scores(digits: Vectors) -> None:
    models = modules(digits)
    runs = [Run("sae", {}, seed, {}) for seed in range(3)]
    expected = [found["fvu"] for found in score(models, digits)]
    next(models[1].parameters()).data[0, 0] = torch.nan
    found = [*fitting.outcomes(runs, models, digits, [{"loss": [float(k)]} for k in range(3)], np.zeros(2))]
    assert [outcome.diverged for outcome in found] == [False, "the weights", False]
    assert [outcome.run.seed for outcome in found] == [0, 1, 2]
    assert [outcome.metrics["history"] for outcome in found] == [{"loss": [0.0]}, {"loss": [1.0]}, {"loss": [2.0]}]
    assert [found[k].metrics["fvu"] for k in (0, 2)] == [expected[0], expected[2]]


@pytest.mark.usefixtures("undrawn")
def test_a_bank_is_scored_some_at_a_time(
    cli: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [
        "--coders",
        "topk:k=2",
        "topk:k=6",
        "--d_code",
        "8",
        "--epochs",
        "1",
        "--lrs",
        "1e-3",
        "1e-2",
        "--seeds",
        "0",
    ]
    words += ["--device", "cpu", "--executor", "serial", "--quiet"]
    found, sizes = {}, []
    for size in (1, 3):
        monkeypatch.setattr(training, "together", lambda *_, size=size: size)
        monkeypatch.setattr(fitting, "score", lambda models, data: sizes.append(len(models)) or score(models, data))
        assert cli("sae", *words, "--out", tmp_path / str(size))[0] == 0
        found[size] = {record.run.id: record for record in Store(tmp_path / str(size)).records("sae")}
    assert sizes == [1, 1, 1, 1, 3, 1] and len(found[1]) == 4
    for key, record in found[1].items():
        numbers, others = ({k: v for k, v in r.metrics.items() if k != "history"} for r in (record, found[3][key]))
        assert numbers == pytest.approx(others, rel=1e-9)
        assert record.artifact("weights.safetensors") == found[3][key].artifact("weights.safetensors")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpus_scores_are_the_cpus(digits: Vectors) -> None:
    models = modules(digits)
    here = [*score(models, digits)]
    parts = {name: getattr(digits, name).to("cuda") for name in ("train", "validation", "test")}
    for near, far in zip(here, score([model.cuda() for model in models], replace(digits, **parts)), strict=True):
        for name in ("l0", "fvu", "probe_accuracy", "linear_probe_accuracy", "probe_1_units", "probe_5_units"):
            assert far[name] == pytest.approx(near[name], abs=0.01), name
