"""Names of a package, and whole libraries, are loaded on first use (PEP 562), so that importing stays instant.

__getattr__, __dir__ = on_use(__name__, {"model": ("Encoder", "StandardSAE"), "losses": ("lse_loss",)})
alt = Later("altair")
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def on_use(package: str, homes: Mapping[str, Sequence[str]]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the package's `__getattr__` and `__dir__`, from its modules and the names that each is home to."""
    module_of = {name: module for module, names in homes.items() for name in names}

    def load(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        return getattr(importlib.import_module(f"{package}.{module_of[name]}"), name)

    return load, lambda: sorted(module_of)


class Later:
    """A library that is imported when one of its names is first asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)
