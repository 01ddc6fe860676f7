"""A method's results are checked before they are used, so that an error names the method at fault.

Shapes and dtypes are always checked. Numbers are checked inside `numbers()` alone, once at its end, so that no layer
waits for a GPU; elsewhere they are not, since a mixer whose training has diverged gives NaN through no fault of its
method.

    with numbers() as seen:                 # the layers of a forward pass
        with asked(method, given, layer):   # a layer asks a method which keys it reads
            ...
        seen.raise_for_none()

Scores are checked where a method chooses by them: inside `asked`, the numbers that go into an operation whose result is
booleans or indices (a comparison, a sort, a top-k).
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor
from torch.linalg import vector_norm
from torch.overrides import TorchFunctionMode

from assay.attention.layer import Layer
from assay.core.errors import UserError
from assay.core.plugin import Plugin

T = TypeVar("T")
Kind = Literal["real numbers", "whole numbers", "booleans"]
REAL, WHOLE, BOOLEAN = get_args(Kind)


class MethodFault(UserError):
    """A method returned something invalid. The message names the method and what was expected."""


def expect(found: Any, owner: Plugin, what: str, shape: dict[str, int], like: Tensor, *, of: Kind = REAL) -> Tensor:
    """Return `found` if it is a tensor of this shape and kind on `like`'s device."""
    if not isinstance(found, Tensor):
        raise MethodFault(f"{owner.label}: {what} must be a tensor, got {type(found).__name__}.")
    sizes = tuple(shape.values())
    if tuple(found.shape) != sizes:
        names = ", ".join(shape)
        raise MethodFault(f"{owner.label}: {what} must be ({names}) = {sizes}, got {tuple(found.shape)}.")
    logical, fraction = found.dtype is torch.bool, of == WHOLE and found.is_floating_point()
    if logical != (of == BOOLEAN) or found.is_complex() or fraction:
        raise MethodFault(f"{owner.label}: {what} must be {of}, got {found.dtype}.")
    if found.device != like.device:
        raise MethodFault(f"{owner.label}: {what} must be on {like.device}, where the keys are, got {found.device}.")
    return found


@dataclass
class Numbers:
    """Records which methods gave NaN scores, on the device until `raise_for_none` reads it."""

    none: dict[str, Tensor] = field(default_factory=dict)

    def note(self, label: str, found: Tensor) -> None:
        self.none[label] = self.none[label] | found if label in self.none else found

    def raise_for_none(self) -> None:
        """Raise MethodFault if a score was NaN, and clear what was recorded."""
        labels = list(self.none)
        found = torch.stack(list(self.none.values())).tolist() if labels else []
        self.none.clear()
        if broken := [label for label, none in zip(labels, found, strict=True) if none]:
            raise MethodFault(f"{', '.join(broken)}: scores must be finite, and some are no numbers (NaN).")


_NUMBERS: ContextVar[Numbers | None] = ContextVar("numbers", default=None)
_ASKED: ContextVar[tuple[str, Tensor] | None] = ContextVar("asked", default=None)
"""Label of the method being run, and whether the queries and keys it was given are finite."""


@contextmanager
def during(variable: ContextVar[Any], value: T) -> Iterator[T]:
    """Give a variable this value inside the block."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)


def numbers() -> AbstractContextManager[Numbers]:
    """Check scores for NaN inside this block."""
    return during(_NUMBERS, Numbers())


def sound(*given: Tensor) -> Tensor | None:
    """Return whether a method's input is finite, since a method is not to blame for a model that overflows; None
    outside `numbers()`."""
    if _NUMBERS.get() is None:
        return None
    # The largest number, which NaN and infinity are too: read once, and nothing of that size is written.
    return torch.stack([vector_norm(tensor.detach(), float("inf")) for tensor in given]).isfinite().all()


@contextmanager
def asked(method: Plugin, given: Tensor | None, layer: Layer | None = None) -> Iterator[None]:
    """Attribute the scores inside this block to `method`; with a layer, also check the numbers it chooses by. `given`
    is what `sound` returned."""
    choices = nullcontext() if given is None or layer is None else _Choices(layer)
    with during(_ASKED, None if given is None else (method.label, given)), choices:
        yield


def look(scores: Tensor, layer: Layer | None = None) -> None:
    """Record whether any score is NaN. Where there is a score for every query and key of a layer, pairs that the model
    hides do not count."""
    seen, asking = _NUMBERS.get(), _ASKED.get()
    if seen is not None and asking is not None:
        label, given = asking
        none = scores.isnan()
        if layer is not None and none.ndim > 2 and none.shape[-2:] == (layer.time, layer.time):
            between = none.ndim - 3  # number of head axes
            none = none & layer.visible[(slice(None), *[None] * between)]
        seen.note(label, none.any() & given)


ASKS_FOR_NONE = {"isnan", "isfinite", "isinf", "isposinf", "isneginf", "isreal", "ne"}
"""Tests for NaN and infinity (`x != x` is one): a method may run them and repair what it finds."""
READS_NONE = ("_like", "empty", "zeros", "ones", "full")
"""Name endings of operations that take a shape from their argument and read no number."""
LEAVES_TORCH = {"item", "tolist", "numpy", "__array__", "__float__", "__bool__"}
"""Ways to read a tensor into plain Python, where a method may choose unseen by torch."""


class _Choices(TorchFunctionMode):
    """Checks the numbers that go into every operation whose result is a choice."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.layer = layer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
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
