"""What a method gives is looked at before it is used, so that a fault is told as the method's, by name.

Shapes and kinds are looked at wherever a method is asked. Numbers are looked at inside `numbers()`, once at its end, so
that a GPU is not waited for in every layer; outside it nobody looks, since a mixer whose training has diverged gives
numbers that are none through no fault of its method.

    with numbers() as seen:          # the layers of a forward pass
        with asked(method, layer):   # a layer asks a method for what keys are worth
            ...
        seen.raise_for_none()
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from assay.core.errors import UserError
from assay.core.plugin import Plugin


class MethodFault(UserError):
    """A method gave what it may not give. The message names it and says what was expected."""


def expect(found: Any, owner: Plugin, what: str, shape: dict[str, int], like: Tensor, *, mask: bool = False) -> Tensor:
    """`found`, if it is a tensor of this shape on the device of `like`: of numbers, or, for a mask, of booleans."""
    if not isinstance(found, Tensor):
        raise MethodFault(f"{owner.label}: {what} must be a tensor, got {type(found).__name__}.")
    sizes = tuple(shape.values())
    if tuple(found.shape) != sizes:
        names = ", ".join(shape)
        raise MethodFault(f"{owner.label}: {what} must be ({names}) = {sizes}, got {tuple(found.shape)}.")
    if mask != (found.dtype is torch.bool) or found.is_complex():
        kind = "booleans" if mask else "real numbers"
        raise MethodFault(f"{owner.label}: {what} must be {kind}, got {found.dtype}.")
    if found.device != like.device:
        raise MethodFault(f"{owner.label}: {what} must be on {like.device}, where the keys are, got {found.device}.")
    return found


@dataclass
class Numbers:
    """Which methods gave scores that are no numbers, kept on the device until somebody looks."""

    none: dict[str, Tensor] = field(default_factory=dict)

    def note(self, label: str, found: Tensor) -> None:
        self.none[label] = self.none[label] | found if label in self.none else found

    def raise_for_none(self) -> None:
        """Raise MethodFault if a score was no number, and forget what was seen."""
        labels = list(self.none)
        found = torch.stack(list(self.none.values())).tolist() if labels else []
        self.none.clear()
        if broken := [label for label, none in zip(labels, found, strict=True) if none]:
            raise MethodFault(f"{', '.join(broken)}: scores must be finite, and some are no numbers (NaN).")


_NUMBERS: ContextVar[Numbers | None] = ContextVar("numbers", default=None)
_ASKED: ContextVar[tuple[str, Tensor] | None] = ContextVar("asked", default=None)
"""The method that is being asked, and whether the queries and keys it was given are finite."""


@contextmanager
def numbers() -> Iterator[Numbers]:
    """Inside, scores are looked at."""
    token = _NUMBERS.set(Numbers())
    try:
        yield _NUMBERS.get()  # type: ignore[misc]
    finally:
        _NUMBERS.reset(token)


def sound(*given: Tensor) -> Tensor | None:
    """Whether what a method is given is finite: a method is not to blame for a model that overflows. None: nobody
    looks."""
    if _NUMBERS.get() is None:
        return None
    return torch.stack([tensor.isfinite().all() for tensor in given]).all()


@contextmanager
def asked(method: Plugin, given: Tensor | None) -> Iterator[None]:
    """Inside, scores are those of this method; `given` is what `sound` said."""
    token = _ASKED.set(None if given is None else (method.label, given))
    try:
        yield
    finally:
        _ASKED.reset(token)


def look(scores: Tensor) -> None:
    """Note whether any of these is no number."""
    seen, asking = _NUMBERS.get(), _ASKED.get()
    if seen is not None and asking is not None:
        label, given = asking
        seen.note(label, scores.isnan().any() & given)
