"""A file from which an interrupted run goes on: whole or absent, like everything that is written."""

import io
import pickle
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from assay.core.run import Run
from assay.core.store import disk_errors, write_file
from assay.core.study import Context

SAVING = 0.05
"""Share of the time that checkpoints may take: those of many models are gigabytes."""


def save_checkpoint(path: Path, saved: Any) -> None:
    buffer = io.BytesIO()
    torch.save(saved, buffer)
    with disk_errors(path):
        write_file(path, buffer.getvalue())


def load_checkpoint(path: Path, device: torch.device) -> Any:
    """What was saved; None, with a warning, where the file is damaged: the run then starts anew."""
    try:
        return torch.load(path, map_location=device, weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, pickle.UnpicklingError) as error:
        reason = str(error).strip().partition("\n")[0]
        warnings.warn(f"the checkpoint {path} cannot be read ({reason}): the run starts anew", stacklevel=2)
        return None


def checkpoints(runs: Sequence[Run], ctx: Context, device: torch.device) -> list[Any]:
    """What interrupted processes left of these runs."""
    paths = [path for run in runs if (path := ctx.checkpoint(run)) and path.exists()]
    return [saved for path in paths if (saved := load_checkpoint(path, device)) is not None]
