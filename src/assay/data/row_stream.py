"""Rows of a language model's modules are streamed through a buffer: several modules from one forward pass, never all
rows in memory.

Buffer number n is made of the n-th so many training windows, whose order is drawn over the whole text; inside a buffer
every seed draws an order of its own (train.coder_bank). So rows of a batch come from thousands of documents, the same
ones every time, and a training that resumes makes its buffer again from the number alone.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from assay.core.errors import UserError
from assay.data.activation_cache import outputs
from assay.data.token_windows import Windows
from assay.nn.preparation import Preparation

SPARE = 64
"""One window in so many is read beyond those that fill a buffer, in the place of rows that are left out."""


def raw_rows(
    model: nn.Module, hooks: Sequence[str], batches: Iterator[Int[Tensor, "some context"]]
) -> Iterator[dict[str, Float[Tensor, "n d"]]]:
    """Yield the outputs of modules for each token but the first of a window, in float32; one forward pass for all. On
    CUDA the model computes in bf16 autocast."""
    device = next(model.parameters()).device
    for ids in batches:
        with torch.autocast("cuda", torch.bfloat16, enabled=device.type == "cuda"):
            seen = outputs(model, hooks, ids.to(device), use_cache=False)
        yield {hook: x[:, 1:].flatten(0, 1).float() for hook, x in seen.items()}


class RowStream:
    """Buffers of prepared rows, one for each module, filled together."""

    def __init__(
        self, model: nn.Module, windows: Windows, preparations: Mapping[str, Preparation], *, rows: int, batch: int
    ) -> None:
        self.model, self.windows, self.preparations, self.batch = model, windows, preparations, batch
        least = -(-rows // (windows.context - 1))
        self.per_buffer = least + -(-least // SPARE)
        self.buffers = {
            hook: torch.zeros(rows, len(own.mean), device=own.mean.device) for hook, own in preparations.items()
        }

    @property
    def tokens(self) -> int:
        """Tokens that the model reads for one buffer."""
        return self.per_buffer * self.windows.context

    def read(self, buffers: int) -> dict[str, float]:
        """What so many buffers read of the text."""
        passes = buffers * self.per_buffer / len(self.windows.train)
        return {"tokens_streamed": buffers * self.tokens, "text_passes": passes}

    def fill(self, number: int) -> None:
        """Replace the rows in place by those of buffer `number`: graphs of a training step hold these tensors."""
        filled = dict.fromkeys(self.buffers, 0)
        places = self.windows.training(number * self.per_buffer, self.per_buffer)
        batches = (self.windows.tokens(some) for some in places.split(self.batch))
        for seen in raw_rows(self.model, list(self.buffers), batches):
            for hook, raw in seen.items():
                buffer, own, start = self.buffers[hook], self.preparations[hook], filled[hook]
                kept = own.prepare(raw[own.usual(raw)])[: len(buffer) - start]
                buffer[start : start + len(kept)] = kept
                filled[hook] += len(kept)
        for hook, count in filled.items():
            # Where more rows were left out than are read to spare, the first ones fill the end again.
            missing = len(self.buffers[hook]) - count
            if missing > count:
                raise UserError(
                    f"{hook}: more than half of the rows are longer than `longest` allows. Raise it, or give 0."
                )
            self.buffers[hook][count:] = self.buffers[hook][:missing].clone()
