"""Presses of kvpress (Devoto et al. 2025) cut down a prefix here: any that scores keys, under this project's protocol.

    kvpress:press=SnapKVPress                                             a class of kvpress, with its own defaults
    kvpress:press=SnapKVPress:options=window_size=16+kernel_size=7        and with others
    ada:method=(kvpress:press=CURPress)                                   its scores, the slots shared out by AdaKV

The press is given what its own hooks would give it: the attention module, the hidden states, keys and values of the
prefix and the rotary positions, one sequence at a time. Its scores then decide as those of any method do. A press that
does more than score keys (it changes them, reads a prompt twice, has budgets of its own, or is trained for some models)
is refused by name.

No paper: other people's code, run as it is. It needs the extra `kvpress`; padded sequences are refused, which it does
not know.
"""

import inspect
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from assay.attention import attention
from assay.attention.base import Budget, Prefix, PrefixScores
from assay.attention.checks import MethodFault
from assay.attention.layer import Call, Layer
from assay.core.errors import UserError
from assay.nn.random import initialised_from

OWN = ("compress", "forward_hook", "__call__", "post_init_from_model")
"""Methods of a press by which it does more than score keys."""


@attention.register("kvpress")
@dataclass(frozen=True, kw_only=True)
class KVPress(Prefix):
    """Keeps the keys of a prefix that a press of kvpress scores highest."""

    portable: ClassVar[bool] = False
    asks_call: ClassVar[bool] = True

    press: str = "KnormPress"
    """A class of kvpress that scores keys."""
    options: tuple[str, ...] = ()
    """Its own options: window_size=16+kernel_size=7."""
    seed: int = 0
    """Seed of what a press draws."""

    def score(self, layer: Layer, length: int) -> PrefixScores:
        return self.score_for(layer, length, length // 2)  # most scores do not depend on how many are kept

    def score_for(self, layer: Layer, length: int, slots: int) -> PrefixScores:
        press = self.built(max(0.0, 1 - slots / length))
        if not layer.exists.all():
            raise UserError(f"{self.label}: kvpress does not know sequences that are padded.")
        rows = [self.of_row(press, layer[row : row + 1], length) for row in range(layer.rows)]
        return torch.cat(rows)

    def of_row(self, press: Any, layer: Layer, length: int) -> Float[Tensor, "1 kv_heads prefix"]:
        call = layer.call
        if call is None:
            raise UserError(f"{self.label}: a press reads the attention module of a language model, which is not here.")
        keys, values, hidden = layer.k[:, :, :length], layer.v[:, :, :length], call.hidden[:, :length]
        rotary = None if call.rotary is None else tuple(part[:, :length] for part in call.rotary)
        given = {"hidden_states": hidden, "position_embeddings": rotary}
        # The attention of the prefix, which few presses ask for.
        weights = layer.weights_between(0, length).flatten(1, 2) if "ObservedAttention" in self.press else None
        try:
            with initialised_from(self.seed, "kvpress", layer.index), with_rotary(call):
                return press.score(call.module, hidden, keys, values, weights, given)
        except (AttributeError, KeyError, TypeError, AssertionError, NotImplementedError) as error:
            name = type(call.module).__name__
            raise MethodFault(f"{self.label}: {self.press} does not take {name}: {error}.") from error

    def check(self, time: int, budget: Budget) -> None:
        """Raise UserError for a press that cannot run, before anything is computed."""
        self.built(0.5)

    def built(self, ratio: float) -> Any:
        """Return the press, which leaves out this share of the keys."""
        library = kvpress()
        cls = getattr(library, self.press, None)
        if not (inspect.isclass(cls) and issubclass(cls, library.BasePress)):
            known = ", ".join(name for name in dir(library) if fits(getattr(library, name), library))
            raise UserError(f"kvpress has no '{self.press}'. Those that score keys: {known}.")
        if not fits(cls, library):
            own = [name for name in OWN if getattr(cls, name) is not getattr(library.ScorerPress, name)]
            does = f"it has a {' and a '.join(own)} of its own" if own else "it scores no keys"
            raise UserError(f"{self.press} of kvpress does more than score keys ({does}): it cannot be run here.")
        options = dict(option.split("=", 1) for option in self.options)
        make: Any = cls
        try:
            return make(compression_ratio=ratio, **{key: _value(text) for key, text in options.items()})
        except TypeError as error:
            raise UserError(f"{self.press} of kvpress: {error}.") from None


def kvpress() -> Any:
    try:
        return import_module("kvpress")
    except ImportError as error:
        raise UserError(f"presses need kvpress: pip install 'assay-bench[kvpress]' ({error}).") from None


def fits(cls: Any, library: Any) -> bool:
    """Return whether a class of kvpress scores keys and does nothing else."""
    base = library.ScorerPress
    scores = inspect.isclass(cls) and issubclass(cls, base) and cls is not base
    return scores and all(getattr(cls, name) is getattr(base, name) for name in OWN)


@contextmanager
def with_rotary(call: Call) -> Iterator[None]:
    """Give the attention module the model's rotary embedding inside, as kvpress does."""
    module, rotary = call.module, dict(call.model.named_modules()).get("model.rotary_emb")
    if rotary is None or hasattr(module, "rotary_emb"):
        yield
        return
    module.rotary_emb = rotary
    try:
        yield
    finally:
        del module.rotary_emb


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
