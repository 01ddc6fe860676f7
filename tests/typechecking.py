"""How shapes are checked in tests: beartype for the shapes alone, and a memory of the calls that have passed."""

import inspect
import sys
from collections.abc import Callable
from functools import cache, partial, wraps
from threading import local
from types import FunctionType
from typing import Any, get_args

import jaxtyping
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


def form(value: Any, exact: bool = False, depth: int = 8) -> Any:
    """Everything about a value that an annotation can ask for: values of one form all pass a check, or none does. A
    Literal asks for the value itself: then the form of a number or a word is `exact`."""
    kind = type(value)
    way = _WAYS.get(kind) or _way(kind)
    if way == "tensor":
        return kind, value.dtype, value.shape
    if way == "value":
        return (kind, value) if exact else kind
    if not depth or way == "unknown":
        raise Unknown
    if way == "iterator":
        return kind
    if way == "type":
        return kind, value
    if way == "object":
        if hasattr(value, "dtype"):
            raise Unknown
        return kind
    if len(value) > 16:
        raise Unknown
    items = value if way == "items" else [part for pair in value.items() for part in pair]
    return kind, tuple([form(item, exact, depth - 1) for item in items])


_WAYS: dict[type, str] = dict.fromkeys((int, float, bool, str, type(None)), "value") | {dict: "dict"}
"""How the form of a value is read, by its class: found once, since it is asked for at every call."""


def _way(kind: type) -> str:
    torch = sys.modules.get("torch")  # where it is not imported yet, nothing is a tensor
    if torch is not None and kind in (torch.Tensor, torch.nn.Parameter):
        found = "tensor"
    elif hasattr(kind, "__next__"):
        found = "iterator"
    elif issubclass(kind, type):
        found = "type"
    elif issubclass(kind, tuple | list):
        found = "items"
    else:
        found = "unknown" if hasattr(kind, "__iter__") or hasattr(kind, "__contains__") else "object"
    return _WAYS.setdefault(kind, found)


_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_plain = decorator.jaxtyped
OFTEN, SELDOM = 32, 16
"""A function is checked at its first calls in a test, then at one call in so many: a loop over tokens makes thousands
of calls, and looking at the forms of all takes a tenth of the time of the suite."""
_test = [0]


def next_test() -> None:
    """Functions are checked from their first call on again."""
    _test[0] += 1


_nothing = object()


def remembering(fn: Any = _nothing, *, typechecker: Any) -> Any:
    """`jaxtyped`, for which a call whose arguments and result have the forms of one that passed has passed as well.

    A check takes a tenth of a millisecond, more than most of the calls it checks: it was more than half of the time of
    some tests. Annotations with a size in braces, which look into a value, are checked each time.
    """
    if fn is _nothing:
        return partial(remembering, typechecker=typechecker)
    found = getattr(fn, "__annotations__", {}).values()
    if isinstance(fn, FunctionType) and all(hint is Any for hint in found):  # nothing to check
        return fn
    hints = " ".join(map(str, found))
    if not isinstance(fn, FunctionType) or inspect.isgeneratorfunction(fn) or "{" in hints:
        return _plain(fn, typechecker=typechecker)
    # What is checked computes with torch; a process that only hands out tests does without.
    from torch._C import DisableTorchFunction, _len_torch_function_stack
    from torch.compiler import is_compiling

    given, exact = local(), "Literal" in hints
    # Most often `self`: what is not annotated is not checked.
    taken = list(inspect.signature(fn).parameters.values())
    annotated = int(bool(taken) and taken[0].annotation is inspect.Parameter.empty and taken[0].kind in _BY_POSITION)
    alone = len(taken) == annotated

    def read(value: Any) -> Any:
        if not _len_torch_function_stack():
            return form(value, exact)
        with DisableTorchFunction():  # or the mode would be called for every shape
            return form(value, exact)

    def body(*args: Any, **kwargs: Any) -> Any:
        return given.__dict__.pop("result") if "result" in given.__dict__ else fn(*args, **kwargs)

    @cache
    def made() -> Any:
        """The checked function, at its first call: a process calls a part of all functions, and each takes a
        millisecond. The names in annotations are looked up among the globals of the function."""
        shown = wraps(fn)(FunctionType(body.__code__, fn.__globals__, fn.__name__, None, body.__closure__))
        return _plain(shown, typechecker=typechecker)

    def checked(*args: Any, **kwargs: Any) -> Any:
        return made()(*args, **kwargs)

    passed = dict[Any, set[Any]]()
    test, calls = -1, 0

    @wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal test, calls
        __tracebackhide__ = True
        if test != _test[0]:
            test, calls = _test[0], 0
        calls += 1
        if calls > OFTEN and calls % SELDOM:
            return fn(*args, **kwargs)
        if is_compiling():  # no compiler can trace a check; what is compiled also runs as it is
            return fn(*args, **kwargs)
        try:
            if alone:
                key = None
            elif kwargs:
                key = read(args[annotated:]), *kwargs, read(tuple(kwargs.values()))
            else:
                key = read(args[annotated:])
        except Unknown:
            return checked(*args, **kwargs)
        if key not in passed:
            result = checked(*args, **kwargs)
            passed[key] = set()
        else:
            result = fn(*args, **kwargs)
            if _known(result, passed[key], read):
                return result
            given.result = result
            try:
                checked(*args, **kwargs)
            finally:
                given.__dict__.pop("result", None)
        try:
            passed[key].add(read(result))
        except Unknown:
            passed.pop(key)
        return result

    return call


def _known(result: Any, forms: set[Any], read: Callable[[Any], Any]) -> bool:
    try:
        return read(result) in forms
    except Unknown:
        return False


def install() -> None:
    """Before the first import of a module that is checked."""
    jaxtyping.jaxtyped = decorator.jaxtyped = remembering
