"""What is scored without being trained: a function of one's own, and a task's oracle and plain predictors."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assay.core.run import Numerics, Record, Run
from assay.core.store import Store
from assay.report.rows import rows
from assay.studies.icl.report import reference_lines
from assay.tasks import tasks

Cli = Callable[..., tuple[int, str, str]]

LOOKUP = '''
import torch
from torch.nn.functional import one_hot

def answer(inputs):
    """The token after the first place where this one stood: what a perfect memory says."""
    first = (inputs[:, :, None] == inputs[:, None, :]).long().argmax(-1)
    after = (first + 1).clamp(max=inputs.shape[1] - 1)
    return one_hot(inputs.gather(1, after), 64).float()

def answer_where_asked(inputs, *, positions):
    return answer(inputs).gather(1, positions[..., None].expand(-1, -1, 64))

def constant(inputs):
    return one_hot(torch.full_like(inputs, 40), 64).float()

def peeking(inputs, *, positions):
    return one_hot(inputs.gather(1, positions + 1), 64).float()

def without_outputs(inputs):
    return inputs.float()

def wants_more(inputs, mask):
    return inputs

class Unbuilt(torch.nn.Module):
    def forward(self, inputs, positions=None):
        return self.scale * (answer(inputs) if positions is None else answer_where_asked(inputs, positions=positions))

built = Unbuilt()
built.scale = torch.nn.Parameter(torch.ones(()))
number = 3
'''
MQAR = [
    "task:mqar", "--task.vocab_size", "64", "--task.input_seq_len", "32", "--task.num_kv_pairs", "4",
    "--task.filler", "no_keys", "--eval_size", "400", "--seeds", "0", "1", "--device", "cpu",
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with model.py in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "model.py").write_text(LOOKUP)
    return tmp_path


def scored(cli_json: Callable[..., Any], model: str, *words: str) -> list[dict[str, Any]]:
    return cli_json("icl", "eval", "--model", model, *MQAR, "--executor", "serial", *words)["rows"]


@pytest.mark.parametrize("model", ["model.py:answer", "model:answer", "model:answer_where_asked", "model:built"])
def test_an_exact_lookup_recalls_everything_as_the_oracle_does(
    folder: Path, cli_json: Callable[..., Any], model: str
) -> None:
    row, oracle, _ = scored(cli_json, model)
    name = f"model:{model.partition(':')[2]}"
    assert (row["task"], row["model"], oracle["model"]) == ("mqar", name, "(oracle)")
    assert row["accuracy"] == {"mean": 1.0, "low": 1.0, "high": 1.0, "n": 2} == row["exact match"] == oracle["accuracy"]


def test_a_constant_answer_scores_chance(folder: Path, cli_json: Callable[..., Any]) -> None:
    row, *_ = scored(cli_json, "model:constant")
    # A value is one of 32 tokens: 3200 answers put the mean within .009 of 1/32, three standard errors.
    assert abs(row["accuracy"]["mean"] - 1 / 32) < 0.01 and row["exact match"]["mean"] == 0


def test_a_regression_is_scored_by_its_error_beside_the_plain_predictors(
    folder: Path, cli_json: Callable[..., Any]
) -> None:
    (folder / "zero.py").write_text("def zero(inputs):\n    return inputs[..., :1] * 0\n")
    words = ["task:regression", "--task.input_seq_len", "8", "--eval_size", "200", "--executor", "serial"]
    rows = cli_json("icl", "eval", "--model", "zero:zero", *words, "--device", "cpu")["rows"]
    errors = {row["model"]: row["mse"]["mean"] for row in rows}
    assert list(errors) == ["zero:zero", "(oracle)", "(ols)", "(ridge)", "(lasso)", "(averaging)", "(knn3)"]
    assert abs(errors["zero:zero"] - 1) < 0.1 and errors["(oracle)"] < 0.9


def test_a_module_of_a_package_is_found_from_here_and_by_workers(folder: Path, cli_json: Callable[..., Any]) -> None:
    package = folder / "my_models_for_eval"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "memory.py").write_text(LOOKUP)
    (package / "chosen.py").write_text("from .memory import answer\n")
    rows = cli_json("icl", "eval", "--model", "my_models_for_eval.chosen:answer", *MQAR, "--workers", "1")["rows"]
    assert rows[0]["model"] == "my_models_for_eval.chosen:answer" and rows[0]["accuracy"]["mean"] == 1


def test_a_file_travels_to_workers_with_what_lies_beside_it(folder: Path, cli_json: Callable[..., Any]) -> None:
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "memory_of_eval_test.py").write_text(LOOKUP)
    (elsewhere / "mine.py").write_text("from memory_of_eval_test import answer\n")
    rows = cli_json("icl", "eval", "--model", "elsewhere/mine.py:answer", *MQAR, "--workers", "1")["rows"]
    assert rows[0]["model"] == "mine:answer" and rows[0]["accuracy"]["mean"] == 1


def test_an_edited_file_is_a_new_run_and_its_new_text_is_scored(folder: Path, cli: Cli, cli_json: Any) -> None:
    scored(cli_json, "model:answer")
    planned = ["icl", "eval", "--model", "model:answer", *MQAR, "--dry-run"]
    assert "4 planned, 4 stored, nothing to run" in cli(*planned)[1]
    (folder / "model.py").write_text(LOOKUP + "\nanswer = constant\n")
    assert "4 planned, 2 stored, 2 to run" in cli(*planned)[1], "the oracle has not changed"
    assert scored(cli_json, "model:answer")[0]["accuracy"]["mean"] < 0.1
    models = [record.run.options["model"] for record in Store(folder / "results").records("icl.eval")]
    assert len({model["sha256"] for model in models if model}) == 2
    moved = folder / "moved"
    moved.mkdir()
    (moved / "model.py").write_text(LOOKUP)
    planned[3] = "moved/model.py:answer"
    assert "4 planned, 4 stored, nothing to run" in cli(*planned)[1], "where a file lies does not matter"


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("", "write file.py:function"),
        ("model", "write file.py:function"),
        ("modle:answer", "no module 'modle'"),
        ("modle.py:answer", "there is no file 'modle.py'"),
        ("no.such.module:answer", "no module 'no.such.module'"),
        ("model:answr", "Did you mean 'answer'?"),
        ("model:number", "not a function"),
        ("model:Unbuilt", "is a class"),
        ("model:wants_more", "cannot be called as f(inputs)"),
        ("broken:answer", "line 2: NameError"),
    ],
)
def test_a_model_that_cannot_be_called_is_one_message_before_anything_is_computed(
    folder: Path, cli: Cli, model: str, said: str
) -> None:
    (folder / "broken.py").write_text("def answer(inputs): ...\nanswr\n")
    code, out, err = cli("icl", "eval", "--model", model, *MQAR)
    assert code == 2 and out == "" and said in err and len(err.strip().splitlines()) == 1
    assert not (folder / "results").exists()


def test_a_wrong_shape_says_which_was_given_and_which_is_wanted(folder: Path, cli: Cli) -> None:
    code, _, err = cli("icl", "eval", "--model", "model:without_outputs", *MQAR, "--executor", "serial")
    assert code == 1
    assert "gave (8, 32) where (8, 32, 64) is asked for: return a torch tensor (batch, time, outputs)" in err


def test_icl_itself_is_not_shadowed(cli: Cli, tmp_path: Path) -> None:
    words = ["--seeds", "0", "--dry-run", "--out", tmp_path]
    assert "icl: 2 planned" in cli("icl", "task:mqar", *words)[1]
    code, out, _ = cli("icl", "eval", "--help")
    assert code == 0 and "usage: assay icl eval" in out and "--model" in out and "--optimizer" not in out


def test_references_only_trains_nothing_and_shares_its_runs_with_training(
    cli: Cli, cli_json: Callable[..., Any], tmp_path: Path
) -> None:
    words = ["icl", "task:regression", "--task.input_seq_len", "6", "--eval_size", "100", "--seeds", "0", "1"]
    words += ["--out", str(tmp_path), "--device", "cpu"]
    rows = cli_json(*words, "--references_only", "--executor", "serial")["rows"]
    assert [row["seq_mixer"] for row in rows][:2] == ["(oracle)", "(ols)"] and rows[0]["mse"]["n"] == 2
    assert (tmp_path / "icl" / "by_position.png").is_file()
    assert "4 planned, 2 stored, 2 to run" in cli(*words, "--dry-run")[1]


def test_a_model_that_looks_ahead_is_refused(folder: Path, cli: Cli) -> None:
    """The value stands right behind the question."""
    code, _, err = cli("icl", "eval", "--model", "model.py:peeking", *MQAR, "--executor", "serial", "--out", folder)
    assert code == 1 and "looks ahead" in err


def test_a_task_of_encoders_is_refused(folder: Path, cli: Cli) -> None:
    code, _, err = cli("icl", "eval", "--model", "model.py:answer", "task:retrieval", "--dry-run")
    assert code == 2 and "assay expressivity" in err


@pytest.mark.parametrize(("values", "floor"), [("hidden", 1 / 4), ("shown", (1 + 1 / 2 + 1 / 3 + 1 / 4) / 4)])
def test_recall_has_its_guess_beside_the_oracle(values: str, floor: float) -> None:
    task = tasks.parse(f"mqar:vocab_size=64:input_seq_len=16:num_kv_pairs=4:values={values}").spec()
    run = Run("icl", {"task": task, "model": None}, 0, {}, Numerics())
    record = Record(run, "done", {"references": {"oracle": {"accuracy": 1.0}}})
    best, guess = reference_lines(rows([record]), title="seq_mixer")
    assert best["seq_mixer"] == "(oracle)" and guess["seq_mixer"] == "(guess)"
    assert guess["accuracy"] == pytest.approx(floor)
