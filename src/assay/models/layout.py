"""Two short passes through a language model show which of its layers attend, and how each rotates by positions.

The same tokens are read alone, once at position 0 and once at position STEP. A token that is alone attends to itself,
so that nothing but rotary positions differs between the two: what turns the first queries and keys into the second ones
is the layer's rotation. The ways known to transformers' models are tried in order:

    as it is              a layer without rotary positions (some of SmolLM3, Cohere 2 and Llama 4)
    all channels          Llama, Qwen, Gemma, ...; GPT-NeoX and GLM, whose function leaves some channels out itself
    the first channels    Phi, StableLM
    the last channels     DeepSeek

A layer that none of them fits has positions that cannot be counted anew, and methods that need it say so. Layers that
do not attend (the recurrent ones of a hybrid) are not counted.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn

from assay.attention.layer import Turn
from assay.core.errors import UserError
from assay.models.taking_over import taking_over

CONSTANT_ROTARY = ("default", "linear", "llama3", "yarn")
"""Kinds of rotary positions whose frequencies do not depend on the length."""
NOT_KNOWN = "positions cannot be counted anew: this model rotates queries and keys in a way of its own."
NOT_CONSTANT = f"positions can be counted anew for rotary positions of the kinds {', '.join(CONSTANT_ROTARY)} alone."
STEP, TOKENS = 61, 4
CLOSE = 0.02
"""Relative distance within which queries are the same: bf16 rounds to 3 digits, another rotation differs by more."""


@dataclass(frozen=True)
class Seen:
    """The queries and keys of an attention layer in a pass, the width of its values, and whether scores are capped."""

    module: nn.Module
    q: Float[Tensor, "rows heads 1 d"]
    k: Float[Tensor, "rows kv_heads 1 d"]
    width: int
    capped: bool


@dataclass
class Layout:
    """The attention layers of a model, in order, by their indices in it."""

    turns: dict[int, Turn | None]
    """How each layer rotates queries and keys by so many positions; None: the model has no rotary positions."""
    vector: int | float
    """Width of a key or a value, in the mean over both and over layers."""
    capped: bool
    """Whether scores are capped."""

    def place(self, index: int) -> int:
        """Return the place of a layer among those that attend."""
        try:
            return list(self.turns).index(index)
        except ValueError:
            raise UserError(
                f"layer {index} attends now, and did not for a single token: it cannot be followed."
            ) from None


_LAYOUTS: WeakKeyDictionary[nn.Module, Layout] = WeakKeyDictionary()
"""Cached per model: every batch of windows asks."""


def model_layout(model: nn.Module) -> Layout:
    """Return which layers of a model attend, and how they rotate by positions."""
    if model not in _LAYOUTS:
        rotaries = [part for part in model.modules() if rotary_kinds(part)]
        with torch.no_grad(), evaluated(model):
            here = seen_at(0 if rotaries else None, model)
            there = seen_at(STEP, model) if rotaries else {}
            turns = {index: turn_of(seen, there[index], rotaries) if there else None for index, seen in here.items()}
        widths = [width for seen in here.values() for width in (seen.k.shape[-1], seen.width)]
        mean = sum(widths) / max(1, len(widths))
        capped = any(seen.capped for seen in here.values())
        _LAYOUTS[model] = Layout(turns, int(mean) if mean.is_integer() else mean, capped)
    return _LAYOUTS[model]


def seen_at(position: int | None, model: Any) -> dict[int, Seen]:
    """Return what each layer that attends is given for tokens that are alone, in the order of layers."""
    found: dict[int, Seen] = {}

    def look(
        module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, cap: float | None = None, **_: Any
    ) -> Tensor:
        found[int(module.layer_idx)] = Seen(module, q.detach(), k.detach(), v.shape[-1], cap is not None)
        return v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)  # one key has all the weight

    embedding = model.get_input_embeddings().weight
    tokens = torch.arange(1, TOKENS + 1, device=embedding.device)[:, None] % len(embedding)
    places = {} if position is None else {"position_ids": torch.full_like(tokens, position)}
    with taking_over(model, look):
        getattr(model, "base_model", model)(tokens, **places, use_cache=False)
    return dict(sorted(found.items()))


@contextmanager
def evaluated(model: nn.Module) -> Iterator[None]:
    """Turn dropout off inside, which would make two passes differ, part by part as it was."""
    training = [part for part in model.modules() if part.training]
    for part in training:
        part.training = False
    try:
        yield
    finally:
        for part in training:
            part.training = True


def rotary_kinds(part: nn.Module) -> tuple[str, ...]:
    """Return the kinds of rotary positions that a module gives, one or one for each kind of layer."""
    kind: Any = getattr(part, "rope_type", "default" if hasattr(part, "inv_freq") else None)
    if isinstance(kind, dict):
        return tuple(kind.values())
    return (kind,) if kind and hasattr(part, "attention_scaling") else ()


def turn_of(here: Seen, there: Seen, rotaries: list[nn.Module]) -> Turn:
    """Return the function that turns what was seen at position 0 into what was seen at STEP."""
    known = [rotary for rotary in rotaries if set(rotary_kinds(rotary)) <= set(CONSTANT_ROTARY)]
    for turn in (as_it_is, *(way for rotary in known for way in ways(here.module, rotary))):
        if fits(turn, here, there):
            return turn
    return not_known if len(known) == len(rotaries) else not_constant


def fits(turn: Turn, here: Seen, there: Seen) -> bool:
    steps = torch.full((1, 1), STEP, device=here.q.device)
    for before, after in ((here.q, there.q), (here.k, there.k)):
        try:
            turned = turn(before, steps)
        except (RuntimeError, TypeError, ValueError):  # made for other channels
            return False
        if turned.shape != after.shape or (turned - after).float().norm() > CLOSE * after.float().norm():
            return False
    return True


def ways(module: nn.Module, rotary: Any) -> Iterator[Turn]:
    """Yield the ways in which the model's own function may rotate a layer by its own rotary embedding."""
    apply = getattr(sys.modules[type(module).__module__], "apply_rotary_pos_emb", None)
    if apply is None:
        return
    # Local and global layers may have rotary positions each of their own, as those of Gemma 3.
    own = isinstance(rotary.rope_type, dict) if hasattr(rotary, "rope_type") else False
    config: Any = module.config
    kind = [config.layer_types[module.layer_idx]] if own else []
    scaling = getattr(rotary, f"{kind[0]}_attention_scaling" if own else "attention_scaling")

    def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return apply(x, x, cos / scaling, sin / scaling)[0]

    def every(x: Tensor, positions: Tensor) -> Tensor:
        return rotated(x, *rotary(x, positions, *kind))

    def first(x: Tensor, positions: Tensor) -> Tensor:
        cos, sin = rotary(x, positions, *kind)
        width = cos.shape[-1]
        return torch.cat([rotated(x[..., :width], cos, sin), x[..., width:]], dim=-1)

    def last(x: Tensor, positions: Tensor) -> Tensor:
        cos, sin = rotary(x, positions, *kind)
        width = x.shape[-1] - cos.shape[-1]
        return torch.cat([x[..., :width], rotated(x[..., width:], cos, sin)], dim=-1)

    yield from (every, first, last)


def why_not(turn: Turn | None) -> str:
    """Return why positions cannot be counted anew with a layer's rotation; nothing, if they can."""
    return NOT_KNOWN if turn is not_known else NOT_CONSTANT if turn is not_constant else ""


def as_it_is(x: Tensor, positions: Tensor) -> Tensor:
    return x


def not_known(x: Tensor, positions: Tensor) -> Tensor:
    raise UserError(NOT_KNOWN)


def not_constant(x: Tensor, positions: Tensor) -> Tensor:
    raise UserError(NOT_CONSTANT)
