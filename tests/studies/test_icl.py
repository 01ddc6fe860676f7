"""The in-context study from the command: trains, resumes after a kill, reports."""

import csv
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assay.core.run import Record, canonical
from assay.core.store import Store

TINY = [
    "--task.vocab_size", "32", "--task.input_seq_len", "16", "--task.num_kv_pairs", "2", "--model.model_dim", "16",
    "--train.micro_batch_size", "16", "--train.validate_every", "10", "--eval_size", "200", "--device", "cpu",
]  # fmt: skip
Cli = Callable[..., tuple[int, str, str]]
pytestmark = pytest.mark.usefixtures("undrawn")


def trained(out: Path) -> list[Record]:
    """The records of models; the others are of oracles and their like."""
    return [record for record in Store(out).records("icl") if record.run.options["model"] is not None]


def metrics(out: Path) -> list[str]:
    return [canonical(dict(record.metrics)) for record in trained(out)]


def test_words_and_dotted_flags_choose_task_and_mixers(cli_json: Callable[..., Any], tmp_path: Path) -> None:
    words = ["task:mqar", "model.seq_mixer:delta_net", "model.state_mixer:glu", *TINY, "--train.max_steps", "20"]
    found = cli_json("icl", *words, "--seeds", "0", "1", "--executor", "serial", "--out", tmp_path)
    row, oracle, guess = found["rows"]
    assert oracle["seq_mixer"] == "(oracle)" and oracle["accuracy"]["mean"] > 0.95
    assert guess["seq_mixer"] == "(guess)" and guess["accuracy"] == 0.75, "of two values the one not shown yet"
    assert (row["task"], row["seq_mixer"], row["state_mixer"]) == ("mqar", "delta_net", "glu")
    assert row["accuracy"]["n"] == 2 and row["solved"] == "0/2" and row["state bytes"] > 0
    record = trained(tmp_path)[0]
    assert record.run.options["task"]["num_kv_pairs"] == 2 and record.run.options["model"]["model_dim"] == 16
    assert [point["step"] for point in record.metrics["curve"]] == [10, 20]


def test_a_grid_over_mixers_compares_them(cli_json: Callable[..., Any], tmp_path: Path) -> None:
    grid = ["--grid", "model.seq_mixer=attention,gated_linear_attn:num_heads=4", "seed=0..1"]
    found = cli_json("icl", *TINY, "--train.max_steps", "10", *grid, "--executor", "serial", "--out", tmp_path)
    names = [row["seq_mixer"] for row in found["rows"]]
    assert names == ["attention", "gated_linear_attn:num_heads=4", "(oracle)", "(guess)"]
    assert not (tmp_path / "icl" / "by_position.png").exists(), "questions in random order are no row of examples"
    assert all(row["accuracy"]["n"] == 2 for row in found["rows"][:-1])


def test_a_regression_reports_its_error(cli_json: Callable[..., Any], tmp_path: Path) -> None:
    sizes = ["--task.input_seq_len", "6", "--task.input_dim", "3", "--task.sparsity", "2", "--model.model_dim", "16"]
    words = [
        *sizes,
        "--train.max_steps",
        "5",
        "--train.micro_batch_size",
        "8",
        "--eval_size",
        "100",
        "--executor",
        "serial",
    ]
    rows = cli_json("icl", "task:regression", *words, "--device", "cpu", "--out", tmp_path)["rows"]
    errors = {row["seq_mixer"]: row["mse"]["mean"] for row in rows}
    assert list(errors) == ["attention", "(oracle)", "(ols)", "(ridge)", "(lasso)", "(averaging)", "(knn3)"]
    assert errors["attention"] > errors["(oracle)"] > 0 and "accuracy" not in rows[0]


def test_options_of_a_task_are_checked_before_anything_is_trained(cli: Cli, tmp_path: Path) -> None:
    code, out, err = cli("icl", "--task.num_kv_pairs", "40", "--out", tmp_path)
    assert code == 2 and out == "" and "num_kv_pairs=40" in err
    code, _, err = cli("icl", "--task.num_kv_piars", "4", "--out", tmp_path)
    assert code == 2 and "Did you mean 'num_kv_pairs'" in err
    code, _, err = cli("icl", "task:hybrid", "--out", tmp_path)
    assert code == 2 and "assay expressivity" in err
    code, _, err = cli("icl", "model.seq_mixer:atention", "--out", tmp_path)
    assert code == 2 and "Did you mean 'attention'" in err


KILLED = """
import os, signal
from assay.command.cli import entry
from assay.train import checkpoint

save = checkpoint.save_checkpoint

def save_and_die(path, content):
    save(path, content)
    os.kill(os.getpid(), signal.SIGKILL)

checkpoint.save_checkpoint = save_and_die
entry()
"""


def test_a_run_killed_in_training_resumes_to_the_same_bits(tmp_path: Path, cli: Cli) -> None:
    words = ["icl", *TINY, "--train.max_steps", "120", "--seeds", "0", "--executor", "serial"]
    assert cli(*words, "--out", tmp_path / "whole")[0] == 0
    out = tmp_path / "killed"
    ran = subprocess.run([sys.executable, "-c", KILLED, *words, "--out", str(out)], capture_output=True, check=False)
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    assert metrics(out) == [] and list(out.rglob("checkpoint"))
    code, _, err = cli(*words, "--out", out)
    assert code == 0, err
    assert metrics(out) == metrics(tmp_path / "whole") and not list(out.rglob("checkpoint"))
    assert json.loads(metrics(out)[0])["curve"][-1]["step"] == 120


CAPACITY = [
    "--preset", "capacity", "--task.vocab_size", "256", "--task.input_seq_len", "32", "--task.num_kv_pairs", "8",
    "--model.model_dim", "16", "--train.max_steps", "4", "--train.validate_every", "2",
    "--eval_size", "40", "--device", "cpu", "--executor", "serial", "--quiet",
]  # fmt: skip


def test_the_capacity_preset_gives_k90_bits_and_lengths_with_and_without_convolution(cli: Cli, tmp_path: Path) -> None:
    mixers = "model.seq_mixer=delta_net:num_heads=1:conv=0,delta_net:num_heads=1,attention:num_heads=2"
    code, out, err = cli("icl", *CAPACITY, "--grid", mixers, "optimizer.lr=1e-3,1e-2", "seed=0,1", "--out", tmp_path)
    assert code == 0, err
    tables = {path.stem: list(csv.DictReader(path.open())) for path in (tmp_path / "icl").glob("*.csv")}
    assert set(tables) == {"icl", "icl_rates", "capacity_conv", "capacity_no_conv"}
    untrained = {"(1/K, a guess)", "(oracle)"}
    assert {row["seq_mixer"] for row in tables["capacity_no_conv"]} == {
        "delta_net:conv=0:num_heads=1",
        "attention:num_heads=2",
    } | untrained
    assert {row["seq_mixer"] for row in tables["capacity_conv"]} == {"delta_net:num_heads=1"} | untrained
    models = [row for row in tables["capacity_no_conv"] if row["seq_mixer"] not in untrained]
    assert all((row["learned"], row["K90"]) == ("0/2", "not learned") for row in models), "four steps teach nothing"
    assert all(not row.get("bits") and not row["lr"] for row in models), "what was not learned has no edge"
    assert len(tables["icl_rates"]) == 6 and "edge" in tables["icl"][0]["lr"] and "K90" in out
    by_name = {canonical(record.run.options["model"]["seq_mixer"]): record for record in trained(tmp_path)}
    for record in by_name.values():
        assert set(record.metrics["by_size"]) == set(record.metrics["loss_by_size"]) == {"4", "8"}
        assert record.metrics["left_plateau"] is None and record.cost["tokens"] == 4 * 16 * 32
        blind = record.run.options["model"]["seq_mixer"]["name"] == "attention"
        assert set(record.metrics.get("by_length", {})) == (set() if blind else {"32", "64", "128", "256"})


def test_a_diverged_seed_is_a_record_and_counts_as_unsolved(cli: Cli, tmp_path: Path) -> None:
    words = ["icl", *TINY, "--train.max_steps", "20", "--grid", "optimizer.lr=1e-3,1e30", "--seeds", "0", "1"]
    code, out, err = cli(*words, "--executor", "serial", "--json", "--out", tmp_path)
    assert code == 1 and err.count("diverged:") == 2
    row, found = json.loads(out)["rows"][0], json.loads(out)["tables"]["icl_rates"]
    assert row["lr"] == "0.001 edge" and row["solved"] == "0/2"
    assert [(rate["lr"], rate["seeds"], rate["diverged"]) for rate in found] == [("0.001", 2, 0), ("1e+30", 2, 2)]


def test_a_setting_of_which_every_seed_diverged_keeps_its_row_and_the_column_that_names_it(
    cli: Cli, tmp_path: Path
) -> None:
    words = ["--grid", "optimizer.weight_decay=1e35,0.1", "seed=0,1", "--executor", "serial", "--json", "--quiet"]
    code, out, _ = cli("icl", *TINY, "--train.max_steps", "5", *words, "--out", tmp_path)
    lost, kept, *_ = json.loads(out)["rows"]
    assert code == 1 and lost["optimizer.weight_decay"] == 1e35 and kept["optimizer.weight_decay"] == 0.1
    assert (lost["diverged"], kept["diverged"]) == ("2/2", None)
    assert lost["accuracy"] is None and kept["accuracy"] is not None and lost["solved"] == kept["solved"] == "0/2"


def test_a_mixer_of_which_every_seed_diverged_is_last_in_the_table_of_capacity(cli: Cli, tmp_path: Path) -> None:
    grid = ["model.seq_mixer=delta_net:num_heads=1", "optimizer.lr=1e-3", "seed=0,1"]
    for decay, rows in (("1e35", 1), ("1e35,0.1", 2)):
        words = [*CAPACITY, "--grid", *grid, f"optimizer.weight_decay={decay}", "--json", "--out", tmp_path]
        code, out, _ = cli("icl", *words)
        found = [row for row in json.loads(out)["tables"]["capacity_conv"] if row["seq_mixer"].startswith("delta_net")]
        lost = found[-1]
        assert code == 1 and len(found) == rows and lost["diverged"] == "2/2"
        assert lost["learned"] == "0/2" and lost["K90"] is None and lost["lr"] is None
    assert found[0]["diverged"] is None and found[0]["K90"] == "not learned"


def test_keys_that_training_left_out_are_scored_apart(cli_json: Callable[..., Any], tmp_path: Path) -> None:
    words = ["icl", *TINY, "--task.key_pool", "train", "--train.max_steps", "10", "--seeds", "0"]
    row = cli_json(*words, "--executor", "serial", "--out", tmp_path)["rows"][0]
    assert 0 <= row["unseen keys"]["mean"] <= 1


def test_options_that_cannot_run_are_refused_before_anything_is_trained(cli: Cli, tmp_path: Path) -> None:
    for words, says in {
        ("--eval_size", "0"): "at least one sequence",
        ("--optimizer.beta1", "2"): "beta1=2.0: it must be in [0, 1).",
        ("--optimizer.weight_decay", "-3"): "weight_decay=-3.0: it must be a finite number, 0 or more.",
        ("--optimizer.weight_decay", "nan"): "--optimizer.weight_decay: expected a finite number, got 'nan'.",
        ("--optimizer.lr", "inf"): "--optimizer.lr: expected a finite number, got 'inf'.",
        ("--grid", "optimizer.lr=1e-3,nan"): "option 'lr': expected a finite number, got 'nan'.",
        ("--optimizer.clip", "0"): "optimizer.clip=0.0: it must be a finite number above 0.",
        ("--task.num_kv_pair", "4"): "Did you mean 'num_kv_pairs'",
        ("--grid", "task.num_kv_pair=4"): "Did you mean 'num_kv_pairs'",
        ("task:mqar", "task:boolean"): "task is chosen 2 times: choose one",
        ("--model.layer_params", "10"): "layer_params",
        ("--train.curriculum", "0.9"): "needs a mixture of sizes",
        ("--train.stop_at", "2"): "train.stop_at=2.0: an accuracy is in [0, 1]",
        ("task:regression", "--train.stop_at", "0.9"): "are accuracies",
        ("task:regression", "--model.tied"): "tied",
        ("--preset", "demo", "--preset", "quick"): "choose one",
    }.items():
        code, out, err = cli("icl", *words, "--dry-run", "--out", tmp_path)
        assert code == 2 and out == "" and says in err, (words, err)
