"""A sweep that is cut short goes on from its checkpoint, and ends in the bits of one that was not."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from assay.core.run import Run, canonical
from assay.core.store import Store
from assay.core.study import Context, Outcome, Progress
from assay.studies.modular.bilinear_bank import BilinearBank
from assay.studies.modular.records import WEIGHTS
from assay.studies.modular.sweep import Sweep
from assay.train.checkpoint import load_checkpoint, save_checkpoint

SWEEP = Sweep(
    P=11, batch=8, epochs=30, lr=2e-2, weight_decay=0.5, train_share=0.97, dimensions=(2, 5, 12, 17, 20), seeds=(0, 1)
)
SCRIPT = """
import os, signal, sys
from assay.core.store import Store
from assay.core.study import Context
from test_modular_resume import SWEEP

def emit(progress):
    if progress.done == 20:
        os.kill(os.getpid(), signal.SIGKILL)

store = Store(sys.argv[1])
for outcome in SWEEP.execute(SWEEP.plan(), Context(emit=emit, scratch=str(store.root))):
    store.commit(outcome)
"""


def finished(
    runs: list[Run], scratch: Path | None = None, emit: Callable[[Progress], None] | None = None
) -> list[Outcome]:
    ctx = Context(scratch=None if scratch is None else str(scratch), emit=emit or (lambda progress: None))
    return list(SWEEP.execute(runs, ctx))


def contents(outcomes: list[Outcome]) -> dict[str, tuple[str, bytes]]:
    return {o.run.id: (canonical(dict(o.metrics)), o.artifacts[WEIGHTS]) for o in outcomes}


@pytest.fixture
def epochs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the epochs that are trained."""
    numbers, plain = list[int](), BilinearBank._epoch
    monkeypatch.setattr(BilinearBank, "_epoch", lambda bank, number: numbers.append(number) or plain(bank, number))
    return numbers


def test_a_killed_sweep_goes_on_exactly(tmp_path: Path, epochs: list[int]) -> None:
    """kill -9 at epoch 20, when some models are stored already and have left the bank."""
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    killed = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], env=os.environ | {"PYTHONPATH": path}, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    store = Store(tmp_path)
    stored = {record.run.id: (canonical(dict(record.metrics)), record.artifact(WEIGHTS)) for record in store.records()}
    rest = [run for run in SWEEP.plan() if run.id not in stored]
    assert stored and rest, "some are stored, some are not"
    found = stored | contents(finished(rest, store.root))
    assert epochs[0] > 1, "it went on, it did not begin again"
    assert found == contents(finished(SWEEP.plan()))


def interrupt_at(epoch: int) -> Callable[[Progress], None]:
    def emit(progress: Progress) -> None:
        if progress.done == epoch:
            raise KeyboardInterrupt

    return emit


def test_other_companions_change_nothing(tmp_path: Path, epochs: list[int]) -> None:
    """Half of the runs are interrupted; then all are asked for: the half goes on, the others begin."""
    half = [run for run in SWEEP.plan() if run.options["d_hidden"] in (2, 17)]
    with pytest.raises(KeyboardInterrupt):
        finished(half, tmp_path, interrupt_at(5))
    del epochs[:]
    found = contents(finished(SWEEP.plan(), tmp_path))
    assert epochs[0] > 1 and 1 in epochs and found == contents(finished(SWEEP.plan()))


def test_a_damaged_checkpoint_counts_as_absent(tmp_path: Path, epochs: list[int]) -> None:
    with pytest.raises(KeyboardInterrupt):
        finished(SWEEP.plan(), tmp_path, interrupt_at(5))
    (path,) = tmp_path.rglob("checkpoint")
    path.write_bytes(path.read_bytes()[:-100])
    del epochs[:]
    with pytest.warns(UserWarning, match="starts anew"):
        found = contents(finished(SWEEP.plan(), tmp_path))
    assert epochs[0] == 1 and found == contents(finished(SWEEP.plan()))


def test_a_checkpoint_is_whole_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is written beside its place and synced before it takes it; what was there stays until then."""
    path, synced = tmp_path / "checkpoint", list[int]()
    save_checkpoint(path, {"x": torch.ones(3)})
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(fd) or sync(fd))
    save_checkpoint(path, {"x": torch.zeros(3)})
    assert synced and [p.name for p in tmp_path.iterdir()] == ["checkpoint"]
    monkeypatch.setattr(os, "fsync", lambda fd: (_ for _ in ()).throw(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(path, {"x": torch.ones(3)})
    assert torch.equal(load_checkpoint(path)["x"], torch.zeros(3))
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint"]
