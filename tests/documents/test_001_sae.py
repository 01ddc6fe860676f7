"""Document 001, decoder-free sparse autoencoders: its commands, its YAML, its data sets and its benchmark."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.core.run import Record, Run
from assay.report.section import Section
from assay.sparse_coders import sparse_coders
from assay.studies.sae.benchmark import Benchmark
from assay.studies.sae.sae import coder_run
from assay.vectors import vectors

Cli = Callable[..., tuple[int, str, str]]
VERBS = ["ablation", "benchmark", "dynamics"]
HYPERPARAMETERS = """
model:
  hidden_dim: 64      # Number of features
  activation: relu    # Activation function

loss:
  lambda_lse: 1.0     # LSE weight
  lambda_var: 1.0     # Variance weight
  lambda_tc: 1.0      # Total correlation weight

training:
  epochs: 100
  batch_size: 128
  lr: 0.001

data:
  dataset: mnist
  data_dir: "E:/ml_datasets"
"""
"""As the document has it."""


def planned(cli: Cli, *words: str | Path) -> list[dict[str, Any]]:
    code, out, err = cli("sae", *words, "--dry-run", "--json", "--device", "cpu")
    assert code == 0, err
    return json.loads(out)["rows"]


def test_1_7_llm_is_a_word_for_activations() -> None:
    assert vectors.parse("llm") == vectors.parse("activations")
    assert vectors.parse("llm:context=64").label == "activations:context=64", "records keep the name"


def test_1_7_llm_is_planned_by_the_flag_and_by_the_file(cli: Cli, tmp_path: Path) -> None:
    assert planned(cli, "--data", "llm") == planned(cli, "--data", "activations")
    (tmp_path / "llm.yaml").write_text(HYPERPARAMETERS.replace("mnist", "llm"))
    for verb in VERBS:
        by_file = planned(cli, verb, "--config", tmp_path / "llm.yaml")
        (tmp_path / "mnist.yaml").write_text(HYPERPARAMETERS)
        assert by_file == planned(cli, verb, "--config", tmp_path / "mnist.yaml", "--dataset", "llm")


@pytest.mark.parametrize("verb", VERBS)
def test_1_7_the_yaml_of_the_document_is_accepted_by_every_verb(verb: str, cli: Cli, tmp_path: Path) -> None:
    """Which coders are compared is left to the verb's own file; a rate of its own is kept."""
    (tmp_path / "mine.yaml").write_text(HYPERPARAMETERS)
    found = {row["id"] for row in planned(cli, verb, "--config", tmp_path / "mine.yaml")}
    shipped = {row["id"] for row in planned(cli, verb, "--seeds", "42")}
    assert found <= shipped and len(found) == (1 if verb == "dynamics" else len(shipped))
    (tmp_path / "mine.yaml").write_text(HYPERPARAMETERS.replace("0.001", "0.007") + "seeds: [9]\n")
    changed = planned(cli, verb, "--config", tmp_path / "mine.yaml")
    assert {row["run"].rpartition("seed=")[2] for row in changed} == {"9"}
    assert not {row["id"] for row in changed} & {row["id"] for row in planned(cli, verb, "--seeds", "9")}


def test_1_7_what_a_file_does_not_say_is_told(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(HYPERPARAMETERS)
    _, _, err = cli("sae", "ablation", "--config", tmp_path / "mine.yaml", "--dry-run")
    assert err.count("no configurations") == 1 and "ablation" in err
    _, _, err = cli("sae", "ablation", "--config", "ablation", "--dry-run")
    assert "no configurations" not in err


def test_1_7_the_width_that_a_file_names_is_that_of_the_data(cli: Cli, tmp_path: Path) -> None:
    text = HYPERPARAMETERS.replace("model:", "model:\n  input_dim: 784").replace("mnist", "digits")
    (tmp_path / "mine.yaml").write_text(text)
    code, _, err = cli("sae", "benchmark", "--config", tmp_path / "mine.yaml", "--dry-run")
    assert code == 2 and "784" in err and "64" in err


def coded(study: Benchmark, name: str, seed: int, l0: float, fvu: float) -> Record:
    """A record of one of the benchmark's coders, with the scores that a table reads."""
    run: Run = study.one(study.coders()[name], seed=seed)
    scores = {"l0": l0, "l0_sparsity": l0, "l0_density": l0 / 64, "fvu": fvu, "linear_probe_accuracy": 1 - fvu}
    scores |= {"reconstruction_mse": fvu, "normalized_reconstruction_mse": fvu, "params": 100}
    return Record(run, "done", scores, {})


def reported(study: Benchmark, records: list[Record], monkeypatch: pytest.MonkeyPatch) -> Section:
    monkeypatch.setattr(Benchmark, "write", lambda *_, **__: None)
    monkeypatch.setattr("assay.studies.sae.benchmark._with_decoder", lambda row: 0)
    section = Section("sae.benchmark")
    study.report(records, section)
    return section


def test_1_7_the_benchmark_compares_where_equally_many_units_are_active(monkeypatch: pytest.MonkeyPatch) -> None:
    """The standard autoencoder's error lies on a line in log L0, and is read off it at each seed's own count."""
    study = Benchmark(dataset="digits", l1_weights=(0.03, 0.1))

    def line(l0: float) -> float:
        return 1 - 0.2 * float(np.log(l0))

    records, active = [], {1: 20.0, 2: 22.0, 3: 24.0}
    for seed, count in active.items():
        records.append(coded(study, "ours", seed, count, line(count) + 0.05))
        for name, l0 in (("standard_sae", 40.0), ("standard_sae l1=0.03", 25.0), ("standard_sae l1=0.1", 10.0)):
            records.append(coded(study, name, seed, l0, line(l0)))
    section = reported(study, records, monkeypatch)
    table = next(table for table in section.tables if table.name == "equal_l0")
    ours, standard = table.rows
    assert (ours["model"], standard["model"]) == ("ours", "standard_sae")
    assert standard["L0"].mean == pytest.approx(ours["L0"].mean) and standard["L0"].mean == pytest.approx(22)
    assert standard["FVU - first"].mean == pytest.approx(-0.05) and standard["FVU - first"].n == 3
    assert standard["probe - first"].mean == pytest.approx(0.05) and ours["FVU - first"] is None
    assert len(section.tables[0].rows) == 4, "every level is there"
    assert len(section.findings) == 2 and all("22" in each.sentence for each in section.findings)


def test_1_7_no_sentence_compares_codes_of_unequal_density(monkeypatch: pytest.MonkeyPatch) -> None:
    study = Benchmark(dataset="digits", l1_weights=())
    pairs = (("ours", 20.0), ("standard_sae", 40.0))
    records = [coded(study, name, seed, l0, 1 / l0) for seed in (1, 2, 3) for name, l0 in pairs]
    section = reported(study, records, monkeypatch)
    assert [table.name for table in section.tables] == ["benchmark"]
    assert [finding for finding in section.findings if "l1_weights" not in finding.sentence] == []


def test_1_7_other_levels_move_no_run_and_stay_out_of_the_documents_file() -> None:
    plain, levels = Benchmark(dataset="digits", l1_weights=()), Benchmark(dataset="digits")
    ids = [{run.id for run in study.plan()} for study in (plain, levels)]
    assert ids[0] < ids[1] and len(ids[0]) == 2 * 5
    weights = {coder.l1 for name, coder in levels.coders().items() if name != "ours"}  # type: ignore[attr-defined]
    assert len(weights) == 5 and min(weights) < 0.01 < max(weights), "on both sides of the document's"
    data = {"data": vectors.parse("digits"), "content": None}
    (run,) = [run for run in plain.plan() if run.seed == 1 and run.options["coder"]["name"] == "relu_l1"]
    coder = replace(sparse_coders.parse("relu_l1:form=spec"), l1=0.01)  # type: ignore[call-arg]
    assert run.id == coder_run(data, coder, seed=1, d_code=64, lr=1e-3, recipe=plain.loaded.recipe()).id


@pytest.mark.slow
@pytest.mark.usefixtures("hasty")
def test_1_7_the_benchmark_runs_and_its_file_has_the_documents_keys(cli: Cli, tmp_path: Path) -> None:
    words = ["--dataset", "digits", "--epochs", "60", "--seeds", "1", "2", "3", "--output_dir", tmp_path / "b"]
    place = ["--device", "cpu", "--executor", "serial", "--out", tmp_path, "--json"]
    code, out, err = cli("sae", "benchmark", *words, *place)
    assert code == 0, err
    rows = json.loads(out)["tables"]["equal_l0"]
    assert len(rows) == 2 and rows[0]["L0"]["mean"] == pytest.approx(rows[1]["L0"]["mean"], rel=0.03)
    found = json.loads((tmp_path / "b/benchmark_results.json").read_text())
    assert set(found) == {"ours", "standard_sae", "per_seed", "config"}
