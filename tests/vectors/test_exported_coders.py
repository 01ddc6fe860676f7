"""A coder that was trained on a model's activations, exported, works on what the model itself puts out."""

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from plain_pass import plain_rows

from assay.core.run import Record
from assay.core.store import Store
from assay.core.study import Context, Outcome
from assay.metrics.sparsity import fraction_unexplained
from assay.studies.sae import load_saelens, save_saelens
from assay.studies.sae.sae import Sae, parsed
from assay.studies.sae.weights import WEIGHTS, saved_module
from assay.vectors.activations import Activations
from assay.vectors.base import VectorData
from assay.vectors.stream import Stream

WORDS = ["topk:k=4", "relu_l1:form=spec", "gated"]


def trained(data: VectorData, word: str, **recipe: Any) -> Outcome:
    study = Sae(data=data, coders=parsed([word]), d_code=24, lrs=(1e-3,), seeds=(0,), **recipe)
    (outcome,) = study.execute(study.plan(), Context())
    return outcome


def assert_exported(record: Record, data: VectorData, raw: torch.Tensor, folder: Path) -> None:
    """The exported coder has the codes of raw test rows that ours has of prepared ones, and the recorded error."""
    module = saved_module(record).requires_grad_(False)
    back = load_saelens(save_saelens(module, folder)).requires_grad_(False)
    code = back.encode(raw[None])
    torch.testing.assert_close(code[0], module.encode(data.load().test.x[None])[0], rtol=1e-3, atol=1e-3)
    fvu = fraction_unexplained(raw, back.decode(code)[0])
    assert fvu == pytest.approx(record.metrics["fvu_own"], abs=1e-3)
    assert fraction_unexplained(raw, module.decode(module.encode(raw[None]))[0]) > fvu + 0.01, "it was not folded in"


@pytest.mark.parametrize("word", WORDS)
def test_a_coder_trained_on_activations_is_exported_for_the_models_own_outputs(
    word: str, tiny: Activations, tmp_path: Path
) -> None:
    record = Store(tmp_path / "results").commit(trained(tiny, word, epochs=2, batch=64))
    assert_exported(record, tiny, plain_rows(tiny.tokens()[-4:]), tmp_path / "folder")


@pytest.mark.parametrize("word", WORDS)
def test_a_coder_trained_on_a_stream_is_exported_for_the_models_own_outputs(
    word: str, stream: Stream, tmp_path: Path
) -> None:
    record = Store(tmp_path / "results").commit(trained(stream, word, steps=9, batch=40))
    windows = stream.windows()
    assert_exported(record, stream, plain_rows(windows.tokens(windows.test)), tmp_path / "folder")


def test_a_stored_coder_of_a_stream_without_its_preparation_is_given_that_of_the_data(
    stream: Stream, tmp_path: Path
) -> None:
    outcome = trained(stream, WORDS[0], steps=9, batch=40)
    kept = safetensors.torch.load(bytes(outcome.artifacts[WEIGHTS]))
    stored = kept.pop("input_mean"), float(kept.pop("input_scale"))
    old = Outcome(outcome.run, outcome.metrics, artifacts={WEIGHTS: safetensors.torch.save(kept)})
    found = saved_module(Store(tmp_path / "results").commit(old)).preparation
    assert found is not None and torch.equal(found.mean, stored[0]) and found.scale == stored[1]
