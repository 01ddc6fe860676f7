"""A checkpoint is a convenience: a run that cannot write one, or cannot use the one it finds, ends in the same bits."""

import errno
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from assay.core.run import canonical
from assay.core.study import Context, Outcome, Progress, Study
from assay.studies.icl.icl import InContext
from assay.studies.modular.sweep import Sweep
from assay.studies.perplexity.scoring import Tally
from assay.studies.sae.sae import Sae, parsed
from assay.tasks import tasks
from assay.train import checkpoint as module
from assay.train.checkpoint import fill, load_checkpoint, save_checkpoint
from assay.train.recipe import Train

CPU = torch.device("cpu")
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


HARMS: dict[str, Callable[[Any], Any]] = {
    "narrow": narrowed,
    "a list": lambda content: [1, 2, 3],
    "no such keys": lambda content: {key: {} for key in content} | {"owners": content.get("owners")},
}


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("name", STUDIES)
def test_a_checkpoint_of_another_shape_is_set_aside_and_the_run_starts_anew(
    name: str, harm: str, tmp_path: Path
) -> None:
    study = STUDIES[name]()
    path = interrupted(study, tmp_path)
    torch.save(HARMS[harm](load_checkpoint(path, CPU)), path)
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
    with pytest.warns(UserWarning, match=r"no checkpoint can be written \(No space left on device\): runs go on"):
        assert finished(study, tmp_path) == undisturbed(name)
    assert not list(tmp_path.rglob("*"))


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
        assert load_checkpoint(tmp_path / "checkpoint", CPU) is None
    save_checkpoint(tmp_path / "checkpoint", {"x": 1})
    assert load_checkpoint(tmp_path / "checkpoint", CPU) == {"x": 1}


def test_a_tensor_is_never_stretched_and_sums_of_another_text_are_refused() -> None:
    with pytest.raises(ValueError, match="shape"):
        fill(torch.zeros(3, 2), torch.ones(3, 1))
    with pytest.raises(ValueError, match="another text"):
        Tally(clusters=3, queries=4).restore(Tally(clusters=2, queries=4).state())
