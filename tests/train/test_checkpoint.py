"""A checkpoint is a convenience: a run that cannot write one, or cannot use the one it finds, ends in the same bits."""

import errno
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from assay.core.run import Run, canonical
from assay.core.study import Context, Outcome, Progress, Study
from assay.studies.icl.icl import InContext
from assay.studies.modular.sweep import Sweep
from assay.studies.perplexity.scoring import Tally
from assay.studies.sae.sae import Sae, parsed
from assay.tasks import tasks
from assay.train import checkpoint as module
from assay.train.checkpoint import Checkpoint, Keeper, fill, load_checkpoint, resumed, save_checkpoint, unfinished
from assay.train.recipe import Train

STUDIES: dict[str, Callable[[], Study]] = {
    "icl": lambda: InContext(
        task=tasks.parse("mqar:vocab_size=16:input_seq_len=8:num_kv_pairs=2"), eval_size=8, seeds=(0, 1),
        train=Train(max_steps=4, micro_batch_size=4, validate_every=1),
    ),
    "modular": lambda: Sweep(P=5, batch=5, epochs=4, dimensions=(2, 3), seeds=(0,)),
    "sae": lambda: Sae(coders=parsed(("topk:k=2", "topk:k=3")), d_code=4, epochs=4, seeds=(0,), lrs=(1e-3,)),
}  # fmt: skip


def finished(study: Study, scratch: Path | None, emit: Callable[[Progress], None] = lambda progress: None) -> Any:
    runs = [run for run in study.plan() if run.options.get("model", 0) is not None]  # no oracle of icl
    outcomes = study.execute(runs, Context(scratch=scratch and str(scratch), emit=emit))
    return {o.run.id: canonical(_decided(o)) for o in outcomes}


@cache
def undisturbed(name: str) -> Any:
    return finished(STUDIES[name](), None)


def _decided(outcome: Outcome) -> dict[str, Any]:
    return {key: value for key, value in outcome.metrics.items() if "seconds" not in key}


def interrupted(study: Study, scratch: Path) -> Path:
    """Where a run that was cut short in the middle left its checkpoint."""

    def emit(progress: Progress) -> None:
        if progress.done >= 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finished(study, scratch, emit)
    (path,) = scratch.rglob("checkpoint")
    return path


def narrowed(value: Any) -> Any:
    """The same content with every tensor of numbers one column wide, which `copy_` would stretch silently."""
    if isinstance(value, dict):
        return {key: narrowed(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [narrowed(item) for item in value]
    if isinstance(value, torch.Tensor) and value.is_floating_point() and value.ndim:
        return value[..., :1].clone()
    return value


pytestmark = pytest.mark.usefixtures("hasty")
HARMS: dict[str, Callable[[Any], Any]] = {
    "narrow": narrowed,
    "a list": lambda content: [1, 2, 3],
    "no such keys": lambda content: content | {"state": {}, "runs": {key: {} for key in content["runs"]}},
}
READING: dict[str, Callable[[Any], Any]] = {
    "no progress": lambda content: content | {"done": {}},
    "of another version": lambda content: {"owners": list(content["runs"]), "state": content["state"]},
}
"""Harms that are met where every study's checkpoints are read: one study stands for all."""


@pytest.mark.parametrize(
    ("name", "harm"), [*((name, harm) for name in STUDIES for harm in HARMS), *(("modular", harm) for harm in READING)]
)
def test_a_checkpoint_of_another_shape_is_set_aside_and_the_run_starts_anew(
    name: str, harm: str, tmp_path: Path
) -> None:
    study = STUDIES[name]()
    path = interrupted(study, tmp_path)
    torch.save((HARMS | READING)[harm](load_checkpoint(path)), path)
    with pytest.warns(UserWarning, match="cannot be used .* starts anew"):
        assert finished(study, tmp_path) == undisturbed(name)
    assert path.with_name("checkpoint.unreadable").exists()


@pytest.mark.parametrize("name", STUDIES)
def test_a_full_disk_costs_the_checkpoint_and_not_the_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(module, "write_file", full)
    study = STUDIES[name]()
    with pytest.warns(UserWarning, match=r"no checkpoint can be written \(No space left on device\): runs continue"):
        assert finished(study, tmp_path) == undisturbed(name)
    assert not list(tmp_path.rglob("*"))


@pytest.mark.usefixtures("undrawn")
def test_a_sweep_on_a_full_disk_warns_once_and_ends(cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(module, "write_file", full)
    words = ["--P", "5", "--batch", "5", "--epochs", "4", "--dimensions", "2", "3", "--seeds", "0", "--device", "cpu"]
    code, _, err = cli("modular", "sweep", *words, "--executor", "serial", "--out", tmp_path)
    assert code == 0 and err.count("no checkpoint can be written") == 1


def test_a_pipe_in_place_of_a_checkpoint_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "checkpoint")
    with pytest.warns(UserWarning, match="a pipe or a device, not a file"):
        assert load_checkpoint(tmp_path / "checkpoint") is None
    save_checkpoint(tmp_path / "checkpoint", {"x": 1})
    assert load_checkpoint(tmp_path / "checkpoint") == {"x": 1}


def test_a_tensor_is_never_stretched_and_sums_of_another_text_are_refused() -> None:
    with pytest.raises(ValueError, match="shape"):
        fill(torch.zeros(3, 2), torch.ones(3, 1))
    with pytest.raises(ValueError, match="another text"):
        Tally(clusters=3, queries=4).restore(Tally(clusters=2, queries=4).state())


def run(seed: int) -> Run:
    return Run("toy", options={}, seed=seed, versions={})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, and how long it takes to write a checkpoint."""
    now = [100.0, 1.0]

    def slowly(path: Path, content: Any) -> None:
        now[0] += now[1]
        save_checkpoint(path, content)

    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(module, "save_checkpoint", slowly)
    return now


def test_checkpoints_take_their_share_of_the_time_and_no_more(tmp_path: Path, clock: list[float]) -> None:
    keeper, written = Keeper(Context(scratch=str(tmp_path))), list[float]()

    def content() -> Checkpoint:
        written.append(clock[0])
        return Checkpoint(1, None, {})

    for second in range(100, 150):
        clock[0] = max(clock[0], second)
        keeper.keep(run(0), content)
    assert written == [100, 121, 142], "a second of writing in every twenty"
    keeper.keep(run(1), content)
    assert len(written) == 4, "the file beside another run is written at once: storing the first deletes its own"
    keeper.keep(run(1), content)
    keeper.keep(run(1), content, now=True)
    assert len(written) == 5, "and so is the last one"
    assert load_checkpoint(next(tmp_path.rglob("checkpoint"))) == {"done": 1, "state": None, "runs": {}}


def test_without_a_shared_disk_nothing_is_written(tmp_path: Path) -> None:
    def never() -> Checkpoint:
        raise AssertionError("nobody asked for it")

    Keeper(Context()).keep(run(0), never, now=True)


@pytest.mark.parametrize("whole", [True, False])
def test_runs_resume_from_the_furthest_checkpoint_and_the_others_start_anew(whole: bool, tmp_path: Path) -> None:
    ctx, runs = Context(scratch=str(tmp_path)), [run(seed) for seed in range(5)]
    for done, places in ((3, (0, 1)), (7, (1, 2, 3))):
        kept = {runs[k].id: {"place": k} for k in places}
        Keeper(ctx).keep(runs[places[-1]], lambda done=done, kept=kept: Checkpoint(done, "state", kept))  # type: ignore[misc]
    found = [([r.seed for r in some], saved and saved.done) for some, saved in unfinished(runs, ctx, whole=whole)]
    assert found == ([([0, 1, 2, 3, 4], None)] if whole else [([1, 2, 3], 7), ([0], 3), ([4], None)])
    (some, saved), *rest = unfinished(runs[1:4], ctx, whole=whole)
    assert some == runs[1:4] and saved is not None and saved.runs[runs[2].id] == {"place": 2} and not rest
    if whole:
        (_, other), *_ = unfinished(runs[3:0:-1], ctx, whole=True)
        assert other is None, "rows of a program stand in the order of its runs"


def test_what_was_taken_up_is_not_held_in_memory_twice() -> None:
    saved = Checkpoint(1, {"weights": torch.ones(3)}, {"a": 1})

    def take_up(mine: torch.Tensor, saved: Checkpoint) -> None:
        fill(mine, saved.state["weights"])

    assert torch.equal(resumed(saved, lambda: torch.zeros(3), take_up), torch.ones(3))
    assert saved.state is None and not saved.runs
