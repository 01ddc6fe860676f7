"""A small language model from the command: held-out documents, bits per byte, plain predictors and no ceiling."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assay.core.store import Store

pytestmark = pytest.mark.usefixtures("undrawn")
TINY = [
    "task:text:input_seq_len=96", "--model.model_dim", "32", "--model.num_layers", "1",
    "--train.micro_batch_size", "5", "--optimizer.lr", "1e-2", "--eval_size", "200",
    "--seeds", "0", "--executor", "serial", "--device", "cpu",
]  # fmt: skip


def test_a_tiny_model_beats_the_frequencies_of_bytes_on_documents_it_never_saw(
    cli_json: Callable[..., Any], tmp_path: Path
) -> None:
    steps = ["--train.max_steps", "100", "--train.validate_every", "50"]
    rows = cli_json("icl", *TINY, *steps, "--out", tmp_path)["rows"]
    bits = {row["seq_mixer"]: row["bits per byte"]["mean"] for row in rows}
    assert list(bits) == ["attention", "(unigram)", "(ngram)", "(copy)"], "no oracle: the ceiling is not known"
    assert bits["(ngram)"] < bits["attention"] < bits["(unigram)"] < 8
    assert "solved" not in rows[0]
    model, references = sorted(Store(tmp_path).records("icl"), key=lambda record: "references" in record.metrics)
    found = model.metrics
    share, recalled, other = (found[key] for key in ("share_recalled", "bits_per_byte_recalled", "bits_per_byte_other"))
    assert found["bits_per_byte"] == pytest.approx(found["loss"] / math.log(2))
    assert found["bits_per_byte"] == pytest.approx(share * recalled + (1 - share) * other, rel=1e-5)
    assert share == references.metrics["references"]["copy"]["share_recalled"], "all are scored on the same windows"
    first, last = found["curve"]
    assert last["bits_per_byte"] < first["bits_per_byte"]


def test_rates_are_chosen_by_bits_per_byte() -> None:
    from assay.core.run import Numerics, Record, Run
    from assay.studies.icl.report import validation

    def record(**last: float) -> Record:
        run = Run("icl", {}, seed=0, versions={}, numerics=Numerics())
        return Record(run=run, status="done", metrics={"curve": [last]})

    assert validation(record(accuracy=0.5, bits_per_byte=2.0)) > validation(record(accuracy=0.6, bits_per_byte=2.5))
    assert validation(record(accuracy=0.6)) > validation(record(accuracy=0.5))
    assert validation(record(mse=0.1)) > validation(record(mse=0.2))
