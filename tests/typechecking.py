"""How shapes are checked in tests: beartype for the shapes alone, and a memory of the calls that have passed."""

import inspect
from collections.abc import Callable
from functools import partial, wraps
from threading import local
from types import FunctionType
from typing import Any, get_args

import jaxtyping
import torch
from beartype import beartype
from jaxtyping import AbstractArray
from jaxtyping import _decorator as decorator


def shapes(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its annotations of arrays enforced; itself where it has none. Tests give studies stand-ins for
    records and reports, but never for tensors."""
    found = getattr(function, "__annotations__", {})
    arrays = {name: hint for name, hint in found.items() if _holds_an_array(hint)}
    if not arrays:
        return function
    function.__annotations__ = arrays
    return beartype(function)


def _holds_an_array(hint: Any) -> bool:
    own = isinstance(hint, type) and issubclass(hint, AbstractArray)
    return own or any(_holds_an_array(part) for part in get_args(hint))


class Unknown(Exception):
    """Whether a value fits its annotation may depend on more than its form."""


def form(value: Any, depth: int = 8) -> Any:
    """Everything about a value that an annotation can ask for: values of one form all pass a check, or none does."""
    if not depth:
        raise Unknown
    kind, below = type(value), partial(form, depth=depth - 1)
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        return kind, value.dtype, value.shape
    if kind in _PLAIN or hasattr(kind, "__next__"):
        return kind
    if isinstance(value, type):
        return kind, value
    if isinstance(value, tuple | list) and len(value) <= 16:
        return kind, tuple(map(below, value))
    if kind is dict and len(value) <= 16:
        return kind, tuple((below(key), below(item)) for key, item in value.items())
    if hasattr(kind, "__iter__") or hasattr(kind, "__contains__") or hasattr(value, "dtype"):
        raise Unknown
    return kind


_PLAIN = frozenset({int, float, bool, str, type(None)})


_plain = decorator.jaxtyped
_nothing = object()


def remembering(fn: Any = _nothing, *, typechecker: Any) -> Any:
    """`jaxtyped`, for which a call whose arguments and result have the forms of one that passed has passed as well.

    A check takes a tenth of a millisecond, more than most of the calls it checks: it was more than half of the time of
    some tests. Annotations that look at a value, a Literal or a size in braces, are checked each time.
    """
    if fn is _nothing:
        return partial(remembering, typechecker=typechecker)
    hints = " ".join(map(str, getattr(fn, "__annotations__", {}).values()))
    if not isinstance(fn, FunctionType) or inspect.isgeneratorfunction(fn) or "Literal" in hints or "{" in hints:
        return _plain(fn, typechecker=typechecker)
    given = local()

    def body(*args: Any, **kwargs: Any) -> Any:
        return given.__dict__.pop("result") if "result" in given.__dict__ else fn(*args, **kwargs)

    # The names in annotations are looked up among the globals of the function.
    shown = wraps(fn)(FunctionType(body.__code__, fn.__globals__, fn.__name__, None, body.__closure__))
    checked = _plain(shown, typechecker=typechecker)
    passed = dict[Any, set[Any]]()

    @wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if torch.compiler.is_compiling():
            return checked(*args, **kwargs)
        try:
            key = form(args), tuple((name, form(value)) for name, value in kwargs.items())
        except Unknown:
            return checked(*args, **kwargs)
        if key not in passed:
            result = checked(*args, **kwargs)
            passed[key] = set()
        else:
            result = fn(*args, **kwargs)
            if _known(result, passed[key]):
                return result
            given.result = result
            try:
                checked(*args, **kwargs)
            finally:
                given.__dict__.pop("result", None)
        try:
            passed[key].add(form(result))
        except Unknown:
            passed.pop(key)
        return result

    return call


def _known(result: Any, forms: set[Any]) -> bool:
    try:
        return form(result) in forms
    except Unknown:
        return False


def install() -> None:
    """Before the first import of a module that is checked."""
    jaxtyping.jaxtyped = decorator.jaxtyped = remembering
