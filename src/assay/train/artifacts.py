"""Tensors that a run saved, read back from its record."""

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from assay.core.run import Record


def saved_tensors(record: Record, name: str) -> dict[str, Tensor]:
    """The tensors of an artifact; a file that is missing or damaged is said in one line."""
    data = record.artifact(name)
    try:
        return safetensors.torch.load(data)
    except (SafetensorError, ValueError) as error:
        raise record.damaged(name, str(error)) from None
