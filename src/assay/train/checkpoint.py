"""The checkpoint policy of every study: what is written, when, beside which run, and who resumes from it.

A checkpoint is a file from which an interrupted computation of several runs resumes. It is whole or absent, and it is a
convenience: a run that cannot write one, or cannot use the one it finds, is computed without it, to the same bits.
"""

import io
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from assay.core.files import open_plain, write_file
from assay.core.run import Run
from assay.core.study import SET_ASIDE, Context

SAVING = 0.05
"""Largest share of the time that writing checkpoints may take: those of many models are gigabytes."""
MISFIT = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""Exceptions that a checkpoint with other contents, written by other code say, may raise when it is used."""
T = TypeVar("T")


@dataclass
class Checkpoint:
    """The progress of runs that are computed together."""

    done: int
    """Steps, epochs or windows that are finished."""
    state: Any
    """Everything they share: weights, optimizer, generators."""
    runs: Mapping[str, Any]
    """Everything that belongs to one run, by run id."""
    path: Path | None = None
    """The file it was read from."""

    def release(self) -> None:
        """Drop the content, gigabytes for many models, once it has been copied into a program."""
        self.state, self.runs = None, {}


class Keeper:
    """Writes the checkpoints of runs that are computed together."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self._due = 0.0
        self._last: Path | None = None

    def keep(self, home: Run, content: Callable[[], Checkpoint], *, now: bool = False) -> None:
        """Write a checkpoint if the last one is long enough ago, or with `now` in any case. The file lies beside the
        record-to-be of `home`, and storing that run deletes it: choose the run that is stored last. When `home`
        changes, the file of the old one is about to be deleted, so a new one is written at once."""
        path, start = self.ctx.checkpoint(home), time.perf_counter()
        if path is None or (path == self._last and start < self._due and not now):
            return
        found = content()
        save_checkpoint(path, {"done": found.done, "state": found.state, "runs": dict(found.runs)})
        self._last, self._due = path, time.perf_counter() + (time.perf_counter() - start) / SAVING


def unfinished(runs: Sequence[Run], ctx: Context, *, whole: bool) -> Iterator[tuple[list[Run], Checkpoint | None]]:
    """Split runs into groups to compute together: for each checkpoint, the furthest first, those that resume from it,
    then the others, which start anew. With `whole` a checkpoint serves its own runs in their order or none, because the
    program cannot take a part of it."""
    rest = list(runs)
    for saved in _read(runs, ctx):
        covered = [run for run in rest if run.id in saved.runs]
        if not covered or (whole and [run.id for run in runs] != list(saved.runs)):
            continue
        rest = [run for run in rest if run.id not in saved.runs]
        yield covered, saved
    if rest:
        yield rest, None


def resumed(saved: Checkpoint | None, start: Callable[[], T], take_up: Callable[[T, Checkpoint], None]) -> T:
    """Make a program with `start`, and bring it with `take_up` to where the checkpoint was. One that does not fit is
    set aside, and a second program is made, since the first may be half changed by then."""
    fresh = start()
    if saved is None:
        return fresh
    try:
        take_up(fresh, saved)
        return fresh
    except torch.OutOfMemoryError:  # no fault of the checkpoint
        raise
    except MISFIT as error:
        assert saved.path is not None
        _set_aside(saved.path, error)
        return start()
    finally:
        saved.release()


def save_checkpoint(path: Path, content: Any) -> None:
    """Write a file for a later process. On a full disk the run continues, with a warning, once per process, that it
    could not be resumed."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    try:
        write_file(path, buffer.getvalue())
    except OSError as error:
        warnings.warn(
            f"no checkpoint can be written ({error.strerror}): runs continue, but cannot be resumed if interrupted",
            stacklevel=2,
        )


def load_checkpoint(path: Path) -> Any:
    """Read the content of a file into host memory, from where it is copied into a program, wherever that lies; None
    where there is no file and, with a warning, where it is damaged."""
    try:
        with open_plain(path) as file:
            return torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        return None
    except Exception as error:  # noqa: BLE001 - a damaged pickle can raise anything
        _set_aside(path, error)
        return None


def fill(mine: torch.Tensor, saved: torch.Tensor) -> None:
    """Copy a saved tensor into one of the same shape; `copy_` alone would stretch a smaller one."""
    if mine.shape != saved.shape:
        raise ValueError(f"a tensor of shape {tuple(saved.shape)} where {tuple(mine.shape)} is needed")
    mine.copy_(saved)


def generator_states(rngs: Mapping[int, torch.Generator]) -> dict[int, torch.Tensor]:
    """Copy the state of each seed's generator."""
    return {seed: rng.get_state() for seed, rng in rngs.items()}


def restore_generators(rngs: Mapping[int, torch.Generator], states: Mapping[int, torch.Tensor]) -> None:
    """Restore the state of each seed's generator; a checkpoint may have other seeds besides."""
    for seed, rng in rngs.items():
        rng.set_state(states[seed])


def _read(runs: Sequence[Run], ctx: Context) -> list[Checkpoint]:
    """Read the checkpoints that interrupted processes left beside these runs, the furthest first."""
    found = []
    for path in filter(None, map(ctx.checkpoint, runs)):
        content = load_checkpoint(path)
        if content is None:
            continue
        try:
            found.append(Checkpoint(int(content["done"]), content["state"], dict(content["runs"]), path))
        except MISFIT as error:
            _set_aside(path, error)
    return sorted(found, key=lambda saved: -saved.done)


def _set_aside(path: Path, error: Exception) -> None:
    reason = str(error).strip().partition("\n")[0]
    warnings.warn(f"the checkpoint {path} cannot be used ({reason}): the run starts anew", stacklevel=3)
    try:
        path.replace(path.with_name(path.name + SET_ASIDE))
    except OSError:  # a read-only disk: the run works without checkpoints
        return
