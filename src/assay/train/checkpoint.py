"""A file from which an interrupted training goes on: whole or absent, like everything that is written."""

import io
import pickle
import warnings
from pathlib import Path
from typing import Any

import torch

from assay.core.store import disk_errors, write_file

SAVING = 0.05
"""Share of the time that checkpoints may take: those of many models are gigabytes."""


def save_checkpoint(path: Path, saved: Any) -> None:
    buffer = io.BytesIO()
    torch.save(saved, buffer)
    with disk_errors(path):
        write_file(path, buffer.getvalue())


def load_checkpoint(path: Path, device: torch.device) -> Any:
    """What was saved; None, with a warning, where the file is damaged: training then starts anew."""
    try:
        return torch.load(path, map_location=device, weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, pickle.UnpicklingError) as error:
        reason = str(error).strip().partition("\n")[0]
        warnings.warn(f"the checkpoint {path} cannot be read ({reason}): training starts anew", stacklevel=2)
        return None
