"""beartype for the shapes alone: tests give studies stand-ins for records and reports, but never for tensors."""

from collections.abc import Callable
from typing import Any, get_args

from beartype import beartype
from jaxtyping import AbstractArray


def shapes(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its annotations of arrays enforced; itself where it has none."""
    found = getattr(function, "__annotations__", {})
    arrays = {name: hint for name, hint in found.items() if _holds_an_array(hint)}
    if not arrays:
        return function
    function.__annotations__ = arrays
    return beartype(function)


def _holds_an_array(hint: Any) -> bool:
    own = isinstance(hint, type) and issubclass(hint, AbstractArray)
    return own or any(_holds_an_array(part) for part in get_args(hint))
