"""A checkpoint is the file from which an interrupted run goes on: whole or absent, like everything that is written.

It is a convenience. A run that cannot write one, or cannot use the one it finds, is computed without it.
"""

import io
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from assay.core.files import open_plain, write_file
from assay.core.run import Run
from assay.core.study import SET_ASIDE, Context

SAVING = 0.05
"""Share of the time that checkpoints may take: those of many models are gigabytes."""
T = TypeVar("T")


@dataclass(frozen=True)
class Saved:
    """A checkpoint as it was read: how far its runs had come, and the ids of those runs."""

    path: Path
    content: Any
    done: int
    runs: frozenset[str]


def save_checkpoint(path: Path, saved: Any) -> None:
    """Write what a later process needs to go on. Where the disk is full, the run itself is not lost: it goes on, and
    a warning says once per process that it could not be resumed."""
    buffer = io.BytesIO()
    torch.save(saved, buffer)
    try:
        write_file(path, buffer.getvalue())
    except OSError as error:
        warnings.warn(
            f"no checkpoint can be written ({error.strerror}): runs go on, but could not be resumed if interrupted",
            stacklevel=2,
        )


def load_checkpoint(path: Path | None, device: torch.device) -> Any:
    """What was saved; None where nothing was, and, with a warning, where the file is damaged: the run starts anew."""
    if path is None:
        return None
    try:
        with open_plain(path) as file:
            return torch.load(file, map_location=device, weights_only=True)
    except FileNotFoundError:
        return None
    except torch.OutOfMemoryError:  # the file is not to blame
        raise
    except Exception as error:  # noqa: BLE001 - a damaged pickle can raise anything
        _set_aside(path, error)
        return None


def checkpoints(
    runs: Sequence[Run], ctx: Context, device: torch.device, covers: Callable[[Any], tuple[int, Iterable[str]]]
) -> list[Saved]:
    """What interrupted processes left of these runs, the furthest first. `covers` says of a checkpoint's content how
    far it had come and with which runs."""
    found = []
    for path in filter(None, map(ctx.checkpoint, runs)):
        content = load_checkpoint(path, device)
        if content is None:
            continue
        try:
            done, ids = covers(content)
            found.append(Saved(path, content, int(done), frozenset(ids)))
        except MISFIT as error:
            _set_aside(path, error)
    return sorted(found, key=lambda saved: -saved.done)


def resumed(path: Path | None, start: Callable[[], T], take_up: Callable[[T], None]) -> T:
    """What `start` makes, brought by `take_up` to where the checkpoint at `path` was. One that does not fit, written
    by other code say, is set aside, and the run starts anew: half of it may have been taken up by then."""
    fresh = start()
    if path is None:
        return fresh
    try:
        take_up(fresh)
        return fresh
    except torch.OutOfMemoryError:
        raise
    except MISFIT as error:
        _set_aside(path, error)
        return start()


def fill(mine: torch.Tensor, saved: torch.Tensor) -> None:
    """Copy a saved tensor into one of the same shape; `copy_` alone would stretch a smaller one."""
    if mine.shape != saved.shape:
        raise ValueError(f"a tensor of shape {tuple(saved.shape)} where {tuple(mine.shape)} is needed")
    mine.copy_(saved)


MISFIT = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What taking up a checkpoint of another shape may raise."""


def _set_aside(path: Path, error: Exception) -> None:
    reason = str(error).strip().partition("\n")[0]
    warnings.warn(f"the checkpoint {path} cannot be used ({reason}): the run starts anew", stacklevel=3)
    try:
        path.replace(path.with_name(path.name + SET_ASIDE))
    except OSError:  # a read-only disk: the run can do without
        return
