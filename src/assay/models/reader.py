"""Hidden states of a language model become logits here as the model itself makes them, some positions at a time.

The logits of a whole text fill memory, and models do more than multiply by their output head: Granite and Cohere scale
the product, Gemma 2 caps it. So the model's own forward pass is run with the hidden states in place of its body.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from assay.core.errors import UserError

CLOSE = 1e-2
"""Relative distance within which logits are the same: bf16 rounds to 3 digits."""


class Reader:
    """A causal language model in two parts: its body, which gives hidden states, and what makes logits of them."""

    @torch.no_grad()
    def __init__(self, model: nn.Module) -> None:
        self.model, self.device, name = model, next(model.parameters()).device, type(model).__name__
        ids = torch.arange(8, device=self.device)[None]
        whole = model(ids, use_cache=False).logits.float()
        if not whole.isfinite().all():
            raise UserError(f"{name} gives logits that are not finite: look at its weights.")
        for body in bodies(model):
            self.body, self.given = body, body(ids, use_cache=False)
            pieces = torch.cat([self.logits(part).float() for part in self.given[0].split(4, dim=1)], dim=1)
            if whole.shape == pieces.shape and (whole - pieces).norm() <= CLOSE * whole.norm():
                return
        raise UserError(f"{name} makes the logits of a token of more than its hidden state, which is not supported.")

    def log_probabilities(self, hidden: Float[Tensor, "rows time d"]) -> Float[Tensor, "rows time vocab"]:
        return self.logits(hidden).float().log_softmax(-1)

    def logits(self, hidden: Float[Tensor, "rows time d"]) -> Float[Tensor, "rows time vocab"]:
        given: Any = copy.copy(self.given)
        given["last_hidden_state"] = hidden
        with replaced(self.body, given):
            ids = torch.zeros(hidden.shape[:2], dtype=torch.long, device=hidden.device)
            return self.model(ids, use_cache=False).logits


def bodies(model: Any) -> list[nn.Module]:
    """Return the parts that may be what gives hidden states: most models call their base model, OPT the decoder in it,
    and the name of Llama 4's is another one."""
    found = (model.base_model, model.get_decoder(), getattr(model, "model", model))
    return list(dict.fromkeys(part for part in found if part is not model))


@contextmanager
def replaced(body: nn.Module, given: Any) -> Iterator[None]:
    """Let the body return this inside the block, whatever it is given."""
    before = vars(body).get("forward")
    body.forward = lambda *_, **__: given
    try:
        yield
    finally:
        if before is None:
            del body.forward
        else:
            body.forward = before
