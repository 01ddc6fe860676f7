"""Writes tensors as the parts of a safetensors file, and reads those that a run saved from its record."""

import json
from collections.abc import Iterator, Mapping

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from assay.core.run import Record

NAMES = {
    torch.float64: "F64", torch.int64: "I64", torch.float32: "F32", torch.int32: "I32", torch.float16: "F16",
    torch.bfloat16: "BF16", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
"""The format's name of each dtype."""
AT_ONCE = 2**24
"""Most bytes of a tensor that are copied at a time."""


def file_parts(tensors: Mapping[str, Tensor], about: Mapping[str, str] | None = None) -> Iterator[bytes | memoryview]:
    """Yield a safetensors file in parts of some megabytes. The library's own `save` holds all tensors two more times;
    here a tensor may lie on a device, or be a transposed view, and only the part at hand is copied."""
    # Wide numbers first, as the library sorts them, so that each begins at a multiple of its size.
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, object] = {"__metadata__": dict(about)} if about else {}
    begin = 0
    for name in order:
        value = tensors[name]
        end = begin + value.numel() * value.element_size()
        header[name] = {"dtype": NAMES[value.dtype], "shape": list(value.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in order:
        rows = tensors[name].detach()
        rows = rows if rows.dim() > 1 else rows.reshape(-1)
        for some in rows.split(max(1, AT_ONCE // max(1, rows[:1].numel() * rows.element_size()))):
            yield memoryview(some.cpu().contiguous().reshape(-1).view(torch.uint8).numpy())


def saved_tensors(record: Record, name: str) -> dict[str, Tensor]:
    """Load the tensors of an artifact; raises a one-line error for a missing or damaged file."""
    data = record.artifact(name)
    try:
        return safetensors.torch.load(data)
    except (SafetensorError, ValueError) as error:
        raise record.damaged(name, str(error)) from None
