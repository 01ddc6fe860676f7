"""Reads the tensors that a run saved from its record."""

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from assay.core.run import Record


def saved_tensors(record: Record, name: str) -> dict[str, Tensor]:
    """Load the tensors of an artifact; raises a one-line error for a missing or damaged file."""
    data = record.artifact(name)
    try:
        return safetensors.torch.load(data)
    except (SafetensorError, ValueError) as error:
        raise record.damaged(name, str(error)) from None
