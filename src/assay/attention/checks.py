"""What a method gives is looked at before it is used, so that a fault is told as the method's, by name.

Shapes and kinds are looked at wherever a method is asked. Numbers are looked at inside `numbers()`, once at its end, so
that a GPU is not waited for in every layer; outside it nobody looks, since a mixer whose training has diverged gives
numbers that are none through no fault of its method.

    with numbers() as seen:                 # the layers of a forward pass
        with asked(method, given, layer):   # a layer asks a method which keys it reads
            ...
        seen.raise_for_none()

Scores are looked at where a method chooses by them, in whatever way it does: inside `asked`, the numbers that go into
an operation whose result is booleans or indices (a comparison, a sort, a top-k).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from assay.attention.layer import Layer
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
def asked(method: Plugin, given: Tensor | None, layer: Layer | None = None) -> Iterator[None]:
    """Inside, scores are those of this method, and with a layer what it chooses by is looked at; `given` is what
    `sound` said."""
    token = _ASKED.set(None if given is None else (method.label, given))
    try:
        with nullcontext() if given is None or layer is None else _Choices(layer):
            yield
    finally:
        _ASKED.reset(token)


def look(scores: Tensor, layer: Layer | None = None) -> None:
    """Note whether any of these is no number; of scores between every query and key of a layer, those of pairs that
    the model hides do not count."""
    seen, asking = _NUMBERS.get(), _ASKED.get()
    if seen is not None and asking is not None:
        label, given = asking
        none = scores.isnan()
        if layer is not None and none.ndim > 2 and none.shape[-2:] == (layer.time, layer.time):
            between = none.ndim - 3  # axes of heads
            none = none & layer.visible[(slice(None), *[None] * between)]
        seen.note(label, none.any() & given)


ASKS_FOR_NONE = {"isnan", "isfinite", "isinf", "isposinf", "isneginf", "isreal", "ne"}
"""Tests for what is no number (`x != x` is one): a method may make them and mend what it finds."""
READS_NONE = ("_like", "empty", "zeros", "ones", "full")
"""Ends of the names of operations that take a shape from their argument, and no number."""
LEAVES_TORCH = {"item", "tolist", "numpy", "__array__", "__float__", "__bool__"}
"""A method may go on to choose in plain Python."""


class _Choices(TorchFunctionMode):
    """Looks at the numbers of every operation that makes a choice of them."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.layer = layer

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        found = func(*args, **given)
        if _chooses(getattr(func, "__name__", ""), found):
            for value in (*args, *given.values()):
                if isinstance(value, Tensor) and value.is_floating_point():
                    look(value, self.layer)
        return found


def _chooses(name: str, found: Any) -> bool:
    if name in ASKS_FOR_NONE or name.endswith(READS_NONE):
        return False
    results = found if isinstance(found, tuple) else (found,)
    made = any(isinstance(x, Tensor) and not (x.is_floating_point() or x.is_complex()) for x in results)
    return made or name in LEAVES_TORCH
