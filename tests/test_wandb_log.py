"""wandb:on logs to Weights & Biases, here to a stand-in for its package."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

Cli = Callable[..., tuple[int, str, str]]


class FakeRun:
    def __init__(self, given: dict[str, Any]) -> None:
        self.given, self.rows, self.summary = given, list[tuple[int, dict[str, Any]]](), dict[str, Any]()
        self.exit_code: int | None = None

    def log(self, row: dict[str, Any], step: int, commit: bool) -> None:
        assert self.exit_code is None and commit  # W&B writes a row left open over the summary when the run ends
        self.rows.append((step, row))

    def finish(self, exit_code: int) -> None:
        self.exit_code = exit_code


class FakeWandb(ModuleType):
    def __init__(self) -> None:
        super().__init__("wandb")
        self.runs: list[FakeRun] = []
        self.fails_at = -1

    def init(self, **given: Any) -> FakeRun:
        if len(self.runs) == self.fails_at:
            raise ConnectionError("no API key configured")
        self.runs.append(FakeRun(given))
        return self.runs[-1]


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


@pytest.mark.parametrize("words", [["wandb:on"], ["--wandb", "on"]])
def test_wandb_gets_one_run_per_run_with_its_progress_and_final_numbers(
    cli: Cli, shelf: Path, tmp_path: Path, wandb: FakeWandb, words: list[str]
) -> None:
    command = ["shelf", "--plugin", shelf, *words, "--seeds", "0", "13", "--executor", "serial", "--out", tmp_path]
    code, _, err = cli(*command)
    assert code == 1 and "unlucky" in err  # seed 13 fails, and is told to W&B as failed
    done, failed = wandb.runs
    assert done.given["project"] == "assay-shelf" and done.given["reinit"] == "create_new"
    assert done.given["name"] == "shelf attention seed=0" and done.given["id"] in cli("show", "--out", tmp_path)[1]
    assert done.given["config"]["rate"] == 0.5 and done.given["config"]["seed"] == 0
    assert done.rows == [(5, {"loss": 0.5}), (10, {"loss": 0.25})]
    assert done.summary == {"loss": 0.25, "by.first": 1}
    assert (done.exit_code, failed.exit_code) == (0, 1) and failed.given["config"]["seed"] == 13


@pytest.mark.parametrize("word", ["wandb:None", "wandb:none", "--wandb=None"])
def test_wandb_is_off_unless_asked_for_and_no_part_of_an_id(
    cli: Cli, shelf: Path, tmp_path: Path, wandb: FakeWandb, word: str
) -> None:
    command = ["shelf", "--plugin", shelf, "--executor", "serial", "--out", tmp_path]
    assert cli(*command, word)[0] == 0 and wandb.runs == []
    assert "1 stored, nothing to run" in cli(*command, "wandb:on")[2] and wandb.runs == []


def test_wandb_missing_or_without_a_login_is_said_before_anything_is_computed(
    cli: Cli, shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wandb: FakeWandb
) -> None:
    command = ["shelf", "wandb:on", "--plugin", shelf, "--executor", "serial", "--out", tmp_path / "results"]
    wandb.fails_at = 0
    code, _, err = cli(*command, "--quiet")
    assert code == 2 and "no API key configured. Mend that, set WANDB_MODE=offline" in err
    for missing in (None, ModuleType("wandb")):  # not installed, and a folder of that name
        monkeypatch.setitem(sys.modules, "wandb", missing)
        code, out, err = cli(*command)
        assert code == 2 and out == ""
        assert err == "assay: wandb:on needs the package wandb: pip install 'assay-bench[wandb]', or leave it out.\n"
    assert not (tmp_path / "results").exists()


def test_a_connection_lost_on_the_way_stops_the_log_and_not_the_runs(
    cli: Cli, shelf: Path, tmp_path: Path, wandb: FakeWandb
) -> None:
    wandb.fails_at = 1
    code, _, err = cli(
        "shelf", "wandb:on", "--plugin", shelf, "--seeds", "0..2", "--executor", "serial", "--out", tmp_path
    )
    assert code == 0 and len(wandb.runs) == 1 and err.count("nothing more goes to Weights & Biases") == 1
    assert cli("show", "--out", tmp_path)[1].count(" done ") == 3


def test_an_interrupted_log_closes_what_is_open(toy: Any, wandb: FakeWandb) -> None:
    from assay.command.wandb_log import logged

    runs = toy(xs=(1, 2)).plan()
    with pytest.raises(KeyboardInterrupt), logged(print, runs, {run.id: "label" for run in runs}):
        raise KeyboardInterrupt
    assert [run.exit_code for run in wandb.runs] == [1]
