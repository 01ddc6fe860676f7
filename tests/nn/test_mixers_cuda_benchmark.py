"""benchmarks/mixers_cuda.py: what fails costs its own cell alone, goals are judged by attention's speed, and without a
GPU nothing is measured."""

import os
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import pytest
import torch


@pytest.fixture
def bench(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("benchmarks/mixers_cuda.py")


def test_a_failure_is_one_line_and_the_next_number_comes_from_a_fresh_process(bench: ModuleType) -> None:
    worker, late = bench.Worker(), bench.Late(60)
    try:
        first = worker.ask(late, os.getpid)
        assert worker.ask(late, os.getpid) == first != os.getpid(), "one process measures as long as nothing fails"
        assert "invalid literal" in worker.ask(late, int, "no number")
        second = worker.ask(late, os.getpid)
        assert isinstance(worker.ask(late, os._exit, 3), str), "a process that dies has a line too"
        third = worker.ask(late, os.getpid)
        spoiled = {"ms": 1.0, "graph": False}
        assert worker.ask(late, dict, spoiled) == spoiled, "a capture that failed left the generators broken"
        assert len({first, second, third, worker.ask(late, os.getpid)}) == 4
        assert worker.ask(bench.Late(-1), os.getpid) == "no time"
    finally:
        worker.close()


def test_a_mixer_that_no_graph_holds_is_marked(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "timed", lambda *args, **options: SimpleNamespace(best=2.0, device=None))

    def ask(late: object, measure: object, label: str, length: int, backend: str) -> dict[str, object]:
        return {"ms": 1.0, "graph": True} if label == "attention" else bench.device_time(lambda: None)

    attention, other = bench.trained(["attention", "gru"], [256], ["triton"], ask, None)
    assert [bench.cell(row["L = 256"]) for row in (attention, other)] == ["32.8M (1.00)", "16.4M (0.50), no graph"]


def test_recurrent_mixers_are_told_which_goals_they_meet(bench: ModuleType) -> None:
    took = {"attention": 1.0, "gated_linear_attn": 1.25, "mamba2": 0.5, "kda": 2.5, "sliding_window": 0.1}

    def ask(late: object, measure: object, label: str, length: int, backend: str) -> object:
        return "no time" if (label, length) == ("kda", 256) else {"ms": took[label], "graph": True}

    rows = bench.trained(list(took), [256, 512, 1024, 4096], ["triton"], ask, None)
    wanted = {
        "attention": "-", "gated_linear_attn": "met at 256 and 1024", "mamba2": "met at 256 and 1024 and 4096",
        "kda": "none met", "sliding_window": "-",
    }  # fmt: skip
    assert {row["mixer"]: row["goals"] for row in rows} == wanted


def test_goals_are_not_judged_where_attention_has_no_number(bench: ModuleType) -> None:
    def ask(late: object, measure: object, label: str, length: int, backend: str) -> object:
        return "out of memory" if (label, length) == ("attention", 4096) else {"ms": 1.0, "graph": True}

    _, row, other = bench.trained(["attention", "mamba2", "kda"], [256, 4096], ["triton"], ask, None)
    assert row["goals"] == other["goals"] == "met at 256"
    (row,) = bench.trained(["kda"], [4096], ["triton"], ask, None)
    assert row["goals"] == "-"


def test_without_a_gpu_it_says_so_and_starts_no_process(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def started(*given: object, **options: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(bench.subprocess, "Popen", started)
    monkeypatch.setattr("sys.argv", ["mixers_cuda.py"])
    assert bench.main() == 0
    assert capsys.readouterr().out == "no CUDA device: nothing is measured\n"


def test_a_short_trial_has_the_named_mixers_and_what_they_are_compared_with(bench: ModuleType) -> None:
    assert bench.chosen(bench.MIXERS, None) == list(bench.MIXERS)
    assert bench.chosen(bench.MIXERS, ["rwkv7", "kda"]) == [bench.MIXERS[0], "kda:num_heads=4", "rwkv7:num_heads=4"]
    with pytest.raises(SystemExit, match=r"--only kdb: no such mixer here\. Known: attention, "):
        bench.chosen(bench.MIXERS, ["kdb"])


def test_kernels_are_told_apart_by_their_names(bench: ModuleType) -> None:
    names = (
        "_gradients",
        "normed_gradients",
        "gradients_of_keys",
        "written",
        "_written",
        "_gated_normed",
        "solved",
        "nvjet_sm90",
        "_angles",
    )
    wanted = ["heads", "scan", "scan", "scan", "heads", "norm and gate", "scan", "products", "heads"]
    assert [bench.part_of(name) for name in names] == wanted
